//! Writes a recording: gathers entries into blocks, and writes each with one call, so that what was written is whole
//! whenever this process ends. Keeps the file below its limit (`fold`).

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use thiserror::Error;

use super::block::{BlockWriter, Kind, file_header};
use super::entry::{Entry, NamedPlace, Names};
use super::fold::{Folded, Folding};
use super::pack::Packer;
use crate::linux::replacement::Replacement;
use crate::units::MonotonicNanos;

/// A block is written when it holds so much.
const BLOCK_RAW_BYTES: usize = 1 << 20;
/// A block is written when its first entry is so old.
pub(crate) const BLOCK_AGE_MAX: Duration = Duration::from_millis(400);
/// Names in one block, in bytes at most and nearly.
const NAMES_RAW_BYTES: usize = 1 << 20;
/// Permissions of a recording: the owner's alone, for it has command lines and paths.
pub(super) const MODE: u32 = 0o600;
/// The smallest limit: some blocks and a fold must fit.
pub(crate) const SIZE_BYTES_MIN: u64 = 256 << 10;

/// Why a recording ended early.
#[derive(Debug, Error)]
#[error("the recording `{}` ends early: {reason}", path.display())]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub reason: WriteReason,
}

/// Why a recording ended early.
#[derive(Debug, Error)]
pub enum WriteReason {
    /// The file cannot be written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// What must be kept is larger than the file may be.
    #[error(
        "what is live takes {} even without single events, and `--max-size` is {}; allow more, or sample less with a larger `--interval`",
        ByteSize(*.needed_bytes),
        ByteSize(*.size_bytes_max)
    )]
    Large {
        /// What the state alone takes.
        needed_bytes: u64,
        /// What the file may take.
        size_bytes_max: u64,
    },
    /// What wrote it is gone.
    #[error("the thread that writes it failed for a reason that only heapbpf's authors can tell")]
    Panic,
}

/// A recording that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// How often older entries were folded.
    pub folds: u64,
}

/// Writes entries to a recording.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    size_bytes_max: Option<u64>,
    packer: Packer,
    blocks: BlockWriter,
    /// Since when the block that is gathered has an entry.
    gathering: Option<Instant>,
    /// Where blocks end, where there is a limit.
    ends: Vec<u64>,
    folding: Option<Folding>,
    folds: u64,
}

impl Writer {
    /// Begins a recording in a new file, which takes the place of what had the path at once: should this process be killed,
    /// what was recorded until then is there.
    ///
    /// # Errors
    ///
    /// If it cannot be written, or is no regular file.
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
            ends: Vec::new(),
            folding: None,
            folds: 0,
        })
    }

    /// Adds an entry. It is in the file after [`BLOCK_AGE_MAX`], when [`attend`](Self::attend) is called often enough.
    ///
    /// # Errors
    ///
    /// See [`WriteReason`]. Nothing more can be added then.
    pub fn add(&mut self, entry: &Entry) -> Result<(), WriteReason> {
        self.packer.add(entry);
        if self.packer.size_bytes() >= self.block_raw_bytes() { self.flush() } else { Ok(()) }
    }

    /// A block is a small part of a limited file.
    fn block_raw_bytes(&self) -> usize {
        let part = self.size_bytes_max.and_then(|max| usize::try_from(max / 8).ok());
        part.map_or(BLOCK_RAW_BYTES, |part| part.min(BLOCK_RAW_BYTES))
    }

    /// When [`attend`](Self::attend) has something to do.
    pub fn due(&mut self) -> Option<Instant> {
        if !self.packer.is_empty() && self.gathering.is_none() {
            self.gathering = Some(Instant::now());
        }
        self.gathering.map(|since| since + BLOCK_AGE_MAX)
    }

    /// Does what is due.
    pub fn attend(&mut self) -> Result<(), WriteReason> {
        if self.folding.as_ref().is_some_and(Folding::is_done) {
            self.take_fold()?;
        }
        if self.due().is_some_and(|due| due <= Instant::now()) { self.flush() } else { Ok(()) }
    }

    /// Writes what was gathered.
    pub fn flush(&mut self) -> Result<(), WriteReason> {
        self.gathering = None;
        if self.packer.is_empty() {
            return Ok(());
        }
        let mut block = Ok(Vec::new());
        let blocks = &mut self.blocks;
        self.packer.finish(|bytes| block = blocks.block(Kind::Entries, false, bytes));
        self.write(&block?)
    }

    fn write(&mut self, block: &[u8]) -> Result<(), WriteReason> {
        self.make_room(block.len() as u64)?;
        self.append(block)?;
        if let Some(max) = self.size_bytes_max {
            self.ends.push(self.size_bytes);
            if self.folding.is_none() && self.size_bytes > begin_at(max) {
                self.fold(keep_of(max))?;
            }
        }
        Ok(())
    }

    /// Writes a block, wholly or not at all.
    fn append(&mut self, block: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(block) {
            // Where this fails too, a reader notices half a block.
            let _ = self.file.set_len(self.size_bytes);
            return Err(error);
        }
        self.size_bytes += block.len() as u64;
        Ok(())
    }

    /// Sees to it that so many bytes fit.
    fn make_room(&mut self, bytes: u64) -> Result<(), WriteReason> {
        let Some(max) = self.size_bytes_max else { return Ok(()) };
        while self.size_bytes + bytes > max {
            if self.folding.is_none() {
                let before = self.size_bytes;
                self.fold(0)?;
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

    /// Begins to fold all but the latest `keep_bytes`.
    fn fold(&mut self, keep_bytes: u64) -> io::Result<()> {
        let until = self.size_bytes.saturating_sub(keep_bytes);
        let at = self.ends.partition_point(|&end| end <= until);
        let Some(&end) = at.checked_sub(1).and_then(|at| self.ends.get(at)) else { return Ok(()) };
        self.folding = Some(Folding::start(&self.path, self.file.try_clone()?, end)?);
        Ok(())
    }

    /// Waits for a fold, and goes on in the file that it made.
    fn take_fold(&mut self) -> Result<(), WriteReason> {
        let Some(folding) = self.folding.take() else { return Ok(()) };
        let end = folding.end();
        let Folded { file, folded_bytes } = folding.finish(self.size_bytes)?;
        let tail_bytes = self.size_bytes - end;
        let max = self.size_bytes_max.unwrap_or(u64::MAX);
        // A state that leaves no room for events would be written again and again. What there is stays as it is.
        if folded_bytes > begin_at(max) || folded_bytes + tail_bytes > max {
            return Err(WriteReason::Large { needed_bytes: folded_bytes, size_bytes_max: max });
        }
        file.file().set_permissions(self.file.metadata()?.permissions())?;
        self.file = file.commit()?;
        self.size_bytes = folded_bytes + tail_bytes;
        self.ends.retain(|&block_end| block_end > end);
        self.ends.iter_mut().for_each(|block_end| *block_end = *block_end - end + folded_bytes);
        self.ends.insert(0, folded_bytes);
        self.folds += 1;
        Ok(())
    }

    /// Writes what is left, the names and the end.
    pub fn finish(mut self, names: &Names, end: MonotonicNanos) -> Result<Written, WriteReason> {
        self.flush()?;
        self.take_fold()?;
        for part in parts(&names.places) {
            let bytes = postcard::to_allocvec(part).map_err(io::Error::other)?;
            let block = self.blocks.block(Kind::Names, false, &bytes)?;
            self.write(&block)?;
        }
        let bytes = serde_json::to_vec(&names.symbolization).map_err(io::Error::other)?;
        let block = self.blocks.block(Kind::Symbolization, false, &bytes)?;
        self.write(&block)?;
        self.take_fold()?;
        let bytes = postcard::to_allocvec(&end.0).map_err(io::Error::other)?;
        let block = self.blocks.block(Kind::End, false, &bytes)?;
        self.make_room(block.len() as u64)?;
        self.append(&block)?;
        Ok(Written { path: self.path, size_bytes: self.size_bytes, folds: self.folds })
    }
}

/// From this size on, older entries are folded. The rest is for what comes meanwhile.
fn begin_at(size_bytes_max: u64) -> u64 {
    size_bytes_max / 4 * 3
}

/// So much is left as it is.
fn keep_of(size_bytes_max: u64) -> u64 {
    size_bytes_max / 8 * 3
}

/// Names, so many at a time as a block may have.
fn parts(names: &[NamedPlace]) -> impl Iterator<Item = &[NamedPlace]> {
    let mut rest = names;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |place: &&NamedPlace| {
            bytes += place.size_bytes();
            bytes <= NAMES_RAW_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
        let (part, behind) = rest.split_at(count);
        rest = behind;
        (!part.is_empty()).then_some(part)
    })
}
