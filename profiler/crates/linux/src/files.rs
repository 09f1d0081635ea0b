//! Files that the user names. An output file has no name until it is complete: when the disk is full, the old file is kept.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FsWord, Mode, OFlags, fcntl_setfl, fstatfs, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, pipe, tee};

use super::place::Place;

/// Prefix of temporary names.
pub const TEMPORARY_PREFIX: &str = ".heapbpf-";

const WRITER_WAIT: Duration = Duration::from_secs(10);

const WRITER_PERIOD: Duration = Duration::from_millis(50);

/// `PIPEFS_MAGIC` in include/uapi/linux/magic.h: file system of unnamed pipes, such as those of `<(command)`.
const PIPEFS_MAGIC: FsWord = 0x5049_5045;

/// Opens a file for reading. Fails for directories, and for named pipes without a writer within ten seconds.
pub fn open(path: &Path) -> io::Result<File> {
    // Without `NONBLOCK`, opening a named pipe waits for a writer.
    let file = File::from(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory; name a file in it"));
    }
    if kind.is_fifo() && fstatfs(&file)?.f_type != PIPEFS_MAGIC {
        await_writer(&file)?;
    }
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

fn await_writer(file: &File) -> io::Result<()> {
    let (_reader, copy) = pipe()?;
    let deadline = Instant::now() + WRITER_WAIT;
    // `tee` consumes nothing, and distinguishes a pipe without a writer (0) from an empty one (`EAGAIN`).
    while tee(file, &copy, 1, SpliceFlags::NONBLOCK).or_else(empty)? == 0 {
        if Instant::now() >= deadline {
            let text = "it is a named pipe without a writer; start its writer first";
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        thread::sleep(WRITER_PERIOD);
    }
    Ok(())
}

/// Result of `tee` on an empty pipe: with a writer, it counts as one byte.
fn empty(error: Errno) -> Result<usize, Errno> {
    if error == Errno::AGAIN { Ok(1) } else { Err(error) }
}

pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
    String::from_utf8(read(path, bytes_max)?).map_err(invalid)
}

/// Reads a file. Fails if it is larger than `bytes_max`.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let reason = format!("it exceeds the limit of {}", bytesize::ByteSize(bytes_max));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// A file that is being written. Dropping it without [`commit`](Self::commit) leaves an older file as it was.
#[derive(Debug)]
pub struct Replacement {
    folder: OwnedFd,
    name: OsString,
    file: File,
    /// Temporary name on file systems without unnamed files (`O_TMPFILE`: NFS, FUSE, overlayfs before 6.3).
    temporary: Option<OsString>,
}

impl Replacement {
    /// Creates the file. `mode` is reduced by the umask. A symbolic link at the path is not followed.
    pub fn create(path: &Path, mode: u32) -> io::Result<Self> {
        Self::create_at(Place::find(path)?, mode)
    }

    pub fn create_at(place: Place, mode: u32) -> io::Result<Self> {
        let (folder, name) = place.into_parts();
        let mode = Mode::from_raw_mode(mode);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match openat(&folder, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => Ok(Self { folder, name, file: file.into(), temporary: None }),
            // Older kernels treat the flag as `O_DIRECTORY`.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let open = |name: &OsStr| openat(&folder, name, flags | OFlags::CREATE | OFlags::EXCL, mode);
                let (file, temporary) = under_free_name(open)?;
                Ok(Self { folder, name, file: file.into(), temporary: Some(temporary) })
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, replacing an existing file. On errors, the existing file is kept.
    pub fn commit(mut self) -> io::Result<File> {
        if self.temporary.is_none() {
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let link = |name: &OsStr| linkat(CWD, &own, &self.folder, name, AtFlags::SYMLINK_FOLLOW);
            match link(&self.name) {
                Ok(()) => return self.file.try_clone(),
                // `linkat` cannot replace a file, `renameat` can.
                Err(Errno::EXIST) => self.temporary = Some(under_free_name(link)?.1),
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(temporary) = &self.temporary {
            renameat(&self.folder, temporary, &self.folder, &self.name)?;
            self.temporary = None;
        }
        self.file.try_clone()
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = unlinkat(&self.folder, temporary, AtFlags::empty());
        }
    }
}

fn under_free_name<T>(mut create: impl FnMut(&OsStr) -> rustix::io::Result<T>) -> io::Result<(T, OsString)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!("{TEMPORARY_PREFIX}{}-{number}", std::process::id()));
        match create(&name) {
            Ok(created) => return Ok((created, name)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn files_are_read_up_to_a_limit() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("text");
        std::fs::write(&path, "ten bytes.").expect("ours");
        assert_eq!(read_text(&path, 10).expect("it fits"), "ten bytes.");
        assert_eq!(read_text(&path, 9).expect_err("too long").kind(), io::ErrorKind::FileTooLarge);
        let error = read_text(Path::new("/dev/zero"), 1 << 20).expect_err("endless");
        assert!(error.to_string().contains("limit of 1.0 MiB"), "{error}");
        assert_eq!(open(folder.path()).expect_err("a directory").kind(), io::ErrorKind::IsADirectory);
        assert_eq!(open(&folder.path().join("none")).expect_err("missing").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_named_pipe_with_a_writer_is_read() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("ours");
        let writer = thread::spawn({
            let path = path.clone();
            move || File::options().write(true).open(path)?.write_all(b"text")
        });
        assert_eq!(read_text(&path, 100).expect("it has a writer"), "text");
        writer.join().expect("no panic").expect("it has a reader");
    }

    #[test]
    fn opening_a_named_pipe_waits_for_a_slow_writer() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("ours");
        let (opened, is_open) = std::sync::mpsc::channel();
        let reader = thread::spawn({
            let path = path.clone();
            move || {
                let mut file = open(&path).expect("it has a writer");
                opened.send(()).expect("the receiver waits");
                let mut text = String::new();
                file.read_to_string(&mut text).expect("it is text");
                text
            }
        });
        let mut writer = File::options().write(true).open(&path).expect("it has a reader");
        is_open.recv().expect("the reader does not wait for the first byte");
        writer.write_all(b"late").expect("it has a reader");
        drop(writer);
        assert_eq!(reader.join().expect("no panic"), "late");
    }
}

#[cfg(test)]
mod replacement_tests {
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn write(path: &Path, text: &str) -> Replacement {
        let replacement = Replacement::create(path, 0o600).expect("the folder is ours");
        replacement.file().write_all(text.as_bytes()).expect("there is room");
        replacement
    }

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(folder).expect("ours").map(|entry| entry.expect("ours").file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_file_appears_complete_or_not_at_all() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("file");
        let first = write(&path, "first");
        assert_eq!(names(folder.path()), [""; 0], "no name yet");
        first.commit().expect("committed");
        assert_eq!(fs::read_to_string(&path).expect("there"), "first");
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        drop(write(&path, "not wanted"));
        assert_eq!(fs::read_to_string(&path).expect("there"), "first");
        write(&path, "second").commit().expect("committed");
        assert_eq!(fs::read_to_string(&path).expect("there"), "second");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn symbolic_links_are_replaced_and_not_followed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (path, precious) = (folder.path().join("file"), folder.path().join("precious"));
        fs::write(&precious, "precious").expect("ours");
        symlink(&precious, &path).expect("ours");
        write(&path, "new").commit().expect("committed");
        assert_eq!(fs::read_to_string(&precious).expect("there"), "precious");
        assert_eq!(fs::read_to_string(&path).expect("there"), "new");
        assert!(path.symlink_metadata().expect("there").is_file());
    }

    #[test]
    fn a_file_with_a_temporary_name_is_removed_unless_committed() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("file");
        let named = |text: &str| {
            let mut replacement = write(&path, text);
            // Simulates a file system without unnamed files.
            let name = OsString::from(".heapbpf-test");
            replacement.file = File::create_new(folder.path().join(&name)).expect("ours");
            replacement.file.write_all(text.as_bytes()).expect("there is room");
            replacement.temporary = Some(name);
            replacement
        };
        drop(named("not wanted"));
        assert_eq!(names(folder.path()), [""; 0]);
        named("wanted").commit().expect("committed");
        assert_eq!(fs::read_to_string(&path).expect("there"), "wanted");
        assert_eq!(names(folder.path()), ["file"]);
    }
}
