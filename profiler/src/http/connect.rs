//! Connections: the first address of the host that accepts one, with or without TLS.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::resolve::resolve;

/// Time limit for a connection to one address.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// The `User-Agent` of requests.
pub(crate) const AGENT: &str = concat!("heapbpf/", env!("CARGO_PKG_VERSION"));

#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error("cannot resolve `{0}`: {1}")]
    Resolve(String, io::Error),
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    #[error("TLS failed: {0}")]
    Tls(io::Error),
}

/// A connection to a server.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects to a host. `host` is a name or an address, without the brackets of IPv6.
pub(crate) async fn connect(
    host: &str,
    port: u16,
    tls: Option<&TlsConnector>,
) -> Result<Box<dyn Stream>, ConnectError> {
    let addresses = resolve(host, port).await.map_err(|error| ConnectError::Resolve(host.to_owned(), error))?;
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        match timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return secure(stream, host, tls).await,
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(ConnectError::Connect(failure))
}

async fn secure(stream: TcpStream, host: &str, tls: Option<&TlsConnector>) -> Result<Box<dyn Stream>, ConnectError> {
    // A failure only delays the request.
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| ConnectError::Tls(io::Error::new(io::ErrorKind::InvalidInput, error)))?;
    Ok(Box::new(tls.connect(name, stream).await.map_err(ConnectError::Tls)?))
}
