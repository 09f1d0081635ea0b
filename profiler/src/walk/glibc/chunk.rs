//! Chunks: what memory of an arena is divided into, each with its size in front of it, from the first to the arena's last.

use std::fmt;

use super::PAGE_BYTES;
use super::words::Words;
use crate::address::TargetAddr;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::WalkedBlock;

/// From a chunk's beginning to what the program has of it.
pub(super) const HEADER_BYTES: u64 = 16;
/// The smallest chunk that is ever given out.
pub(super) const CHUNK_BYTES_MIN: u64 = 32;
/// Flags in the low bits of a size.
pub(super) const PREVIOUS_IN_USE: u64 = 1;
pub(super) const MAPPED: u64 = 2;
const OF_THREADS: u64 = 4;
pub(super) const FLAGS: u64 = 7;

/// Memory that is to be walked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) start: u64,
    /// No chunk reaches beyond.
    pub(super) limit: u64,
    /// The arena's last chunk.
    pub(super) top: u64,
    /// Of an arena that was made for threads.
    pub(super) of_threads: bool,
}

/// A chain of chunks that does not add up.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) at: u64,
    pub(super) why: &'static str,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:#x}", self.why, self.at)
    }
}

/// Walks pieces and keeps their blocks.
pub(super) struct Chunks<'a> {
    memory: &'a dyn Memory,
    words: Words<'a>,
    /// Chunks that look used, those of caches among them, in the order in which they were met.
    pub(super) blocks: Vec<WalkedBlock>,
    /// How many more chunks may be looked at: what bounds a search for where a chain begins.
    steps_left: u64,
}

/// A chunk's size and flags.
#[derive(Clone, Copy)]
struct Head {
    bytes: u64,
    flags: u64,
}

impl<'a> Chunks<'a> {
    pub(super) fn new(memory: &'a dyn Memory, steps_max: u64) -> Self {
        Self { memory, words: Words::new(memory), blocks: Vec::new(), steps_left: steps_max }
    }

    /// Keeps the blocks of a piece and says where it ends: behind `top`, or behind the two chunks of 16 bytes that are put where the
    /// next address is not the arena's. Keeps nothing of one that does not add up.
    pub(super) fn walk(&mut self, piece: Piece) -> Result<u64, Broken> {
        let kept = self.blocks.len();
        let walked = self.chain(piece);
        if walked.is_err() {
            self.blocks.truncate(kept);
        }
        walked
    }

    fn chain(&mut self, piece: Piece) -> Result<u64, Broken> {
        let mut at = piece.start;
        let mut head = self.head(at)?;
        let mut first = true;
        loop {
            let broken = |why| Err(Broken { at, why });
            if self.steps_left == 0 {
                return broken("too many chunks were looked at");
            }
            self.steps_left -= 1;
            let end = at.checked_add(head.bytes).filter(|end| *end <= piece.limit);
            let Some(end) = end else { return broken("a chunk reaches beyond its memory") };
            if first && head.flags & PREVIOUS_IN_USE == 0 {
                return broken("the first chunk has one before it");
            }
            first = false;
            if at == piece.top {
                return if head.bytes >= HEADER_BYTES { Ok(end) } else { broken("the last chunk has no size") };
            }
            if head.bytes == HEADER_BYTES && head.flags & MAPPED == 0 {
                return self.fence(at, piece);
            }
            if head.bytes < CHUNK_BYTES_MIN || !at.is_multiple_of(16) || head.flags & MAPPED != 0 {
                return broken("a chunk has no size that one can have");
            }
            let next = self.head(end)?;
            if next.flags & PREVIOUS_IN_USE == 0 {
                self.check_free(at, head, end)?;
            } else if piece.of_threads && head.flags & OF_THREADS == 0 {
                // What is left of a heap's end that is too small to be freed.
                return if next.bytes == 0 { Ok(end + HEADER_BYTES) } else { broken("a block is of another arena") };
            } else if !piece.of_threads && head.flags & OF_THREADS != 0 {
                return broken("a block is of another arena");
            } else {
                self.blocks
                    .push(WalkedBlock { start: TargetAddr(at + HEADER_BYTES), size_bytes: head.bytes - WORD_BYTES });
            }
            (at, head) = (end, next);
        }
    }

    fn head(&mut self, at: u64) -> Result<Head, Broken> {
        let word = at.checked_add(WORD_BYTES).and_then(|address| self.words.at(address));
        let word = word.ok_or(Broken { at, why: "a chunk's size is not there" })?;
        Ok(Head { bytes: word & !FLAGS, flags: word & FLAGS })
    }

    /// A free chunk says its size at its end too, and the list that it is in knows it.
    fn check_free(&mut self, at: u64, head: Head, end: u64) -> Result<(), Broken> {
        let next_in_list = self.words.at(at + HEADER_BYTES);
        let back =
            next_in_list.and_then(|chunk| self.memory.word(TargetAddr(chunk.checked_add(HEADER_BYTES + WORD_BYTES)?)));
        if self.words.at(end) != Some(head.bytes) {
            return Err(Broken { at, why: "a free chunk has two sizes" });
        }
        if back != Some(at) {
            return Err(Broken { at, why: "a free chunk is in no list" });
        }
        Ok(())
    }

    /// The end of memory behind which is something else: two chunks that are too small for blocks.
    fn fence(&mut self, at: u64, piece: Piece) -> Result<u64, Broken> {
        let mut second = at + HEADER_BYTES;
        let mut head = self.head(second)?;
        // What was left before them can be as small as they are.
        if !piece.of_threads && head.bytes == HEADER_BYTES {
            let third = second + HEADER_BYTES;
            if !third.is_multiple_of(PAGE_BYTES)
                && let Ok(next) = self.head(third)
                && next.bytes == HEADER_BYTES
                && next.flags == PREVIOUS_IN_USE
            {
                (second, head) = (third, next);
            }
        }
        let expected = if piece.of_threads { 0 } else { HEADER_BYTES };
        let end = second + HEADER_BYTES;
        if head.bytes != expected || head.flags != PREVIOUS_IN_USE || end > piece.limit {
            return Err(Broken { at, why: "a chunk is too small" });
        }
        Ok(end)
    }
}
