//! Places of files that heapbpf creates, replaces or writes to. Others can exchange what a name leads to at any time, and heapbpf is
//! mostly root: so paths are walked from one open folder to the next, without links of other users, and what was opened is judged,
//! not its name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::invoker;

/// Links that are followed on the way to one place: as many as the kernel follows (`MAXSYMLINKS` in include/linux/namei.h).
const LINKS_MAX: u32 = 40;

/// A name in an open folder.
#[derive(Debug)]
pub(crate) struct Place {
    folder: OwnedFd,
    name: OsString,
    /// All folders on the way belong to root, this process's user or the user who invoked it.
    is_ours: bool,
    links_left: u32,
}

/// What is at a place.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    /// A regular file, or a link that is no way to a device or pipe. It can be replaced.
    File,
    Folder,
    /// A device or pipe, which heapbpf may write to.
    Stream(Stream),
}

/// An open device or named pipe, before it is opened for writing.
#[derive(Debug)]
pub(crate) struct Stream(OwnedFd);

impl Place {
    /// Fails for paths without a file's name, without their folders, and through links of other users.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        let start = openat(CWD, ".", FOLDER, Mode::empty())?;
        let is_ours = is_trusted(&fstat(&start)?);
        Walk { folder: start, is_ours, links_left: LINKS_MAX }.to(path)
    }

    /// Whether nobody else can exchange the folders on the way.
    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours
    }

    pub(crate) fn into_parts(self) -> (OwnedFd, OsString) {
        (self.folder, self.name)
    }

    /// Fails for what must not be written to: block devices, and devices and pipes of other users or in their folders.
    pub(crate) fn found(&self) -> io::Result<Found> {
        let entry = match openat(&self.folder, &self.name, ENTRY, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Found::Nothing),
            entry => entry?,
        };
        let stat = fstat(&entry)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(Found::File),
            FileType::Directory => Ok(Found::Folder),
            FileType::Symlink if !is_trusted(&stat) => Ok(Found::File),
            FileType::Symlink => self.behind(&entry),
            FileType::Fifo | FileType::CharacterDevice if self.is_ours && is_trusted(&stat) => {
                Ok(Found::Stream(Stream(entry)))
            }
            FileType::Fifo | FileType::CharacterDevice => Err(denied(
                "it is a pipe or device of another user, or in a folder of another user; name a regular file",
            )),
            FileType::BlockDevice => {
                Err(denied("it is a block device, whose content would be lost; name a regular file"))
            }
            _ => Err(denied("it is neither a regular file nor a pipe; name a regular file")),
        }
    }

    /// A link of a trusted user that leads to a file is replaced, as if it were the file.
    fn behind(&self, link: &OwnedFd) -> io::Result<Found> {
        let folder = self.folder.try_clone()?;
        let mut walk = Walk { folder, is_ours: self.is_ours, links_left: self.links_left };
        let target = match walk.read(link).and_then(|target| walk.to(Path::new(&target))) {
            Ok(target) => target,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::File),
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => return Ok(Found::Folder),
            Err(error) => return Err(error),
        };
        Ok(match target.found()? {
            Found::Nothing | Found::File => Found::File,
            other => other,
        })
    }

    /// Whether a file at this place may be written to: a read-only file must not be replaced either.
    pub(crate) fn check_writable(&self) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match openat(&self.folder, &self.name, flags, Mode::empty()) {
            // A link.
            Ok(_) | Err(Errno::LOOP | Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Stream {
    /// `None` for a named pipe without a reader.
    pub(crate) fn open(&self) -> io::Result<Option<File>> {
        match self.open_with(OFlags::NONBLOCK) {
            Err(Errno::NXIO) => Ok(None),
            opened => {
                let file = opened?;
                fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
                Ok(Some(file.into()))
            }
        }
    }

    /// Waits for a reader of a named pipe.
    pub(crate) fn open_when_read(&self) -> io::Result<File> {
        Ok(self.open_with(OFlags::empty())?.into())
    }

    /// Opens what was judged, whatever its name leads to now.
    fn open_with(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        openat(CWD, path, flags | OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Walk {
    folder: OwnedFd,
    is_ours: bool,
    links_left: u32,
}

impl Walk {
    fn to(mut self, path: &Path) -> io::Result<Place> {
        // A path with a slash at its end names a directory.
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let no_file = || io::Error::new(io::ErrorKind::IsADirectory, "it is a directory; name a file in it");
        let name = name.ok_or_else(no_file)?;
        self.enter(path.parent().unwrap_or(Path::new("")))?;
        Ok(Place { folder: self.folder, name: name.to_owned(), is_ours: self.is_ours, links_left: self.links_left })
    }

    fn enter(&mut self, path: &Path) -> io::Result<()> {
        for component in path.components() {
            match component {
                Component::Prefix(_) | Component::CurDir => {}
                Component::RootDir => self.enter_folder(openat(CWD, "/", FOLDER, Mode::empty())?, true)?,
                Component::ParentDir => {
                    let parent = openat(&self.folder, "..", FOLDER, Mode::empty())?;
                    self.enter_folder(parent, self.is_ours)?;
                }
                Component::Normal(name) => self.enter_name(name)?,
            }
        }
        Ok(())
    }

    fn enter_name(&mut self, name: &OsStr) -> io::Result<()> {
        let entry = openat(&self.folder, name, ENTRY, Mode::empty())?;
        let stat = fstat(&entry)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => self.enter_folder(entry, self.is_ours),
            FileType::Symlink if is_trusted(&stat) => {
                let target = self.read(&entry)?;
                self.enter(Path::new(&target))
            }
            FileType::Symlink => Err(denied(&format!(
                "`{}` on the way is a link of user {}, who may lead it elsewhere; name the folder itself",
                name.display(),
                stat.st_uid
            ))),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn enter_folder(&mut self, folder: OwnedFd, is_ours: bool) -> io::Result<()> {
        self.is_ours = is_ours && is_trusted(&fstat(&folder)?);
        self.folder = folder;
        Ok(())
    }

    fn read(&mut self, link: &OwnedFd) -> io::Result<OsString> {
        self.links_left = self.links_left.checked_sub(1).ok_or(Errno::LOOP)?;
        Ok(OsStr::from_bytes(readlinkat(link, "", Vec::new())?.as_bytes()).to_owned())
    }
}

fn is_trusted(stat: &Stat) -> bool {
    let invoker = invoker::invoker().map(|(uid, _)| uid.as_raw());
    [Some(0), Some(geteuid().as_raw()), invoker].contains(&Some(stat.st_uid))
}

fn denied(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;

    use rustix::fs::mknodat;

    use super::*;

    /// A user that owns nothing of this test.
    const OTHER: u32 = 65534;

    struct Ground(tempfile::TempDir);

    impl Ground {
        fn new() -> Self {
            assert!(geteuid().is_root(), "changing owners requires root");
            Self(tempfile::tempdir().expect("temporary folder"))
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn folder(&self, name: &str, uid: u32) -> PathBuf {
            fs::create_dir(self.path(name)).expect("ours");
            chown(self.path(name), Some(uid), None).expect("root");
            self.path(name)
        }

        fn pipe(&self, name: &str, uid: u32) -> PathBuf {
            mknodat(CWD, self.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("ours");
            chown(self.path(name), Some(uid), None).expect("root");
            self.path(name)
        }

        fn link(&self, name: &str, target: &Path, uid: u32) -> PathBuf {
            symlink(target, self.path(name)).expect("ours");
            std::os::unix::fs::lchown(self.path(name), Some(uid), None).expect("root");
            self.path(name)
        }
    }

    fn found(path: &Path) -> io::Result<Found> {
        Place::find(path)?.found()
    }

    #[track_caller]
    fn assert_denied(path: &Path, part: &str) {
        let error = found(path).expect_err("not ours");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn files_and_what_is_not_there_can_be_replaced() {
        let ground = Ground::new();
        fs::write(ground.path("file"), "").expect("ours");
        assert!(matches!(found(&ground.path("file")), Ok(Found::File)));
        assert!(matches!(found(&ground.path("none")), Ok(Found::Nothing)));
        assert!(matches!(found(&ground.path("")), Err(error) if error.kind() == io::ErrorKind::IsADirectory));
        assert!(matches!(found(ground.0.path()), Ok(Found::Folder)));
        assert_eq!(found(&ground.path("none/file")).expect_err("no folder").kind(), io::ErrorKind::NotFound);
        assert_eq!(found(&ground.path("file/file")).expect_err("no folder").kind(), io::ErrorKind::NotADirectory);
        // Also in a folder of another user, whose file this becomes.
        ground.folder("other", OTHER);
        assert!(matches!(found(&ground.path("other/file")), Ok(Found::Nothing)));
    }

    #[test]
    fn links_of_others_are_neither_followed_nor_on_the_way() {
        let ground = Ground::new();
        let folder = ground.folder("folder", 0);
        let pipe = ground.pipe("pipe", 0);
        let ours = ground.link("ours", &folder, 0);
        assert!(matches!(found(&ours.join("../folder/./file")), Ok(Found::Nothing)));
        assert_denied(&ground.link("theirs", &folder, OTHER).join("file"), "link of user 65534");
        // The link itself would be replaced.
        assert!(matches!(found(&ground.link("to-pipe", &pipe, OTHER)), Ok(Found::File)));
        assert!(matches!(found(&ground.link("own", &pipe, 0)), Ok(Found::Stream(_))));
        assert!(matches!(found(&ground.link("to-nothing", &ground.path("none"), 0)), Ok(Found::File)));
        let ring = ground.link("ring", &ground.path("ring"), 0);
        assert_eq!(found(&ring).expect_err("endless").raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(found(&ring.join("x")).expect_err("endless").raw_os_error(), Some(Errno::LOOP.raw_os_error()));
    }

    #[test]
    fn pipes_and_devices_are_written_to_only_if_nobody_else_can_exchange_them() {
        let ground = Ground::new();
        assert!(matches!(found(&ground.pipe("own", 0)), Ok(Found::Stream(_))));
        assert!(matches!(found(Path::new("/dev/null")), Ok(Found::Stream(_))));
        assert_denied(&ground.pipe("theirs", OTHER), "another user");
        ground.folder("folder", OTHER);
        ground.pipe("folder/pipe", 0);
        assert_denied(&ground.path("folder/pipe"), "another user");
        assert_denied(&ground.path("folder/../own"), "another user");
        let link = ground.link("to-folder", &ground.path("folder/pipe"), 0);
        assert_denied(&link, "another user");
        mknodat(CWD, ground.path("disk"), FileType::BlockDevice, Mode::RUSR, rustix::fs::makedev(7, 250))
            .expect("root");
        assert_denied(&ground.path("disk"), "block device");
    }

    #[test]
    fn a_pipe_is_opened_that_was_judged() {
        let ground = Ground::new();
        let path = ground.pipe("pipe", 0);
        let Ok(Found::Stream(stream)) = found(&path) else { panic!("it is a pipe") };
        assert!(stream.open().expect("it may be opened").is_none(), "it has no reader");
        let reader = openat(CWD, &path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).expect("ours");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "precious").expect("ours");
        let writer = stream.open().expect("it may be opened").expect("it has a reader");
        rustix::io::write(&writer, b"text").expect("there is room");
        let mut text = [0; 8];
        assert_eq!(rustix::io::read(&reader, &mut text), Ok(4));
        assert_eq!(fs::read_to_string(&path).expect("ours"), "precious");
    }
}
