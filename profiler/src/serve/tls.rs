//! TLS of `--tls-cert` and `--tls-key`: version 1.3, with ring.

use std::path::Path;
use std::sync::Arc;

use heapbpf_base::shown::Shown;
use heapbpf_linux::files;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

const PEM_BYTES_MAX: u64 = 1 << 20;

/// Reads a certificate with its chain, and the key, both in PEM.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let chain = CertificateDer::pem_slice_iter(&read(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain =
        chain.map_err(|error| format!("cannot read a certificate from `{}`: {error}", Shown::of(certificate)))?;
    if chain.is_empty() {
        return Err(format!("`{}` has no certificate in PEM (`-----BEGIN CERTIFICATE-----`)", Shown::of(certificate)));
    }
    let private = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|error| format!("cannot read a private key from `{}`: {error}", Shown::of(key)))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| format!("cannot use `{}` with `{}`: {error}", Shown::of(certificate), Shown::of(key)))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let text = files::read_text(path, PEM_BYTES_MAX);
    text.map(String::into_bytes).map_err(|error| format!("cannot read `{}`: {error}", Shown::of(path)))
}
