//! Folders in which heapbpf keeps files from one run to the next: caches and queues.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use heapbpf_base::ids::Pid;
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, statat, unlinkat};

use super::place::{Place, denied};
use super::walk::{Walk, kind};

/// An open folder.
#[derive(Debug)]
pub struct Folder(Walk);

impl Folder {
    /// Opens a folder. Fails if there is none, through links of other users, and if the path's last part is a link.
    pub fn find(path: &Path) -> io::Result<Self> {
        Self::on(Walk::start()?, path, false)
    }

    /// Opens a folder like [`find`](Self::find), but creates missing folders, for their owner alone, if they are in a folder of
    /// root, of this process's user or of the user who invoked it.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::on(Walk::start()?.creating(), path, false)
    }

    /// Opens a folder beneath the root directory of a process, which links do not leave. Follows links of root and of this user.
    /// Makes no request to a file system that does not answer by itself.
    pub fn beneath(root: &OwnedFd, path: &Path, uid: u32, pid: Pid) -> io::Result<Self> {
        Self::on(Walk::beneath_answering(root, uid, pid)?, path, true)
    }

    /// Opens a folder in this one, and creates it for its owner alone if there is none.
    pub fn enter(&self, name: &str) -> io::Result<Self> {
        Self::on(self.0.try_clone()?.creating(), Path::new(name), false)
    }

    fn on(mut walk: Walk, path: &Path, follows: bool) -> io::Result<Self> {
        walk.enter_folder(path, follows)?;
        Ok(Self(walk))
    }

    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.0)?)
    }

    pub fn place(&self, name: &str) -> io::Result<Place> {
        Ok(Place::new(self.0.try_clone()?, name.into()))
    }

    /// Opens a regular file for reading. Follows no link.
    pub fn open(&self, name: &str) -> io::Result<File> {
        // Opening must not block: the file could be a pipe without a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::empty())?;
        match kind(&fstat(&file)?) {
            FileType::RegularFile => Ok(file.into()),
            _ => Err(denied("it is not a regular file")),
        }
    }

    /// Removes a file.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Names of the entries in the folder, of links themselves. Leaves out entries that vanish meanwhile.
    pub fn entries(&self) -> io::Result<Vec<(OsString, Stat)>> {
        let mut entries = Vec::new();
        for entry in Dir::read_from(self.readable()?)? {
            let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
            if name == "." || name == ".." {
                continue;
            }
            if let Ok(stat) = statat(&self.0, &name, AtFlags::SYMLINK_NOFOLLOW) {
                entries.push((name, stat));
            }
        }
        Ok(entries)
    }

    /// Locks the folder until the result is dropped. Fails with [`io::ErrorKind::WouldBlock`] if another process has locked it.
    pub fn lock(&self) -> io::Result<OwnedFd> {
        let folder = self.readable()?;
        flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
        Ok(folder)
    }

    fn readable(&self) -> io::Result<OwnedFd> {
        Ok(openat(&self.0, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

    use super::*;
    use crate::files::Replacement;

    /// A user that owns nothing of this test.
    const OTHER: u32 = 65534;

    #[test]
    fn folders_are_created_for_their_owner_alone() {
        let ground = tempfile::tempdir().expect("temporary folder");
        let path = ground.path().join("a/b");
        Folder::find(&path).expect_err("there is none");
        for _ in 0..2 {
            Folder::create(&path).expect("ours").enter("c").expect("ours");
        }
        for name in ["a", "a/b", "a/b/c"] {
            let mode = ground.path().join(name).metadata().expect("it was created").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{name}");
        }
        Folder::find(&path).expect("it exists");
    }

    #[test]
    fn nothing_is_created_through_links_or_in_folders_of_others() {
        let ground = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| ground.path().join(name);
        for name in ["own", "other"] {
            fs::create_dir(path(name)).expect("ours");
        }
        chown(path("other"), Some(OTHER), None).expect("tests run as root");
        for (name, uid) in [("link", 0), ("foreign", OTHER)] {
            symlink("own", path(name)).expect("ours");
            lchown(path(name), Some(uid), None).expect("tests run as root");
        }
        Folder::create(&path("link/a")).expect("a link of ours on the way");
        for name in ["foreign/b", "foreign", "link", "other/b", "other/b/c"] {
            Folder::create(&path(name)).expect_err(name);
        }
        let names = |name: &str| fs::read_dir(path(name)).expect("ours").count();
        assert_eq!((names("own"), names("other")), (1, 0));
    }

    #[test]
    fn files_are_in_the_folder_that_was_opened() {
        let ground = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| ground.path().join(name);
        let folder = Folder::create(&path("folder")).expect("ours");
        fs::rename(path("folder"), path("moved")).expect("ours");
        fs::create_dir(path("folder")).expect("ours");
        let new = Replacement::create_at(folder.place("file").expect("open"), 0o600).expect("ours");
        new.file().write_all(b"text").expect("there is room");
        new.commit().expect("ours");
        let mut text = String::new();
        folder.open("file").expect("it was written").read_to_string(&mut text).expect("it is text");
        assert_eq!(text, "text");
        symlink("file", path("moved/link")).expect("ours");
        folder.open("link").expect_err("a link");
        folder.open(".").expect_err("a folder");
        let mut names: Vec<_> = folder.entries().expect("ours").into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, ["file", "link"]);
        folder.remove(OsStr::new("file")).expect("ours");
        assert!(!path("moved/file").exists() && fs::read_dir(path("folder")).expect("ours").next().is_none());
    }

    #[test]
    fn a_folder_is_locked_once() {
        let ground = tempfile::tempdir().expect("temporary folder");
        let [first, second] = [0, 1].map(|_| Folder::find(ground.path()).expect("ours"));
        let lock = first.lock().expect("nobody has");
        assert_eq!(second.lock().expect_err("locked").kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        second.lock().expect("it was released");
    }
}
