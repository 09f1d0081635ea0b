//! Writes a recording: packs entries into blocks, and writes each with one call, so that the file consists of whole
//! blocks whenever this process ends. Keeps the file below its size limit by folding: a thread replays the older part
//! of the recording and writes the resulting state to a new file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use heapbpf_base::shown::Shown;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_linux::files::Replacement;
use thiserror::Error;

use super::block::{BlockWriter, FILE_HEADER_BYTES, Kind, check_header, file_header, read_block, read_up_to};
use super::entry::{FunctionStart, NamedLocation, Names};
use super::pack::Packer;
use super::read::{DamageReason, Reading};
use super::replay::{Entry, Replay};

/// Size at which a block is written, and age of its first entry at which it is written.
const BLOCK_RAW_BYTES: usize = 1 << 20;
pub(crate) const BLOCK_AGE_MAX: Duration = Duration::from_millis(400);
const NAMES_RAW_BYTES: usize = 1 << 20;
/// Mode of the file, for its owner only: recordings contain command lines and paths.
const MODE: u32 = 0o600;
const PART_BYTES: usize = 1 << 20;
/// Minimum of `--max-size`: some blocks and a fold must fit.
pub(crate) const SIZE_BYTES_MIN: u64 = 256 << 10;

#[derive(Debug, Error)]
#[error("the recording `{}` is incomplete: {reason}", Shown::of(path))]
pub struct WriteError {
    pub path: PathBuf,
    pub reason: WriteReason,
}

#[derive(Debug, Error)]
pub enum WriteReason {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(
        "the state of live blocks alone takes {}, more than `--max-size` {}; raise it, or sample less with a larger `--interval`",
        ByteSize(*.needed_bytes),
        ByteSize(*.size_bytes_max)
    )]
    Large { needed_bytes: u64, size_bytes_max: u64 },
    #[error("internal error: the writer thread panicked; please report it")]
    Panic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    pub path: PathBuf,
    pub size_bytes: u64,
    pub folds: u64,
}

pub struct Writer {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    size_bytes_max: Option<u64>,
    packer: Packer,
    blocks: BlockWriter,
    gathering: Option<Instant>,
    /// Positions of the ends of blocks, if the size is limited.
    block_ends: Vec<u64>,
    folding: Option<Folding>,
    folds: u64,
}

impl Writer {
    /// Creates a recording, replacing an existing file at once: a killed process leaves a recording. Fails if the path is not a
    /// regular file.
    pub fn create(path: &Path, size_bytes_max: Option<u64>) -> io::Result<Self> {
        let new = Replacement::create(path, MODE)?;
        new.file().write_all(&file_header())?;
        let file = new.commit()?;
        Ok(Self {
            path: path.to_owned(),
            file,
            size_bytes: file_header().len() as u64,
            size_bytes_max,
            packer: Packer::default(),
            blocks: BlockWriter::new()?,
            gathering: None,
            block_ends: Vec::new(),
            folding: None,
            folds: 0,
        })
    }

    /// Adds an entry, which is in the file after [`BLOCK_AGE_MAX`] if [`attend`](Self::attend) is called in time. Not usable
    /// after an error.
    pub fn add(&mut self, entry: &Entry) -> Result<(), WriteReason> {
        self.packer.add(entry);
        if self.packer.size_bytes() >= self.block_raw_bytes() { self.flush() } else { Ok(()) }
    }

    /// Size at which a block is written. A block is a small part of a limited file.
    fn block_raw_bytes(&self) -> usize {
        let part = self.size_bytes_max.and_then(|max| usize::try_from(max / 8).ok());
        part.map_or(BLOCK_RAW_BYTES, |part| part.min(BLOCK_RAW_BYTES))
    }

    pub fn due(&mut self) -> Option<Instant> {
        if !self.packer.is_empty() && self.gathering.is_none() {
            self.gathering = Some(Instant::now());
        }
        self.gathering.map(|since| since + BLOCK_AGE_MAX)
    }

    /// Completes a finished fold, and writes a block that is due.
    pub fn attend(&mut self) -> Result<(), WriteReason> {
        if self.folding.as_ref().is_some_and(|folding| folding.thread.is_finished()) {
            self.take_fold()?;
        }
        if self.due().is_some_and(|due| due <= Instant::now()) { self.flush() } else { Ok(()) }
    }

    pub fn flush(&mut self) -> Result<(), WriteReason> {
        self.gathering = None;
        if self.packer.is_empty() {
            return Ok(());
        }
        let bytes = self.packer.finish();
        self.write(Kind::ENTRIES, &bytes)
    }

    fn write(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), WriteReason> {
        let block = self.blocks.block(kind, false, bytes)?;
        self.make_room(block.len() as u64)?;
        self.append(&block)?;
        if let Some(max) = self.size_bytes_max {
            self.block_ends.push(self.size_bytes);
            if self.folding.is_none() && self.size_bytes > fold_at(max) {
                // The fold takes all but the latest three eighths of the limit.
                self.start_fold(max / 8 * 3)?;
            }
        }
        Ok(())
    }

    /// Writes a block wholly or not at all.
    fn append(&mut self, block: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(block) {
            // If this call fails too, readers detect the partial block.
            let _ = self.file.set_len(self.size_bytes);
            return Err(error);
        }
        self.size_bytes += block.len() as u64;
        Ok(())
    }

    fn make_room(&mut self, bytes: u64) -> Result<(), WriteReason> {
        let Some(max) = self.size_bytes_max else { return Ok(()) };
        while self.size_bytes + bytes > max {
            if self.folding.is_none() {
                let before = self.size_bytes;
                self.start_fold(0)?;
                self.take_fold()?;
                if self.size_bytes + bytes > max {
                    let needed_bytes = self.size_bytes.min(before) + bytes;
                    return Err(WriteReason::Large { needed_bytes, size_bytes_max: max });
                }
            } else {
                self.take_fold()?;
            }
        }
        Ok(())
    }

    /// Starts to fold all but the latest `keep_bytes`. The new file is created beside the current one.
    fn start_fold(&mut self, keep_bytes: u64) -> io::Result<()> {
        let until = self.size_bytes.saturating_sub(keep_bytes);
        let at = self.block_ends.partition_point(|&end| end <= until);
        let Some(&end) = at.checked_sub(1).and_then(|at| self.block_ends.get(at)) else { return Ok(()) };
        let (source, target) = (self.file.try_clone()?, Replacement::create(&self.path, MODE)?);
        let work = move || fold(&source, end, target);
        let thread = thread::Builder::new().name("heapbpf-fold".to_owned()).spawn(work)?;
        self.folding = Some(Folding { thread, end });
        Ok(())
    }

    fn take_fold(&mut self) -> Result<(), WriteReason> {
        let Some(Folding { thread, end }) = self.folding.take() else { return Ok(()) };
        let panicked = |_| io::Error::other("internal error: the folding thread panicked; please report it");
        let file = thread.join().map_err(panicked)??;
        let folded_bytes = file.file().metadata()?.len();
        let tail_bytes = self.size_bytes - end;
        let max = self.size_bytes_max.unwrap_or(u64::MAX);
        // A state that leaves no space for events would be rewritten again and again, so the current file is kept.
        if folded_bytes > fold_at(max) || folded_bytes + tail_bytes > max {
            return Err(WriteReason::Large { needed_bytes: folded_bytes, size_bytes_max: max });
        }
        io::copy(&mut Part { file: &self.file, at: end, end: self.size_bytes }, &mut file.file())?;
        file.file().set_permissions(self.file.metadata()?.permissions())?;
        self.file = file.commit()?;
        self.size_bytes = folded_bytes + tail_bytes;
        self.block_ends.retain(|&block_end| block_end > end);
        self.block_ends.iter_mut().for_each(|block_end| *block_end = *block_end - end + folded_bytes);
        self.block_ends.insert(0, folded_bytes);
        self.folds += 1;
        Ok(())
    }

    pub fn finish(mut self, names: &Names, end: MonotonicNanos) -> Result<Written, WriteReason> {
        self.flush()?;
        self.take_fold()?;
        for (kind, bytes) in name_blocks(names)? {
            self.write(kind, &bytes)?;
        }
        self.take_fold()?;
        let end = postcard::to_allocvec(&end).map_err(io::Error::other)?;
        let block = self.blocks.block(Kind::END, false, &end)?;
        self.make_room(block.len() as u64)?;
        self.append(&block)?;
        Ok(Written { path: self.path, size_bytes: self.size_bytes, folds: self.folds })
    }
}

/// Copies a recording, with `names` instead of its own.
pub(crate) fn with_names(recording: &mut impl Read, out: &mut impl Write, names: &Names) -> io::Result<()> {
    let malformed = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    check_header(&read_up_to(recording, FILE_HEADER_BYTES)?).map_err(|error| malformed(&error))?;
    out.write_all(&file_header())?;
    let mut blocks = BlockWriter::new()?;
    while let Some(block) = read_block(recording).map_err(|error| malformed(&error))? {
        match block.kind {
            Kind::ENTRIES | Kind::FOLD => out.write_all(&blocks.block(block.kind, block.goes_on, &block.bytes)?)?,
            Kind::END => {
                for (kind, bytes) in name_blocks(names)? {
                    out.write_all(&blocks.block(kind, false, &bytes)?)?;
                }
                out.write_all(&blocks.block(Kind::END, false, &block.bytes)?)?;
            }
            // Other blocks are replaced names, and blocks of a later version.
            _ => {}
        }
    }
    Ok(())
}

fn name_blocks(names: &Names) -> io::Result<Vec<(Kind, Vec<u8>)>> {
    let (starts, named): (Vec<_>, Vec<_>) =
        names.locations.iter().cloned().partition(|location| FunctionStart::of(location).is_some());
    let mut blocks = Vec::new();
    for part in parts(&named) {
        blocks.push((Kind::NAMES, postcard::to_allocvec(part).map_err(io::Error::other)?));
    }
    for part in parts(&starts) {
        let starts: Vec<FunctionStart> = part.iter().filter_map(FunctionStart::of).collect();
        blocks.push((Kind::FUNCTION_STARTS, postcard::to_allocvec(&starts).map_err(io::Error::other)?));
    }
    blocks.push((Kind::SYMBOLIZATION, serde_json::to_vec(&names.symbolization).map_err(io::Error::other)?));
    Ok(blocks)
}

/// Size from which on older entries are folded, with space for entries that are written meanwhile.
fn fold_at(size_bytes_max: u64) -> u64 {
    size_bytes_max / 4 * 3
}

fn parts(names: &[NamedLocation]) -> impl Iterator<Item = &[NamedLocation]> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |place: &&NamedLocation| {
            bytes += place.size_bytes();
            bytes <= NAMES_RAW_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (part, behind) = rest.split_at(count);
        rest = behind;
        (!part.is_empty()).then_some(part)
    })
}

struct Folding {
    thread: JoinHandle<io::Result<Replacement>>,
    end: u64,
}

fn fold(source: &File, end: u64, target: Replacement) -> io::Result<Replacement> {
    let part = Part { file: source, at: 0, end };
    let malformed = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let mut reading = Reading::new(io::BufReader::with_capacity(1 << 18, part)).map_err(|error| malformed(&error))?;
    let mut replay = Replay::default();
    for entry in &mut reading {
        replay.enter(entry);
    }
    // The recording has no end yet; any other damage was caused by someone else.
    match reading.damage() {
        Some(damage) if matches!(damage.reason, DamageReason::NoEnd) => {}
        Some(damage) => return Err(malformed(damage)),
        None => return Err(malformed(&"the recording has ended already")),
    }
    replay.fold();
    let state = replay.serialized().map_err(io::Error::other)?;
    drop(replay);
    let mut blocks = BlockWriter::new()?;
    let mut out = target.file();
    out.write_all(&file_header())?;
    let mut parts = state.chunks(PART_BYTES).peekable();
    while let Some(part) = parts.next() {
        out.write_all(&blocks.block(Kind::FOLD, parts.peek().is_some(), part)?)?;
    }
    Ok(target)
}

struct Part<'file> {
    file: &'file File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..left], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
