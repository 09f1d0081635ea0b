//! Listening sockets.

#![expect(clippy::disallowed_methods, reason = "the user's own paths")]

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use heapbpf_linux::listener::{SocketName, listen_at};

use super::address::Address;

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketName),
}

impl Socket {
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                // The socket is one of std, which sets SO_REUSEADDR, so that a restarted heapbpf gets its port back.
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                Ok(Self::Tcp(listener, address))
            }
            Address::Unix(path) => {
                let (listener, name) = listen_at(path)?;
                Ok(Self::Unix(listener, name))
            }
        }
    }

    /// Address of the socket, with the port that the kernel has chosen.
    pub(super) fn url(&self, is_encrypted: bool) -> String {
        let scheme = if is_encrypted { "https" } else { "http" };
        match self {
            Self::Tcp(_, address) => format!("{scheme}://{address}/"),
            Self::Unix(_, name) => format!("unix:{}", name.path().display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_the_chosen_port() {
        let socket = Socket::bind(&"127.0.0.1:0".parse().expect("an address")).expect("there is a free port");
        let url = socket.url(true);
        assert!(url.starts_with("https://127.0.0.1:") && !url.ends_with(":0/"), "{url}");
    }

    #[test]
    fn urls_of_sockets_have_their_path() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        let socket = Socket::bind(&Address::Unix(path.clone())).expect("free");
        assert_eq!(socket.url(false), format!("unix:{}", path.display()));
    }
}
