//! Opens files that targets name, and files that they have mapped from file systems that other machines or programs serve (NFS,
//! FUSE). A separate process, the reader, does that with the rights of the target's user. So a report shows nothing that this
//! user could not read, and a file system that never answers stops that process alone. Files of such file systems come as copies,
//! which can always be read.

mod reach;
mod serve;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
#[cfg(not(test))]
use heapbpf_linux::companion::Companion;
use heapbpf_linux::companion::{Channel, Message};
use heapbpf_linux::proc::maps::Device;
use heapbpf_linux::rights::Rights;
use heapbpf_linux::{known, signals};
use serde::{Deserialize, Serialize};
use tracing::debug;

pub(crate) use reach::{Unanswered, reach};
pub use serve::serve;

/// The hidden command that runs the reader.
pub const COMMAND: &str = "reader";
/// Time within which a file system must answer. Local file systems answer in microseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Time within which a file system must answer once the user has interrupted heapbpf and waits for its end.
const ANSWERS_AT_END_WITHIN: Duration = Duration::from_millis(200);
/// Time between checks for interrupts.
const POLL: Duration = Duration::from_millis(50);
/// Slowest transfer of a copy, in bytes per second.
const COPY_RATE_MIN: u64 = 16 << 20;
/// Time within which an answer is not slow, apart from the time of a copy.
const SLOW: Duration = Duration::from_millis(100);
/// Time beyond [`SLOW`] that the answers of a place may take in total. A place that takes longer counts as one that does not
/// answer.
const DELAY_MAX: Duration = Duration::from_secs(3);
/// Time after which a place that did not answer is tried again. The time doubles after each further try.
const TRIES_AGAIN_AFTER: Duration = Duration::from_secs(60);
const TRIES_AGAIN_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of places that are remembered.
const PLACES_MAX: usize = 4096;
/// Number of folders below one root directory that may stay silent before all folders below it count as silent.
const SILENT_FOLDERS_MAX: usize = 3;
/// Maximum number of idle readers, one for the rights of each user.
const READERS_MAX: usize = 8;
/// Maximum size of a copy.
const COPY_BYTES_MAX: u64 = 256 << 20;
const ANSWER_BYTES_MAX: usize = 256;
const REQUEST_BYTES_MAX: usize = 1 << 13;

/// A file to be opened, beneath a root directory that links cannot leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a Path,
    /// Whether the path's last part may be a link.
    pub(crate) follows: bool,
    /// The users to one of whom the file must belong, if any.
    pub(crate) owners: Option<[u32; 2]>,
    pub(crate) bytes_max: u64,
}

/// A regular file, opened for reading.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    /// The file of which `file` is a copy, if it is one.
    pub(crate) original: Option<Original>,
}

/// A file that a target has mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mapped<'a> {
    /// A file that is not opened for reading (`O_PATH`).
    File(&'a File),
    /// A path beneath a root directory.
    At(&'a File, &'a Path),
}

/// A regular file that a target has mapped.
#[derive(Debug)]
pub(crate) enum Module {
    /// A file whose file system is local, and which can be read directly.
    Local(File),
    Distant {
        /// The copy; `None` if the file is larger than the copy may be.
        copy: Option<File>,
        original: Original,
        /// The file itself, which is not opened for reading (`O_PATH`).
        file: File,
    },
}

/// Identity and attributes of a file that the agent does not read itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Original {
    pub(crate) device: Device,
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
    #[error("the file was changed after it was opened")]
    Changed,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A request, which is sent with a descriptor: of the root directory, or of the file if there is no path.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Open { path: Vec<u8>, follows: bool, owners: Option<[u32; 2]>, bytes_max: u64 },
    Map { path: Option<Vec<u8>>, copy_bytes_max: u64 },
    Read { offset: u64, length: u64 },
    Identify { path: Vec<u8> },
    Reach { path: Vec<u8> },
    Touch { pid: Pid, address: u64 },
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The file is attached.
    Opened,
    /// A copy of this many bytes is being made; another answer follows.
    Copying(u64),
    /// A copy and the file itself are attached.
    Copied(Original),
    /// The file itself is attached; it is too large for a copy.
    Large(Original),
    /// The bytes are attached as a file in memory.
    Read(Original),
    Identified(Original),
    Reached,
    Touched,
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Failure {
    NotRegular,
    TooLarge,
    Foreign,
    /// The error number of a system call.
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

/// Opens a file with these rights. Takes at most a second, plus the time of a copy.
pub(crate) fn open(rights: &Rights, root: &File, wanted: Wanted<'_>) -> Result<Opened, ReadError> {
    let Wanted { path, follows, owners, bytes_max } = wanted;
    let request = Request::Open { path: bytes_of(path), follows, owners, bytes_max };
    match answer(Some(rights), &Place::folder_of(root, path)?, &request, root)? {
        (Answer::Opened, mut files) => Ok(Opened { file: files.pop().ok_or_else(lost)?, original: None }),
        (Answer::Copied(original), files) => {
            let copy = files.into_iter().next().ok_or_else(lost)?;
            Ok(Opened { file: copy, original: Some(original) })
        }
        _ => Err(lost().into()),
    }
}

/// Opens a mapped file with these rights, or with heapbpf's if `None`. Copies the file if it has at most this many bytes and its
/// file system is not local.
pub(crate) fn open_mapped(
    rights: Option<&Rights>,
    mapped: Mapped<'_>,
    copy_bytes_max: u64,
) -> Result<Module, ReadError> {
    let copy_bytes_max = copy_bytes_max.min(COPY_BYTES_MAX);
    let (given, place, path) = match mapped {
        Mapped::File(file) => (file, Place::of(file)?, None),
        Mapped::At(root, path) => (root, Place::folder_of(root, path)?, Some(bytes_of(path))),
    };
    let (answer, files) = answer(rights, &place, &Request::Map { path, copy_bytes_max }, given)?;
    let mut files = files.into_iter();
    let mut next = || files.next().ok_or_else(lost);
    Ok(match answer {
        Answer::Opened => Module::Local(next()?),
        Answer::Copied(original) => Module::Distant { copy: Some(next()?), original, file: next()? },
        Answer::Large(original) => Module::Distant { copy: None, original, file: next()? },
        _ => return Err(lost().into()),
    })
}

/// Reads a part of a file that is not opened (`O_PATH`). Returns fewer bytes only at the file's end.
pub(crate) fn read(
    rights: Option<&Rights>,
    file: &File,
    original: &Original,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, ReadError> {
    let place = Place::of(file)?;
    match answer(rights, &place, &Request::Read { offset, length }, file)? {
        (Answer::Read(found), _) if found != *original => Err(ReadError::Changed),
        (Answer::Read(_), files) => {
            let mut bytes = Vec::new();
            files.into_iter().next().ok_or_else(lost)?.take(length).read_to_end(&mut bytes)?;
            Ok(bytes)
        }
        _ => Err(lost().into()),
    }
}

/// Returns which regular file a path leads to. `device` is that of the path's folder, if known.
pub(crate) fn identify(
    rights: &Rights,
    root: &File,
    path: &Path,
    device: Option<Device>,
) -> Result<Original, ReadError> {
    let place = device.map_or_else(|| Place::folder_of(root, path), |device| Ok(Place::Device(device)))?;
    match answer(Some(rights), &place, &Request::Identify { path: bytes_of(path) }, root)? {
        (Answer::Identified(original), _) => Ok(original),
        _ => Err(lost().into()),
    }
}

/// Makes the kernel map the page at an address of a process, from this file (`O_PATH`). The reader has the rights of heapbpf.
pub(crate) fn touch(file: &File, pid: Pid, address: u64) -> Result<(), ReadError> {
    let place = Place::of(file)?;
    match answer(None, &place, &Request::Touch { pid, address }, file)? {
        (Answer::Touched, _) => Ok(()),
        _ => Err(lost().into()),
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// A reader process, which ends when this is dropped.
#[derive(Debug)]
struct Reader {
    #[cfg(not(test))]
    process: Companion,
    /// A thread in place of the process, since unit tests cannot start heapbpf. Rights belong to a thread, so this one can have
    /// others than the process.
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

    /// Does not wait for the reader's end, which a file system may delay.
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

/// A place of files, which counts as answering or silent as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Device(Device),
    /// A folder beneath a root directory.
    Folder(Root, PathBuf),
}

type Root = (Device, u64);

impl Place {
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self::Device(Device::of(&known::device_of(file)?)))
    }

    fn folder_of(root: &File, path: &Path) -> io::Result<Self> {
        let root = known::of(root).or_else(|_| known::device_of(root))?;
        Ok(Self::Folder((Device::of(&root), root.stx_ino), path.parent().unwrap_or(path).to_owned()))
    }

    fn is_below(&self, root: Root) -> bool {
        matches!(self, Self::Folder(of, _) if *of == root)
    }
}

#[derive(Debug)]
struct Silence {
    since: Instant,
    pause: Duration,
}

impl Silence {
    fn is_over(&self) -> bool {
        self.since.elapsed() >= self.pause
    }
}

/// The idle readers, and what is known of places. It is not locked while a reader works: one file system must not delay the
/// others.
#[derive(Debug, Default)]
struct Readers {
    /// Idle readers by the rights that they have taken on.
    idle: HashMap<Option<Rights>, Reader>,
    silent: HashMap<Place, Silence>,
    /// Time beyond that of answers that are not slow, in total for each place.
    delays: HashMap<Place, Duration>,
}

static READERS: LazyLock<Mutex<Readers>> = LazyLock::new(Mutex::default);

fn readers() -> MutexGuard<'static, Readers> {
    READERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Readers {
    fn is_silent(&self, place: &Place) -> bool {
        let is_silent = |place: &Place| self.silent.get(place).is_some_and(|silence| !silence.is_over());
        let siblings = |root: Root| self.silent.keys().filter(|other| other.is_below(root) && is_silent(other)).count();
        is_silent(place) || matches!(place, Place::Folder(root, _) if siblings(*root) >= SILENT_FOLDERS_MAX)
    }

    fn note_silence(&mut self, place: &Place) {
        let before = self.silent.remove(place);
        let pause = before.map_or(TRIES_AGAIN_AFTER, |before| (before.pause * 2).min(TRIES_AGAIN_AFTER_MAX));
        if self.silent.len() >= PLACES_MAX {
            self.silent.clear();
        }
        self.delays.remove(place);
        self.silent.insert(place.clone(), Silence { since: Instant::now(), pause });
    }

    fn note_delay(&mut self, place: &Place, delay: Duration) {
        if delay.is_zero() {
            return;
        }
        if self.delays.len() >= PLACES_MAX {
            self.delays.clear();
        }
        let total = self.delays.entry(place.clone()).or_default();
        *total += delay;
        if *total > DELAY_MAX {
            debug!("{place:?} is too slow");
            self.note_silence(place);
        }
    }

    fn put_back(&mut self, rights: Option<&Rights>, reader: Reader) {
        if self.idle.len() >= READERS_MAX {
            self.idle.drain().for_each(|(_, reader)| reader.abandon());
        }
        if let Some(other) = self.idle.insert(rights.cloned(), reader) {
            other.abandon();
        }
    }
}

fn answer(
    rights: Option<&Rights>,
    place: &Place,
    request: &Request,
    given: &File,
) -> Result<(Answer, Vec<File>), ReadError> {
    let idle = {
        let mut readers = readers();
        if readers.is_silent(place) {
            return Err(ReadError::Silent);
        }
        readers.idle.remove(&rights.cloned())
    };
    let reader = idle.map_or_else(|| start(rights), Ok)?;
    let answered = ask(&reader, request, given);
    let mut readers = readers();
    match &answered {
        Err(ReadError::Silent) => {
            debug!("{place:?} does not answer");
            readers.note_silence(place);
            reader.abandon();
        }
        // The reader has exited, or sent an answer that cannot be understood.
        Err(ReadError::Io(error)) if error.raw_os_error().is_none() => reader.abandon(),
        Err(_) => readers.put_back(rights, reader),
        Ok(answered) => {
            readers.note_delay(place, answered.delay);
            readers.put_back(rights, reader);
        }
    }
    answered.map(|answered| (answered.answer, answered.files))
}

fn start(rights: Option<&Rights>) -> io::Result<Reader> {
    let reader = Reader::start()?;
    reader.channel()?.send_value(&rights, &[])?;
    Ok(reader)
}

struct Answered {
    answer: Answer,
    files: Vec<File>,
    delay: Duration,
}

fn ask(reader: &Reader, request: &Request, given: &File) -> Result<Answered, ReadError> {
    let channel = reader.channel()?;
    channel.send_value(request, &[given.as_fd()]).map_err(|_| lost())?;
    let began = Instant::now();
    let mut transfer = match request {
        Request::Read { length, .. } => time_of(*length),
        _ => Duration::ZERO,
    };
    loop {
        let since = Instant::now();
        let wait = || loop {
            let limit = if signals::interrupts() == 0 { ANSWERS_WITHIN + transfer } else { ANSWERS_AT_END_WITHIN };
            let left = limit.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if channel.readable(left.min(POLL))? {
                return Ok(());
            }
        };
        let message = match channel.receive_while(ANSWER_BYTES_MAX, wait) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(ReadError::Silent),
            received => received.map_err(|_| lost())?.ok_or_else(lost)?,
        };
        let Message { bytes, descriptors } = message;
        match postcard::from_bytes(&bytes).map_err(|_| lost())? {
            Answer::Copying(bytes) => transfer = time_of(bytes),
            Answer::Failed(failure) => return Err(failure.into()),
            answer => {
                let files = descriptors.into_iter().map(File::from).collect();
                return Ok(Answered { answer, files, delay: began.elapsed().saturating_sub(SLOW + transfer) });
            }
        }
    }
}

/// Returns the time of a copy or read of this many bytes at the slowest rate.
fn time_of(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / COPY_RATE_MIN)
}

/// Error for a reader that has exited. It has no error number, unlike errors of system calls.
fn lost() -> io::Error {
    io::Error::other("the reader of files has exited")
}

#[cfg(test)]
mod tests;
