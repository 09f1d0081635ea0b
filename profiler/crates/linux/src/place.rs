//! Places of files that heapbpf creates, replaces, removes or writes to. Other users can exchange the file behind a name at any
//! time, and heapbpf is mostly root. So a place is a name in a folder that was reached as [`Walk`] does, and the opened file is
//! judged, not its name.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fcntl_getfl, fcntl_setfl, fstat, makedev, openat, unlinkat,
};
use rustix::io::Errno;

use super::walk::{Walk, kind};

/// Folders whose entries are the open files of heapbpf itself.
const DESCRIPTORS: [&str; 2] = ["/dev/fd", "/proc/self/fd"];
const STANDARD_ERROR: &str = "/dev/stderr";

/// A name in an open folder.
#[derive(Debug)]
pub struct Place {
    folder: Walk,
    name: OsString,
}

/// Kind of the file at a place.
#[derive(Debug)]
pub enum Found {
    Nothing,
    /// A regular file, or a link that does not lead to a device or pipe. It can be replaced.
    File,
    Folder,
    /// A device or pipe, which heapbpf may write to.
    Stream(Stream),
}

/// An open device, named pipe or file of heapbpf's, before it is opened for writing.
#[derive(Debug)]
pub struct Stream(OwnedFd);

impl Place {
    /// Finds a place. Fails for paths without a file's name, without their folders, and through links of other users.
    pub fn find(path: &Path) -> io::Result<Self> {
        Self::on(Walk::start()?, path)
    }

    pub(super) fn new(folder: Walk, name: OsString) -> Self {
        Self { folder, name }
    }

    fn on(mut walk: Walk, path: &Path) -> io::Result<Self> {
        // A path with a slash at its end names a directory.
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let no_file = || io::Error::new(io::ErrorKind::IsADirectory, "it is a directory; name a file in it");
        let name = name.ok_or_else(no_file)?;
        walk.enter_folder(path.parent().unwrap_or(Path::new("")), true)?;
        Ok(Self::new(walk, name.to_owned()))
    }

    /// Whether no other user can exchange the folders on the way.
    pub(crate) fn is_ours(&self) -> bool {
        self.folder.is_ours()
    }

    pub(super) fn into_parts(self) -> (OwnedFd, OsString) {
        (self.folder.into_place(), self.name)
    }

    /// A path to the place through the open folder, whatever the folder's own path leads to now.
    pub(super) fn own_path(&self) -> OsString {
        let mut path = OsString::from(format!("/proc/self/fd/{}/", self.folder.as_fd().as_raw_fd()));
        path.push(&self.name);
        path
    }

    /// The file at the place, as a handle that cannot be read or written; a link is not followed.
    pub fn entry(&self) -> io::Result<Option<File>> {
        match self.folder.entry(&self.name) {
            Err(Errno::NOENT) => Ok(None),
            entry => Ok(Some(entry?.into())),
        }
    }

    /// Kind of the file at the place. Fails for files that must not be written to: block devices, and devices and pipes of other
    /// users or in their folders.
    pub fn found(&self) -> io::Result<Found> {
        let Some(entry) = self.entry()?.map(OwnedFd::from) else { return Ok(Found::Nothing) };
        let stat = fstat(&entry)?;
        match kind(&stat) {
            FileType::RegularFile => Ok(Found::File),
            FileType::Directory => Ok(Found::Folder),
            FileType::Symlink if !self.folder.trusts(&stat) => Ok(Found::File),
            // A link of a trusted user that leads to a file is replaced, as if it were the file.
            FileType::Symlink => match self.behind(&entry).and_then(|place| place.found()) {
                Ok(Found::Nothing) => Ok(Found::File),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::File),
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => Ok(Found::Folder),
                found => found,
            },
            // In a container, the device can belong to a user of the machine outside.
            FileType::CharacterDevice if stat.st_rdev == makedev(1, 3) => Ok(Found::Stream(Stream(entry))),
            FileType::Fifo | FileType::CharacterDevice if self.is_ours() && self.folder.trusts(&stat) => {
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

    /// The place to which a link leads.
    fn behind(&self, link: &OwnedFd) -> io::Result<Self> {
        let mut walk = self.folder.try_clone()?;
        let target = walk.read(link)?;
        Self::on(walk, Path::new(&target))
    }

    /// Whether a file at this place may be written to: a read-only file must not be replaced either.
    pub fn check_writable(&self) -> io::Result<()> {
        let Some(entry) = self.entry()? else { return Ok(()) };
        // A link is replaced, not its target.
        if kind(&fstat(&entry)?) == FileType::RegularFile {
            reopen(&entry, OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK)?;
        }
        Ok(())
    }

    /// Creates a file. `mode` is reduced by the umask. Fails if there is anything at the place.
    pub fn create_new(&self, mode: u32) -> io::Result<File> {
        let flags =
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.folder, &self.name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Opens a regular file to append to it, and creates it if there is none. Follows links of trusted users.
    pub fn append(&self, mode: u32) -> io::Result<File> {
        let Some(entry) = self.entry()? else { return self.create_new(mode) };
        let stat = fstat(&entry)?;
        match kind(&stat) {
            FileType::Symlink if self.folder.trusts(&stat) => self.behind(&entry.into())?.append(mode),
            FileType::RegularFile if self.may_append(&stat) => {
                Ok(reopen(&entry, OFlags::WRONLY | OFlags::APPEND)?.into())
            }
            FileType::RegularFile => Err(denied(
                "it belongs to another user, is in a folder of another user, or has several names; name a new file",
            )),
            _ => Err(denied("it is not a regular file; name a new file")),
        }
    }

    /// Whether a regular file may be appended to. Other users can make a name in their folder, or in one of all users, lead to a
    /// file of heapbpf's user.
    fn may_append(&self, stat: &Stat) -> bool {
        self.is_ours() && self.folder.trusts(stat) && stat.st_nlink == 1
    }

    /// Removes the name, if it still leads to this file.
    pub fn remove(&self, file: &File) -> io::Result<()> {
        let Some(found) = self.entry()? else { return Ok(()) };
        let [found, file] = [fstat(&found)?, fstat(file)?];
        if (found.st_dev, found.st_ino) != (file.st_dev, file.st_ino) {
            return Ok(());
        }
        Ok(unlinkat(&self.folder, &self.name, AtFlags::empty())?)
    }
}

impl Stream {
    /// The open file of heapbpf that a path such as `/dev/fd/3` or `/dev/stderr` names: by its number, whatever the path leads
    /// to.
    pub fn of_descriptor(path: &Path) -> io::Result<Option<Self>> {
        let number = match DESCRIPTORS.iter().any(|known| path.parent() == Some(Path::new(known))) {
            true => path.file_name().and_then(OsStr::to_str).and_then(|number| number.parse::<u32>().ok()),
            false => (path == Path::new(STANDARD_ERROR)).then_some(2),
        };
        let open =
            |number| openat(CWD, format!("/proc/self/fd/{number}"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        Ok(number.map(open).transpose()?.map(Self))
    }

    /// Opens the stream for writing; `None` for a named pipe without a reader.
    pub fn open(&self) -> io::Result<Option<File>> {
        match reopen(&self.0, OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK) {
            Err(Errno::NXIO) if kind(&fstat(&self.0)?) == FileType::Fifo => Ok(None),
            opened => {
                let file = opened?;
                fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
                Ok(Some(file.into()))
            }
        }
    }

    /// Opens the stream for writing, and waits for a reader of a named pipe.
    pub fn open_when_read(&self) -> io::Result<File> {
        Ok(reopen(&self.0, OFlags::WRONLY | OFlags::APPEND)?.into())
    }
}

/// Opens the file that was judged, whatever its name leads to now.
fn reopen(entry: impl AsFd, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", entry.as_fd().as_raw_fd());
    openat(CWD, path, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens the device that discards what is written to it.
pub(crate) fn null_device() -> io::Result<File> {
    match Place::find(Path::new("/dev/null"))?.found()? {
        Found::Stream(device) => device.open_when_read(),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

pub(super) fn denied(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, reason)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{chown, symlink};
    use std::path::PathBuf;

    use rustix::fs::mknodat;
    use rustix::process::geteuid;

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

    #[test]
    fn the_null_device_may_belong_to_any_user() {
        let ground = Ground::new();
        ground.folder("folder", OTHER);
        mknodat(CWD, ground.path("folder/null"), FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, makedev(1, 3))
            .expect("root");
        chown(ground.path("folder/null"), Some(OTHER), None).expect("root");
        assert!(matches!(found(&ground.path("folder/null")), Ok(Found::Stream(_))));
        rustix::io::write(null_device().expect("there is one"), b"text").expect("it takes all");
    }

    fn append(path: &Path) -> io::Result<()> {
        Place::find(path)?.append(0o600)?.write_all(b"text")
    }

    #[test]
    fn only_own_files_are_appended_to() {
        let ground = Ground::new();
        let folder = ground.folder("other", OTHER);
        let log = ground.path("log");
        for expected in ["text", "texttext"] {
            append(&log).expect("ours");
            assert_eq!(fs::read_to_string(&log).expect("ours"), expected);
        }
        append(&ground.link("own", &log, 0)).expect("our link");
        append(&ground.link("to-nothing", &ground.path("new"), 0)).expect("our link");
        assert_eq!(fs::read_to_string(ground.path("new")).expect("ours"), "text");
        append(&folder.join("new")).expect("there was nothing");
        fs::write(ground.path("theirs"), "").expect("ours");
        chown(ground.path("theirs"), Some(OTHER), None).expect("root");
        fs::hard_link(&log, ground.path("second")).expect("ours");
        ground.link("foreign", &ground.path("new"), OTHER);
        ground.pipe("pipe", 0);
        for (name, reason) in [
            ("other/new", "another user"),
            ("theirs", "another user"),
            ("second", "several names"),
            ("foreign", "not a regular file"),
            ("other", "not a regular file"),
            ("pipe", "not a regular file"),
        ] {
            let error = append(&ground.path(name)).expect_err(name).to_string();
            assert!(error.contains(reason), "{name}: {error}");
        }
        assert_eq!(fs::read_to_string(&log).expect("ours"), "texttexttext");
    }

    #[test]
    fn a_name_is_removed_if_it_leads_to_the_file() {
        let ground = Ground::new();
        let place = Place::find(&ground.path("file")).expect("ours");
        let file = place.create_new(0o600).expect("there was nothing");
        assert_eq!(place.create_new(0o600).expect_err("there it is").kind(), io::ErrorKind::AlreadyExists);
        fs::rename(ground.path("file"), ground.path("elsewhere")).expect("ours");
        ground.link("file", &ground.path("elsewhere"), OTHER);
        place.remove(&file).expect("it is kept");
        assert!(ground.path("file").is_symlink() && ground.path("elsewhere").exists());
        fs::rename(ground.path("elsewhere"), ground.path("file")).expect("ours");
        place.remove(&file).expect("ours");
        assert!(!ground.path("file").exists());
        place.remove(&file).expect("it is gone already");
    }

    #[test]
    fn open_files_are_named_by_their_number() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        for folder in DESCRIPTORS {
            let path = format!("{folder}/{}", writer.as_fd().as_raw_fd());
            let stream = Stream::of_descriptor(Path::new(&path)).expect("it is open").expect("a number");
            stream.open().expect("it is a pipe").expect("it has a reader").write_all(b"text").expect("it has a reader");
            let mut text = [0; 8];
            assert_eq!(rustix::io::read(&reader, &mut text), Ok(4));
        }
        Stream::of_descriptor(Path::new("/dev/fd/4000000")).expect_err("it is not open");
        for path in ["/dev/fd/x", "/dev/fd", "/dev/fd/../null", "/proc/self/fd2/1", "1"] {
            assert!(Stream::of_descriptor(Path::new(path)).expect("another name").is_none(), "{path}");
        }
    }
}
