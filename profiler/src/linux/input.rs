//! Opens input files that the user names. Named pipes without a writer time out; sizes are limited.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FsWord, Mode, OFlags, fcntl_setfl, fstatfs, open as open_at};
use rustix::io::Errno;
use rustix::pipe::{SpliceFlags, pipe, tee};

/// Time limit for a named pipe to get a writer.
const WRITER_WAIT: Duration = Duration::from_secs(10);

const WRITER_PERIOD: Duration = Duration::from_millis(50);

/// `PIPEFS_MAGIC` in include/uapi/linux/magic.h: file system of unnamed pipes, such as those of `<(command)`.
const PIPEFS_MAGIC: FsWord = 0x5049_5045;

/// Opens a file for reading. Fails for directories, and for named pipes without a writer within ten seconds.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Without `NONBLOCK`, opening a named pipe waits for a writer.
    let file = File::from(open_at(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?);
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

/// Waits until a named pipe is open for writing, or has data.
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

/// An empty pipe with a writer counts as one byte.
fn empty(error: Errno) -> Result<usize, Errno> {
    if error == Errno::AGAIN { Ok(1) } else { Err(error) }
}

/// Reads a text file. Fails if it has more than `bytes_max` bytes or is not UTF-8.
pub(crate) fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        let reason = format!("it exceeds the limit of {}", bytesize::ByteSize(bytes_max));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(text)
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
