//! Folds the older part of a recording: replays it, and writes what it led to into a new file. On a thread of its own, so
//! that the recording goes on meanwhile in the file that it has.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{self, JoinHandle};

use super::block::{BlockWriter, Kind, file_header};
use super::read::{DamageReason, Reading};
use super::replay::Replay;
use super::write::MODE;
use crate::linux::replacement::Replacement;

/// What one block holds of a fold.
const PART_BYTES: usize = 1 << 20;

/// A fold that is being made.
#[derive(Debug)]
pub(super) struct Folding {
    thread: JoinHandle<io::Result<Replacement>>,
    file: File,
    end: u64,
}

/// A new file that begins with the fold, behind which is what came since.
#[derive(Debug)]
pub(super) struct Folded {
    pub(super) file: Replacement,
    /// What the fold takes, and all before it.
    pub(super) folded_bytes: u64,
}

impl Folding {
    /// Begins to fold what is in `file` up to `end`. The new file is made beside `path`.
    pub(super) fn start(path: &Path, file: File, end: u64) -> io::Result<Self> {
        let target = Replacement::create(path, MODE)?;
        let source = file.try_clone()?;
        let thread = thread::Builder::new().name("heapbpf-fold".to_owned()).spawn(move || fold(source, end, target))?;
        Ok(Self { thread, file, end })
    }

    /// Up to where the old file is folded.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Whether there is nothing to wait for.
    pub(super) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for it, and copies what has been written since, up to `size_bytes`.
    pub(super) fn finish(self, size_bytes: u64) -> io::Result<Folded> {
        let panicked = |_| io::Error::other("folding failed for a reason that only heapbpf's authors can tell");
        let file = self.thread.join().map_err(panicked)??;
        let folded_bytes = file.file().metadata()?.len();
        let mut tail = Part { file: &self.file, at: self.end, end: size_bytes };
        io::copy(&mut tail, &mut file.file())?;
        Ok(Folded { file, folded_bytes })
    }
}

fn fold(source: File, end: u64, target: Replacement) -> io::Result<Replacement> {
    let part = Part { file: &source, at: 0, end };
    let malformed = |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let mut reading = Reading::new(io::BufReader::with_capacity(1 << 18, part)).map_err(|error| malformed(&error))?;
    let mut replay = Replay::default();
    for entry in &mut reading {
        replay.enter(entry);
    }
    // There is no end yet; anything else is damage that somebody else has done to the file.
    match reading.damage() {
        Some(damage) if matches!(damage.reason, DamageReason::NoEnd) => {}
        Some(damage) => return Err(malformed(damage)),
        None => return Err(malformed(&"it has ended already")),
    }
    replay.fold();
    let state = postcard::to_allocvec(&replay).map_err(io::Error::other)?;
    drop(replay);
    let mut blocks = BlockWriter::new()?;
    let mut out = target.file();
    out.write_all(&file_header())?;
    let mut parts = state.chunks(PART_BYTES).peekable();
    while let Some(part) = parts.next() {
        out.write_all(&blocks.block(Kind::Fold, parts.peek().is_some(), part)?)?;
    }
    Ok(target)
}

/// A part of a file that others write to.
#[derive(Debug)]
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
