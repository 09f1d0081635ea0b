//! Walks to a file or folder: from one open folder to the next, so that no name is resolved twice, and without links of users who
//! could lead heapbpf elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use heapbpf_base::ids::Pid;
use heapbpf_base::shown::Shown;
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, readlinkat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::geteuid;

use super::invoker::invoker;
use super::known;
use super::proc::maps::Device;
use super::proc::mounts;

/// Maximum number of links that are followed on one way: as many as the kernel follows (`MAXSYMLINKS` in include/linux/namei.h).
const LINKS_MAX: u32 = 40;
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error(
        "`{}` on the way is a link of user {uid}, who may lead it elsewhere; name the folder itself", Shown::of(.name)
    )]
    Foreign { name: OsString, uid: u32 },
    #[error("`{}` does not exist, and the folder for it belongs to user {uid}", Shown::of(.name))]
    NotOurs { name: OsString, uid: u32 },
    #[error("`{}` is on a file system that may not answer: another machine or a program serves it", Shown::of(.0))]
    Distant(OsString),
    #[error(transparent)]
    System(#[from] Errno),
}

impl From<WalkError> for io::Error {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::System(error) => error.into(),
            refused => Self::new(io::ErrorKind::PermissionDenied, refused.to_string()),
        }
    }
}

/// An open file or folder, and how it was reached.
#[derive(Debug)]
pub struct Walk {
    /// `None` for heapbpf's own root directory.
    root: Option<OwnedFd>,
    at: OwnedFd,
    /// Users whose links are followed.
    trusted: Vec<u32>,
    is_ours: bool,
    creates: bool,
    /// Process whose file systems must answer by themselves; `None` if that does not matter.
    answering: Option<Pid>,
    links_left: u32,
}

impl Walk {
    /// Starts in the current directory. Trusts root, this process's user and the user who invoked it.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_in(openat(CWD, ".", FOLDER, Mode::empty())?)
    }

    /// Starts in a folder that was not reached by a walk: the owners of the folders above can exchange it.
    fn start_in(at: OwnedFd) -> io::Result<Self> {
        let invoker = invoker().map(|(uid, _)| uid);
        let trusted = [0, geteuid().as_raw()].into_iter().chain(invoker).collect();
        let walk = Self::new(None, at, trusted)?;
        let is_ours = walk.is_ours && walk.is_below_ours().unwrap_or(false);
        Ok(Self { is_ours, ..walk })
    }

    /// Whether all folders above the present one belong to trusted users.
    fn is_below_ours(&self) -> rustix::io::Result<bool> {
        let mut at = fstat(&self.at)?;
        let mut parent = openat(&self.at, "..", FOLDER, Mode::empty())?;
        loop {
            let above = fstat(&parent)?;
            if (above.st_dev, above.st_ino) == (at.st_dev, at.st_ino) {
                return Ok(true);
            }
            if !is_of(&self.trusted, &above) {
                return Ok(false);
            }
            (at, parent) = (above, openat(&parent, "..", FOLDER, Mode::empty())?);
        }
    }

    /// Starts in a root directory, which links do not leave. Trusts root and one user.
    pub fn beneath(root: &OwnedFd, uid: u32) -> io::Result<Self> {
        Ok(Self::new(Some(root.try_clone()?), root.try_clone()?, vec![0, uid])?)
    }

    fn new(root: Option<OwnedFd>, at: OwnedFd, trusted: Vec<u32>) -> rustix::io::Result<Self> {
        let is_ours = is_of(&trusted, &fstat(&at)?);
        Ok(Self { root, at, trusted, is_ours, creates: false, answering: None, links_left: LINKS_MAX })
    }

    /// Starts in a root directory of a process like [`beneath`](Self::beneath). Makes no request to a file system of the process
    /// that does not answer by itself.
    pub(crate) fn beneath_answering(root: &OwnedFd, uid: u32, pid: Pid) -> io::Result<Self> {
        check_answers(pid, OsStr::new("/"), root)?;
        Ok(Self { answering: Some(pid), ..Self::beneath(root, uid)? })
    }

    /// Creates missing folders from here on, for their owner alone, if the folder in which they are missing belongs to a trusted
    /// user.
    pub(crate) fn creating(self) -> Self {
        Self { creates: true, ..self }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let root = self.root.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Self { root, at: self.at.try_clone()?, trusted: self.trusted.clone(), ..*self })
    }

    pub(crate) fn trusts(&self, stat: &Stat) -> bool {
        self.trusted.contains(&stat.st_uid)
    }

    /// Whether only trusted users can exchange the folders on the way, and their entries.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    pub fn into_place(self) -> OwnedFd {
        self.at
    }

    /// Goes along a path. The path's last part may be a link, which is followed only if `follows` is set.
    pub fn to(&mut self, path: &Path, follows: bool) -> Result<(), WalkError> {
        let mut components = path.components().peekable();
        while let Some(component) = components.next() {
            match component {
                Component::Prefix(_) | Component::CurDir => {}
                Component::RootDir => {
                    self.at = match &self.root {
                        Some(root) => fcntl_dupfd_cloexec(root, 0)?,
                        None => openat(CWD, "/", FOLDER, Mode::empty())?,
                    };
                    self.is_ours = is_of(&self.trusted, &fstat(&self.at)?);
                }
                Component::ParentDir if self.is_at_root()? => {}
                Component::ParentDir => {
                    let parent = self.entry(OsStr::new(".."))?;
                    self.enter(&fstat(&parent)?, parent);
                }
                Component::Normal(name) => self.step(name, follows || components.peek().is_some())?,
            }
        }
        Ok(())
    }

    /// Goes along a path to a folder.
    pub(crate) fn enter_folder(&mut self, path: &Path, follows: bool) -> Result<(), WalkError> {
        self.to(path, follows)?;
        match kind(&fstat(&self.at)?) {
            FileType::Directory => Ok(()),
            FileType::Symlink => Err(Errno::LOOP.into()),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Opens the entry with this name here, without following or reading it.
    pub(crate) fn entry(&self, name: &OsStr) -> rustix::io::Result<OwnedFd> {
        openat(&self.at, name, ENTRY, Mode::empty())
    }

    /// Returns the path in a link.
    pub(crate) fn read(&mut self, link: &OwnedFd) -> rustix::io::Result<OsString> {
        self.links_left = self.links_left.checked_sub(1).ok_or(Errno::LOOP)?;
        Ok(OsStr::from_bytes(readlinkat(link, "", Vec::new())?.as_bytes()).to_owned())
    }

    fn step(&mut self, name: &OsStr, follows: bool) -> Result<(), WalkError> {
        let entry = match self.entry(name) {
            Err(Errno::NOENT) if self.creates => {
                self.create(name)?;
                self.entry(name)?
            }
            entry => entry?,
        };
        self.answering.map_or(Ok(()), |pid| check_answers(pid, name, &entry))?;
        let stat = fstat(&entry)?;
        match kind(&stat) {
            FileType::Symlink if !follows => self.enter(&stat, entry),
            FileType::Symlink if !self.trusts(&stat) => {
                return Err(WalkError::Foreign { name: name.to_owned(), uid: stat.st_uid });
            }
            FileType::Symlink => {
                let target = self.read(&entry)?;
                self.to(Path::new(&target), true)?;
            }
            _ => self.enter(&stat, entry),
        }
        Ok(())
    }

    fn create(&self, name: &OsStr) -> Result<(), WalkError> {
        let folder = fstat(&self.at)?;
        if !self.trusts(&folder) {
            return Err(WalkError::NotOurs { name: name.to_owned(), uid: folder.st_uid });
        }
        match mkdirat(&self.at, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn enter(&mut self, stat: &Stat, entry: OwnedFd) {
        self.is_ours &= is_of(&self.trusted, stat);
        self.at = entry;
    }

    fn is_at_root(&self) -> rustix::io::Result<bool> {
        let Some(root) = &self.root else { return Ok(false) };
        let [root, at] = [fstat(root)?, fstat(&self.at)?];
        Ok((root.st_dev, root.st_ino) == (at.st_dev, at.st_ino))
    }
}

impl AsFd for Walk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.at.as_fd()
    }
}

/// Fails if the file system of an entry does not answer by itself. Requests only what the kernel has in memory.
fn check_answers(pid: Pid, name: &OsStr, entry: &OwnedFd) -> Result<(), WalkError> {
    let answers = known::device_of(entry).is_ok_and(|found| mounts::is_local(pid, Device::of(&found)));
    if answers { Ok(()) } else { Err(WalkError::Distant(name.to_owned())) }
}

/// Whether only these users can exchange the entries of a folder. In a folder with the sticky bit, others cannot exchange entries
/// that are not theirs.
fn is_of(users: &[u32], stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    let is_open = kind(stat) == FileType::Directory && mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX);
    users.contains(&stat.st_uid) && !is_open
}

/// Opens a regular file for reading that only trusted users can write. Follows links of trusted users.
pub fn open_trusted(path: &Path) -> io::Result<File> {
    let denied = |reason: String| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    let mut walk = Walk::start()?;
    walk.to(path, true)?;
    let stat = fstat(&walk)?;
    if kind(&stat) != FileType::RegularFile {
        return Err(denied("it is not a regular file".to_owned()));
    }
    if !walk.trusts(&stat) {
        return Err(denied(format!("it belongs to user {}; make it yours", stat.st_uid)));
    }
    if Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP.union(Mode::WOTH)) {
        return Err(denied(format!("it can be written by other users: `chmod go-w {}`", Shown::of(path))));
    }
    // Opens the file that was judged, whatever its name leads to now.
    let judged = format!("/proc/self/fd/{}", walk.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(openat(CWD, judged, flags, Mode::empty())?.into())
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, lchown, symlink};

    use super::*;

    /// A user that owns nothing of this test.
    const OTHER: u32 = 65534;

    fn is_ours(folder: &Path) -> bool {
        Walk::start_in(openat(CWD, folder, FOLDER, Mode::empty()).expect("it is there")).expect("open").is_ours()
    }

    #[test]
    fn a_folder_below_one_of_another_user_is_not_ours() {
        assert!(geteuid().is_root(), "changing owners requires root");
        let ground = tempfile::tempdir().expect("temporary folder");
        let below = ground.path().join("theirs/ours/below");
        fs::create_dir_all(&below).expect("ours");
        assert!(is_ours(&below) && is_ours(Path::new("/")));
        chown(ground.path().join("theirs"), Some(OTHER), None).expect("root");
        assert!(!is_ours(&below) && !is_ours(&ground.path().join("theirs")));
        assert!(is_ours(ground.path()));
    }

    #[test]
    fn only_regular_files_of_trusted_users_are_opened() {
        assert!(geteuid().is_root(), "changing owners requires root");
        let ground = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| ground.path().join(name);
        fs::write(path("file"), "text").expect("ours");
        symlink("file", path("link")).expect("ours");
        for name in ["file", "link"] {
            open_trusted(&path(name)).expect(name);
        }
        symlink("file", path("foreign")).expect("ours");
        lchown(path("foreign"), Some(OTHER), None).expect("root");
        fs::write(path("theirs"), "text").expect("ours");
        chown(path("theirs"), Some(OTHER), None).expect("root");
        rustix::fs::mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("ours");
        symlink("/dev/zero", path("device")).expect("ours");
        for (name, reason) in [
            ("foreign", "a link of user 65534"),
            ("theirs", "belongs to user 65534"),
            ("pipe", "not a regular file"),
            ("device", "not a regular file"),
            (".", "not a regular file"),
        ] {
            let error = open_trusted(&path(name)).expect_err(name).to_string();
            assert!(error.contains(reason), "{name}: {error}");
        }
    }
}
