//! Opens files that targets name: debug files, maps of generated code, sources. A process of its own does that, with the rights of the
//! target's user, so a report shows nothing that this user could not read; a file system that never answers stops that process
//! alone. Files of other machines and users (NFS, FUSE) come as copies, which can always be read.

mod serve;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tracing::debug;

#[cfg(not(test))]
use crate::linux::companion::Companion;
use crate::linux::companion::{Channel, Message};
use crate::linux::rights::Rights;

pub use serve::serve;

/// The hidden command of the process.
pub const COMMAND: &str = "reader";
/// Within this time, a file system answers. Local ones do in microseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Slowest transfer of a copy, in bytes per second.
const COPY_RATE_MIN: u64 = 16 << 20;
/// After this time, a folder that did not answer is tried again.
const TRIES_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Maximum number of readers at a time, one for the rights of each user.
const READERS_MAX: usize = 8;
const ANSWER_BYTES_MAX: usize = 256;
const REQUEST_BYTES_MAX: usize = 1 << 13;

/// What is to be opened, beneath a root directory that links cannot leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a Path,
    /// The path's last part may be a link.
    pub(crate) follows: bool,
    /// The file must belong to one of these users.
    pub(crate) owners: Option<[u32; 2]>,
    pub(crate) bytes_max: u64,
}

/// A regular file, opened for reading.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// Of a copy: what it is a copy of.
    pub(crate) original: Option<Original>,
}

/// The file that was copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Original {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size_bytes: u64,
    /// Seconds and nanoseconds since the Unix epoch.
    pub(crate) modified: (i64, i64),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("its file system did not answer within {} s", ANSWERS_WITHIN.as_secs())]
    Silent,
    #[error("not a regular file")]
    NotRegular,
    #[error("the file exceeds the size limit")]
    TooLarge,
    #[error("it, or a link to it, belongs to another user")]
    Foreign,
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    path: Vec<u8>,
    follows: bool,
    owners: Option<[u32; 2]>,
    bytes_max: u64,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Opened,
    /// A copy of so many bytes follows.
    Copying(u64),
    Copied(Original),
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Failure {
    NotRegular,
    TooLarge,
    Foreign,
    /// An error number.
    System(i32),
}

impl From<Failure> for ReadError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotRegular => Self::NotRegular,
            Failure::TooLarge => Self::TooLarge,
            Failure::Foreign => Self::Foreign,
            Failure::System(number) => Self::Io(io::Error::from_raw_os_error(number)),
        }
    }
}

static READERS: LazyLock<Mutex<Readers>> = LazyLock::new(Mutex::default);

/// Opens a file with these rights. Takes at most a second, plus the time of a copy.
pub(crate) fn open(rights: &Rights, root: &File, wanted: Wanted<'_>) -> Result<Opened, ReadError> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner).open(rights, root, wanted)
}

/// Ends when it is dropped.
#[derive(Debug)]
struct Reader {
    #[cfg(not(test))]
    process: Companion,
    /// Unit tests cannot start heapbpf. Rights are those of a thread, so this has others than its process.
    #[cfg(test)]
    thread: Channel,
}

#[cfg(not(test))]
impl Reader {
    fn start() -> io::Result<Self> {
        Ok(Self { process: Companion::start(COMMAND)? })
    }

    fn channel(&self) -> io::Result<&Channel> {
        self.process.channel().ok_or_else(lost)
    }

    fn abandon(self) {
        self.process.abandon();
    }
}

#[cfg(test)]
impl Reader {
    fn start() -> io::Result<Self> {
        let (thread, theirs) = Channel::pair()?;
        std::thread::spawn(move || serve::answer_requests(&theirs));
        Ok(Self { thread })
    }

    fn channel(&self) -> io::Result<&Channel> {
        Ok(&self.thread)
    }

    fn abandon(self) {}
}

#[derive(Debug, Default)]
struct Readers {
    running: HashMap<Rights, Reader>,
    /// Folders that did not answer, by their root directory and path.
    silent: HashMap<(u64, u64, PathBuf), Instant>,
}

impl Readers {
    fn open(&mut self, rights: &Rights, root: &File, wanted: Wanted<'_>) -> Result<Opened, ReadError> {
        let metadata = root.metadata()?;
        let folder = wanted.path.parent().unwrap_or(wanted.path).to_owned();
        let place = (metadata.dev(), metadata.ino(), folder);
        if self.silent.get(&place).is_some_and(|since| since.elapsed() < TRIES_AGAIN_AFTER) {
            return Err(ReadError::Silent);
        }
        let reader = match self.running.remove(rights) {
            Some(reader) => reader,
            None => {
                if self.running.len() >= READERS_MAX {
                    self.running.clear();
                }
                start(rights)?
            }
        };
        let opened = ask(&reader, root, wanted);
        match opened {
            Err(ReadError::Silent) => {
                debug!("`{}` does not answer", wanted.path.display());
                self.silent.insert(place, Instant::now());
                reader.abandon();
            }
            // It has exited, or answers what was not asked.
            Err(ReadError::Io(ref error)) if error.raw_os_error().is_none() => drop(reader),
            _ => {
                self.running.insert(rights.clone(), reader);
            }
        }
        opened
    }
}

fn start(rights: &Rights) -> io::Result<Reader> {
    let reader = Reader::start()?;
    reader.channel()?.send_value(rights, &[])?;
    Ok(reader)
}

fn ask(reader: &Reader, root: &File, wanted: Wanted<'_>) -> Result<Opened, ReadError> {
    let channel = reader.channel()?;
    let Wanted { path, follows, owners, bytes_max } = wanted;
    let request = Request { path: path.as_os_str().as_bytes().to_vec(), follows, owners, bytes_max };
    channel.send_value(&request, &[root.as_fd()]).map_err(|_| lost())?;
    let mut within = ANSWERS_WITHIN;
    loop {
        let deadline = Instant::now() + within;
        let wait = || match channel.readable(deadline.saturating_duration_since(Instant::now())) {
            Ok(true) => Ok(()),
            Ok(false) if Instant::now() < deadline => Err(io::ErrorKind::Interrupted.into()),
            Ok(false) => Err(io::ErrorKind::TimedOut.into()),
            Err(error) => Err(error),
        };
        let message = loop {
            match channel.receive_while(ANSWER_BYTES_MAX, wait) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(ReadError::Silent),
                received => break received.map_err(|_| lost())?.ok_or_else(lost)?,
            }
        };
        let Message { bytes, descriptors } = message;
        let file = |descriptors: Vec<OwnedFd>| descriptors.into_iter().next().map(File::from).ok_or_else(lost);
        match postcard::from_bytes(&bytes).map_err(|_| lost())? {
            Answer::Opened => return Ok(Opened { file: file(descriptors)?, original: None }),
            Answer::Copied(original) => return Ok(Opened { file: file(descriptors)?, original: Some(original) }),
            Answer::Copying(bytes) => within = ANSWERS_WITHIN + Duration::from_secs(bytes / COPY_RATE_MIN),
            Answer::Failed(failure) => return Err(failure.into()),
        }
    }
}

/// Not an error of the system's.
fn lost() -> io::Error {
    io::Error::other("the reader of files has exited")
}

#[cfg(test)]
mod tests;
