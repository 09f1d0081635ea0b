//! Reads a recording entry by entry, up to its end or to the first damaged block.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use heapbpf_linux::files;
use thiserror::Error;

use super::block::{Block, BlockError, FILE_HEADER_BYTES, HeaderError, Kind, check_header, read_block, read_up_to};
use super::entry::{FunctionStart, NamedLocation};
use super::pack::{PackError, Unpacker};
use super::replay::{Entry, Replay};

/// Maximum ratio of contents to their compressed size (usually 2 to 5), of folds and of the file up to there: against files that
/// are crafted to exhaust memory and time.
const RATIO_MAX: u64 = 200;
/// Size of contents that may exceed the ratio.
const SMALL_BYTES: u64 = 64 << 20;

#[derive(Debug, Error)]
pub enum ReadError {
    #[error("cannot read the file")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Header(#[from] HeaderError),
}

#[derive(Debug, Error)]
#[error("damaged at byte {position}: {reason}")]
pub struct Damage {
    /// Position of the start of the block that was discarded.
    pub position: u64,
    pub reason: DamageReason,
}

#[derive(Debug, Error)]
pub enum DamageReason {
    #[error("{0}")]
    Block(#[from] BlockError),
    #[error("{0}")]
    Entries(#[from] PackError),
    #[error("malformed contents of a block")]
    Contents,
    #[error("the file expands to more than {RATIO_MAX} times its size, as those that heapbpf writes do not")]
    Ratio,
    #[error("the file ends here, before the recording did")]
    NoEnd,
}

#[derive(Debug)]
pub struct Reading<R> {
    file: R,
    position: u64,
    block_position: u64,
    /// Size of the contents of the blocks so far.
    expanded_bytes: u64,
    block: Unpacker,
    ended: bool,
    damage: Option<Damage>,
    skipped: u64,
}

pub fn read(path: &Path) -> Result<Reading<BufReader<File>>, ReadError> {
    Reading::new(BufReader::with_capacity(1 << 18, files::open(path)?))
}

impl<R: Read> Reading<R> {
    pub fn new(mut file: R) -> Result<Self, ReadError> {
        check_header(&read_up_to(&mut file, FILE_HEADER_BYTES)?)?;
        Ok(Self {
            file,
            position: FILE_HEADER_BYTES as u64,
            block_position: FILE_HEADER_BYTES as u64,
            expanded_bytes: 0,
            block: Unpacker::default(),
            ended: false,
            damage: None,
            skipped: 0,
        })
    }

    /// Returns the position at which the recording stops before its end. Valid once the iterator is exhausted.
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Returns the number of entries and blocks of unknown kinds so far.
    pub fn skipped(&self) -> u64 {
        self.skipped + self.block.skipped()
    }

    fn advance(&mut self) -> Result<Option<Entry>, DamageReason> {
        loop {
            if let Some(entry) = self.block.take()? {
                return Ok(Some(entry));
            }
            if self.ended {
                return Ok(None);
            }
            self.skipped = self.skipped();
            self.block = Unpacker::default();
            let block = self.next_block()?.ok_or(DamageReason::NoEnd)?;
            let entry = match block.kind {
                Kind::FOLD => self.fold(block)?,
                Kind::NAMES => Entry::Names(contents(postcard::from_bytes(&block.bytes))?),
                Kind::FUNCTION_STARTS => {
                    let starts: Vec<FunctionStart> = contents(postcard::from_bytes(&block.bytes))?;
                    Entry::Names(starts.into_iter().map(NamedLocation::from).collect())
                }
                Kind::SYMBOLIZATION => Entry::Symbolization(contents(serde_json::from_slice(&block.bytes))?),
                Kind::END => {
                    self.ended = true;
                    Entry::End(contents(postcard::from_bytes(&block.bytes))?)
                }
                Kind::ENTRIES => {
                    self.block = Unpacker::new(block.bytes);
                    continue;
                }
                _ => {
                    self.skipped += 1;
                    continue;
                }
            };
            return Ok(Some(entry));
        }
    }

    fn next_block(&mut self) -> Result<Option<Block>, DamageReason> {
        self.block_position = self.position;
        let block = read_block(&mut self.file)?;
        if let Some(block) = &block {
            self.position += block.stored_bytes;
            self.expanded_bytes += block.bytes.len() as u64;
            check_ratio(self.expanded_bytes, self.position)?;
        }
        Ok(block)
    }

    fn fold(&mut self, first: Block) -> Result<Entry, DamageReason> {
        let (mut bytes, mut stored_bytes, mut goes_on) = (first.bytes, first.stored_bytes, first.goes_on);
        while goes_on {
            let part = self.next_block()?.ok_or(DamageReason::NoEnd)?;
            stored_bytes += part.stored_bytes;
            if part.kind != Kind::FOLD {
                return Err(DamageReason::Contents);
            }
            bytes.extend(part.bytes);
            goes_on = part.goes_on;
            check_ratio(bytes.len() as u64, stored_bytes)?;
        }
        let replay: Replay = contents(Replay::from_bytes(&bytes))?;
        if replay.is_sound() { Ok(Entry::Fold(Box::new(replay))) } else { Err(DamageReason::Contents) }
    }
}

impl<R: Read> Iterator for Reading<R> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        if self.damage.is_some() {
            return None;
        }
        let entry = self.advance();
        entry.unwrap_or_else(|reason| {
            self.damage = Some(Damage { position: self.block_position, reason });
            None
        })
    }
}

fn check_ratio(expanded_bytes: u64, stored_bytes: u64) -> Result<(), DamageReason> {
    let bytes_max = stored_bytes.saturating_mul(RATIO_MAX).max(SMALL_BYTES);
    if expanded_bytes > bytes_max { Err(DamageReason::Ratio) } else { Ok(()) }
}

fn contents<T, E>(decoded: Result<T, E>) -> Result<T, DamageReason> {
    decoded.map_err(|_| DamageReason::Contents)
}
