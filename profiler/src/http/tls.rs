//! TLS of connections to servers.

use std::path::Path;
use std::sync::Arc;

use heapbpf_base::shown::Shown;
use heapbpf_linux::files;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, Error as RustlsError, RootCertStore};

const CA_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("cannot read certificates from `{0}`: {1}")]
    File(String, String),
    #[error("`{0}` contains no certificates in PEM")]
    Empty(String),
    #[error("this system has no trusted certificates ({0}); install `ca-certificates`, or set `SSL_CERT_FILE`")]
    NoRoots(String),
    #[error("cannot configure TLS: {0}")]
    Rustls(#[from] RustlsError),
}

/// Configuration that trusts the authorities of the file, or those of the system.
pub(crate) fn config(ca_file: Option<&Path>, is_http2: bool) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => of_file(path, &mut roots)?,
        None => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
                let errors = if errors.is_empty() { "no certificate store".to_owned() } else { errors.join(", ") };
                return Err(TlsError::NoRoots(errors));
            }
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let mut config = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![if is_http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(Arc::new(config))
}

/// A digest of the authorities that the system trusts now.
pub(crate) fn system_authorities() -> [u8; 32] {
    let mut certificates = rustls_native_certs::load_native_certs().certs;
    certificates.sort_by(|first, second| first.as_ref().cmp(second.as_ref()));
    let mut digest = Sha256::new();
    certificates.iter().for_each(|certificate| digest.update(certificate));
    digest.finalize().into()
}

fn of_file(path: &Path, roots: &mut RootCertStore) -> Result<(), TlsError> {
    let shown = Shown::of(path).to_string();
    let unreadable = |error: String| TlsError::File(shown.clone(), error);
    let text = files::read_text(path, CA_BYTES_MAX).map_err(|error| unreadable(error.to_string()))?;
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        roots.add(certificate.map_err(|error| unreadable(error.to_string()))?)?;
    }
    if roots.is_empty() { Err(TlsError::Empty(shown)) } else { Ok(()) }
}
