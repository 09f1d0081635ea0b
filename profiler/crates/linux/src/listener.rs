//! Sockets with a name in the file system, at which heapbpf listens.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::geteuid;

use super::place::{Place, denied};

/// Maximum number of connections that the kernel accepts before heapbpf does.
const BACKLOG: i32 = 128;

/// The name of a socket, which is removed on drop unless it is another's by then.
#[derive(Debug)]
pub struct SocketName {
    path: PathBuf,
    place: Place,
    socket: File,
}

impl SocketName {
    /// Absolute path of the socket, by which clients find it.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        // No caller can handle an error here; a stale socket is replaced by the next run.
        let _ = self.place.remove(&self.socket);
    }
}

/// Listens at a socket to which only this process's user can connect. Replaces a socket at which no process listens, and nothing
/// else. Fails in folders of other users, who could put a socket of their own in its place.
pub fn listen_at(path: &Path) -> io::Result<(UnixListener, SocketName)> {
    let place = Place::find(path)?;
    if !place.is_ours() {
        return Err(denied(
            "it is in a folder that other users may change, who could replace the socket; name another folder",
        ));
    }
    let listener = match bind_to(&place) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(&place)?;
            bind_to(&place)?
        }
        bound => bound?,
    };
    let socket = place.entry()?.ok_or(io::ErrorKind::NotFound)?;
    check(&socket.metadata()?)?;
    Ok((listener, SocketName { path: std::path::absolute(path)?, place, socket }))
}

fn bind_to(place: &Place) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file that `bind` creates has the mode of the socket (net/unix/af_unix.c: unix_bind_bsd), so it is never open to others.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(place.own_path())?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket at which no process listens. Anything else at the place is kept, and is an error.
fn remove_stale(place: &Place) -> io::Result<()> {
    let Some(found) = place.entry()? else { return Ok(()) };
    check(&found.metadata()?)?;
    match UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd())) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => place.remove(&found),
        Err(error) => Err(error),
        Ok(_) => Err(in_use("another process listens on it")),
    }
}

fn check(found: &Metadata) -> io::Result<()> {
    if !found.file_type().is_socket() {
        return Err(in_use("a file that is no socket has this name"));
    }
    if found.uid() != geteuid().as_raw() {
        return Err(in_use("another user's socket has this name"));
    }
    Ok(())
}

fn in_use(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, reason)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    /// A user that owns nothing of this test.
    const OTHER: u32 = 65534;

    #[test]
    fn sockets_are_private_and_removed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        let (_listener, name) = listen_at(&path).expect("free");
        let metadata = fs::symlink_metadata(&path).expect("bound");
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert_eq!(name.path(), path);
        UnixStream::connect(&path).expect("it listens");
        // Also if the folder has another path by then.
        let moved = tempfile::tempdir().expect("temporary folder");
        fs::rename(folder.path(), moved.path()).expect("ours");
        drop(name);
        assert!(!moved.path().join("s.sock").exists());
    }

    #[test]
    fn only_stale_sockets_are_replaced() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        // As after a SIGKILL: the name remains.
        drop(UnixListener::bind(&path).expect("free"));
        let first = listen_at(&path).expect("stale");
        let error = listen_at(&path).expect_err("in use").to_string();
        assert!(error.contains("another process listens"), "{error}");
        assert!(path.exists(), "the socket in use was removed");
        drop(first);
        drop(UnixListener::bind(&path).expect("free"));
        chown(&path, Some(OTHER), None).expect("tests run as root");
        let error = listen_at(&path).expect_err("another user's").to_string();
        assert!(error.contains("another user's socket") && path.exists(), "{error}");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "data").expect("ours");
        let error = listen_at(&path).expect_err("a file").to_string();
        assert!(error.contains("no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("kept"), "data");
        fs::remove_file(&path).expect("ours");
        symlink(folder.path().join("elsewhere"), &path).expect("ours");
        listen_at(&path).expect_err("a link");
        assert!(fs::symlink_metadata(&path).is_ok() && !folder.path().join("elsewhere").exists());
    }

    #[test]
    fn a_socket_of_another_run_is_kept() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("s.sock");
        let first = listen_at(&path).expect("free");
        fs::remove_file(&path).expect("ours");
        let _second = listen_at(&path).expect("free");
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn folders_of_other_users_have_no_sockets() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let [own, other] = ["own", "other"].map(|name| folder.path().join(name));
        fs::create_dir(&own).expect("ours");
        fs::create_dir(&other).expect("ours");
        std::os::unix::fs::symlink(&own, other.join("link")).expect("ours");
        std::os::unix::fs::lchown(other.join("link"), Some(OTHER), None).expect("tests run as root");
        chown(&other, Some(OTHER), None).expect("tests run as root");
        for path in ["s.sock", "link/s.sock", "../other/s.sock"] {
            let error = listen_at(&other.join(path)).expect_err("not ours");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{path}: {error}");
        }
        assert_eq!(fs::read_dir(&own).expect("ours").count(), 0);
        assert_eq!(fs::read_dir(&other).expect("ours").count(), 1);
    }

    #[test]
    fn folders_that_anybody_may_change_have_no_sockets() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let open = folder.path().join("open");
        fs::create_dir(&open).expect("ours");
        for (mode, expected) in [(0o777, false), (0o1777, true), (0o770, true)] {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).expect("ours");
            assert_eq!(listen_at(&open.join("s.sock")).is_ok(), expected, "{mode:o}");
        }
    }
}
