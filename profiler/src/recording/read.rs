//! Reads a recording, entry by entry. What is damaged ends it there; what was read before stands.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use thiserror::Error;

use super::block::{Block, BlockError, FILE_HEADER_BYTES, HeaderError, Kind, check_header, read_block};
use super::entry::{Entry, NamedPlace};

use super::replay::Replay;
use super::unpack::{PackError, Unpacker};
use crate::linux::input;
use crate::units::MonotonicNanos;

/// A fold is at most so many times as large as what it takes in the file. Real ones are compressed to a third or so; this
/// is against files that were made to fill the memory.
const FOLD_RATIO_MAX: usize = 200;

/// Why a file cannot be read at all.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It cannot be opened, or its first bytes cannot be read.
    #[error("cannot read it")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

/// Where a recording stops before its end, and why.
#[derive(Debug, Error)]
#[error("damaged at byte {position}: {reason}")]
pub struct Damage {
    /// Where the block begins of which nothing is believed.
    pub position: u64,
    /// Why.
    pub reason: DamageReason,
}

/// Why a recording stops before its end.
#[derive(Debug, Error)]
pub enum DamageReason {
    /// There is no block.
    #[error("{0}")]
    Block(#[from] BlockError),
    /// The block does not hold entries.
    #[error("{0}")]
    Entries(#[from] PackError),
    /// The block does not hold what it says.
    #[error("its contents make no sense")]
    Contents,
    /// The file ends where another block should be.
    #[error("the file ends here, before the recording did")]
    NoEnd,
}

/// The entries of a recording.
#[derive(Debug)]
pub struct Reading<R> {
    file: R,
    /// Where the next block begins.
    position: u64,
    /// Where the present block begins.
    block_position: u64,
    block: Unpacker,
    ended: bool,
    damage: Option<Damage>,
    passed_over: u64,
}

/// Opens a recording.
///
/// # Errors
///
/// If it is none, or cannot be read.
pub fn read(path: &Path) -> Result<Reading<BufReader<File>>, ReadError> {
    Reading::new(BufReader::with_capacity(1 << 18, input::open(path)?))
}

impl<R: Read> Reading<R> {
    /// From its first byte.
    ///
    /// # Errors
    ///
    /// If that is not how recordings begin.
    pub fn new(mut file: R) -> Result<Self, ReadError> {
        let mut header = Vec::new();
        (&mut file).take(FILE_HEADER_BYTES as u64).read_to_end(&mut header)?;
        check_header(&header)?;
        Ok(Self {
            file,
            position: FILE_HEADER_BYTES as u64,
            block_position: FILE_HEADER_BYTES as u64,
            block: Unpacker::default(),
            ended: false,
            damage: None,
            passed_over: 0,
        })
    }

    /// Where it stops before its end, and why. To be asked when no entry is left.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Entries and blocks of kinds that this version does not know, so far.
    pub fn passed_over(&self) -> u64 {
        self.passed_over + self.block.passed_over()
    }

    fn advance(&mut self) -> Result<Option<Entry>, DamageReason> {
        loop {
            if let Some(entry) = self.block.take()? {
                return Ok(Some(entry));
            }
            if self.ended {
                return Ok(None);
            }
            self.passed_over = self.passed_over();
            self.block = Unpacker::default();
            let block = self.next_block()?.ok_or(DamageReason::NoEnd)?;
            match block.kind {
                Kind::Entries => self.block = Unpacker::new(block.bytes),
                Kind::Fold => return self.fold(block).map(Some),
                Kind::Names => {
                    let names: Vec<NamedPlace> =
                        postcard::from_bytes(&block.bytes).map_err(|_| DamageReason::Contents)?;
                    return Ok(Some(Entry::Names(names)));
                }
                Kind::Symbolization => {
                    let symbolization = serde_json::from_slice(&block.bytes).map_err(|_| DamageReason::Contents)?;
                    return Ok(Some(Entry::Symbolization(symbolization)));
                }
                Kind::End => {
                    self.ended = true;
                    let end = postcard::from_bytes(&block.bytes).map_err(|_| DamageReason::Contents)?;
                    return Ok(Some(Entry::End(MonotonicNanos(end))));
                }
                Kind::Unknown(_) => self.passed_over += 1,
            }
        }
    }

    fn next_block(&mut self) -> Result<Option<Block>, DamageReason> {
        self.block_position = self.position;
        let block = read_block(&mut self.file)?;
        self.position += block.as_ref().map_or(0, |block| block.stored_bytes);
        Ok(block)
    }

    /// All parts of a fold, of which this is the first.
    fn fold(&mut self, first: Block) -> Result<Entry, DamageReason> {
        let (mut bytes, mut stored_bytes, mut goes_on) = (first.bytes, first.stored_bytes, first.goes_on);
        while goes_on {
            let part = self.next_block()?.ok_or(DamageReason::NoEnd)?;
            stored_bytes += part.stored_bytes;
            if part.kind != Kind::Fold {
                return Err(DamageReason::Contents);
            }
            bytes.extend(part.bytes);
            goes_on = part.goes_on;
            let bytes_max = usize::try_from(stored_bytes).unwrap_or(usize::MAX).saturating_mul(FOLD_RATIO_MAX);
            // Blocks alone may have more.
            if bytes.len() > bytes_max.max(64 << 20) {
                return Err(DamageReason::Contents);
            }
        }
        let replay: Replay = postcard::from_bytes(&bytes).map_err(|_| DamageReason::Contents)?;
        if replay.is_sound() { Ok(Entry::Fold(Box::new(replay))) } else { Err(DamageReason::Contents) }
    }
}

impl<R: Read> Iterator for Reading<R> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.damage.is_some() {
            return None;
        }
        match self.advance() {
            Ok(entry) => entry,
            Err(reason) => {
                self.damage = Some(Damage { position: self.block_position, reason });
                None
            }
        }
    }
}
