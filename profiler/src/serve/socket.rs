//! Listening sockets.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::geteuid;

use super::address::Address;

/// Connections that the kernel accepts before heapbpf does.
const BACKLOG: i32 = 128;

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, SocketFile),
}

impl Socket {
    pub(super) fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                // Of std: sets SO_REUSEADDR, so that a restarted heapbpf gets its port back.
                let listener = TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                Ok(Self::Tcp(listener, address))
            }
            Address::Unix(path) => {
                let (listener, file) = bind_unix(path)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// The address, with the port that the kernel has chosen.
    pub(super) fn url(&self, is_encrypted: bool) -> String {
        let scheme = if is_encrypted { "https" } else { "http" };
        match self {
            Self::Tcp(_, address) => format!("{scheme}://{address}/"),
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }
}

/// The name of a socket, which is removed on drop unless it is another's by then.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.identity) {
            // There is nobody to report to; a stale socket is replaced by the next run.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn bind_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    // With a relative path, the file would not be found again after a change of directory.
    let path = std::path::absolute(path)?;
    match bind_new(&path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(&path)?;
            bind_new(&path)
        }
        other => other,
    }
}

fn bind_new(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file that `bind` makes has the mode of the socket (net/unix/af_unix.c: unix_bind_bsd), so it is never open to others.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(&fs::symlink_metadata(path)?) };
    listen(&socket, BACKLOG)?;
    Ok((socket.into(), file))
}

/// Removes a socket that nobody listens on. Anything else at the path is kept, and is an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
    if !found.file_type().is_socket() {
        return refuse("a file that is no socket has this name");
    }
    if found.uid() != geteuid().as_raw() {
        return refuse("another user's socket has this name");
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => refuse("another process listens on it"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn sockets_are_private_and_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        let socket = Socket::bind(&Address::Unix(path.clone())).expect("free");
        assert_eq!(fs::metadata(&path).expect("bound").permissions().mode() & 0o777, 0o600);
        assert_eq!(socket.url(false), format!("unix:{}", path.display()));
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn only_stale_sockets_are_replaced() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        let address = Address::Unix(path.clone());
        // As after a SIGKILL: the name remains.
        drop(UnixListener::bind(&path).expect("free"));
        let socket = Socket::bind(&address).expect("stale");
        let error = Socket::bind(&address).expect_err("in use").to_string();
        assert!(error.contains("another process listens"), "{error}");
        assert!(path.exists(), "the socket in use was removed");
        drop(socket);
        fs::write(&path, "data").expect("ours");
        let error = Socket::bind(&address).expect_err("a file").to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("kept"), "data");
        fs::remove_file(&path).expect("ours");
        symlink(folder.path().join("elsewhere"), &path).expect("ours");
        Socket::bind(&address).expect_err("a link");
        assert!(fs::symlink_metadata(&path).is_ok() && !folder.path().join("elsewhere").exists());
    }

    #[test]
    fn a_socket_of_another_run_is_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        let first = Socket::bind(&Address::Unix(path.clone())).expect("free");
        fs::remove_file(&path).expect("ours");
        let _second = Socket::bind(&Address::Unix(path.clone())).expect("free");
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn urls_have_the_chosen_port() {
        let socket = Socket::bind(&"127.0.0.1:0".parse().expect("an address")).expect("there is a free port");
        let url = socket.url(true);
        assert!(url.starts_with("https://127.0.0.1:") && !url.ends_with(":0/"), "{url}");
    }
}
