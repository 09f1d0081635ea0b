//! What is mapped, and by whom: pieces of the address space, each a part of one mapping. Pure; knows neither totals nor
//! what a callsite is. How much it holds is up to the target: one entry per piece.
//!
//! Records of different threads may come in another order than their calls were made. The times of the calls tell which
//! was first where two mappings claim one address.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::units::MonotonicNanos;

/// Addresses from the start up to the end.
pub(super) type Addresses = Range<u64>;

/// A piece of a mapping, whose start is its key.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Piece {
    end: u64,
    /// When the call that mapped it had ended.
    time: MonotonicNanos,
    callsite: u32,
    mapping: u64,
}

/// A piece of a mapping that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    /// Its length.
    pub(super) bytes: u64,
    /// Who had mapped it.
    pub(super) callsite: u32,
    /// When that was.
    pub(super) time: MonotonicNanos,
    /// Nothing of the mapping is left.
    pub(super) is_last: bool,
}

/// A piece of a mapping that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Its length.
    pub(super) bytes: u64,
    /// Who has mapped it.
    pub(super) callsite: u32,
    /// When that was.
    pub(super) time: MonotonicNanos,
    /// No piece of the mapping comes before it.
    pub(super) is_first: bool,
}

/// A piece over which something else was mapped before its own unmapping was seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Displaced {
    addresses: Addresses,
    time: MonotonicNanos,
    mapping: u64,
}

/// Displaced pieces that are remembered. Only records that are late ask for them.
const DISPLACED_MAX: usize = 64;

/// All mapped pieces of one process, by address. They do not overlap.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ranges {
    pieces: BTreeMap<u64, Piece>,
    /// How many pieces are left of a mapping, of those that have been split.
    splits: FxHashMap<u64, u64>,
    /// Mappings so far, which numbers the next one.
    mappings: u64,
    /// The latest of these.
    displaced: VecDeque<Displaced>,
}

impl Ranges {
    /// Takes away what was mapped in this range by `until`, piece by piece.
    pub(super) fn unmap(&mut self, range: &Addresses, until: MonotonicNanos) -> Vec<Freed> {
        self.take(range, until).into_iter().map(|(_, freed)| freed).collect()
    }

    /// Takes away what was mapped in this range before the mapping that is there as of `time`: the record of how it went
    /// is late, or it was replaced. See [`was_displaced`](Self::was_displaced).
    pub(super) fn displace(&mut self, range: &Addresses, time: MonotonicNanos) -> Vec<Freed> {
        let mut gone = Vec::new();
        for (displaced, freed) in self.take(range, time) {
            if self.displaced.len() == DISPLACED_MAX {
                self.displaced.pop_front();
            }
            self.displaced.push_back(displaced);
            gone.push(freed);
        }
        gone
    }

    /// Whether something that had been mapped in this range by `until` was displaced lately. True once for each mapping, the
    /// latest first: it is the one that whoever gives up the range had.
    pub(super) fn was_displaced(&mut self, range: &Addresses, until: MonotonicNanos) -> bool {
        let is_meant = |piece: &&Displaced| piece.time <= until && overlap(&piece.addresses, range);
        let Some(mapping) =
            self.displaced.iter().filter(is_meant).max_by_key(|piece| piece.time).map(|piece| piece.mapping)
        else {
            return false;
        };
        self.displaced.retain(|piece| piece.mapping != mapping || !overlap(&piece.addresses, range));
        true
    }

    /// Enters a mapping, which may not be empty. It goes where nothing is: what is there already was mapped later (see
    /// [`displace`](Self::displace)). Those parts of it are gone already, and returned.
    pub(super) fn map(&mut self, range: &Addresses, time: MonotonicNanos, callsite: u32) -> Option<Freed> {
        let taken: Vec<Addresses> = self.overlapping(range).map(|(start, piece)| start..piece.end).collect();
        let mapping = self.mappings;
        self.mappings += 1;
        let (mut at, mut pieces, mut covered) = (range.start, 0, range.end - range.start);
        for later in taken.into_iter().chain(std::iter::once(range.end..range.end)) {
            if at < later.start {
                self.pieces.insert(at, Piece { end: later.start, time, callsite, mapping });
                pieces += 1;
                covered -= later.start - at;
            }
            at = later.end;
        }
        if pieces > 1 {
            self.splits.insert(mapping, pieces);
        }
        (covered > 0).then_some(Freed { bytes: covered, callsite, time, is_last: pieces == 0 })
    }

    /// All mappings of which something is left: who mapped them, and when.
    pub(super) fn mappings(&self) -> impl Iterator<Item = (u32, MonotonicNanos)> {
        self.pieces().filter(|piece| piece.is_first).map(|piece| (piece.callsite, piece.time))
    }

    /// All mappings of which something is left: who mapped them, and how much of them that is. In the order in which they were
    /// mapped.
    pub(super) fn whole(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut bytes: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
        for (start, piece) in &self.pieces {
            bytes.entry(piece.mapping).or_insert((piece.callsite, 0)).1 += piece.end - start;
        }
        bytes.into_values()
    }

    /// All that is mapped, piece by piece.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Mapped> {
        let mut seen = FxHashSet::default();
        self.pieces.iter().map(move |(start, piece)| Mapped {
            bytes: piece.end - start,
            callsite: piece.callsite,
            time: piece.time,
            is_first: !self.splits.contains_key(&piece.mapping) || seen.insert(piece.mapping),
        })
    }

    /// Whether pieces are none that overlap, each with a callsite that `leads` to one, and their numbers have room to grow.
    pub(super) fn is_sound(&self, leads: impl Fn(u32) -> bool) -> bool {
        let mut behind = 0;
        let in_order = self.pieces.iter().all(|(&start, piece)| {
            let is_behind = behind <= start && start < piece.end && leads(piece.callsite);
            behind = piece.end;
            is_behind
        });
        let split = self.splits.values().all(|&pieces| (2..u64::MAX / 2).contains(&pieces));
        in_order && split && self.mappings < u64::MAX / 2 && self.displaced.len() <= DISPLACED_MAX
    }

    /// Takes out what was mapped by `until`.
    fn take(&mut self, range: &Addresses, until: MonotonicNanos) -> Vec<(Displaced, Freed)> {
        let meant: Vec<(u64, Piece)> = self.overlapping(range).filter(|(_, piece)| piece.time <= until).collect();
        meant.into_iter().map(|(start, piece)| self.cut(start, piece, range)).collect()
    }

    /// The pieces of which at least a part lies in this range, in the order of addresses.
    fn overlapping(&self, range: &Addresses) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let (start, end) = (range.start, range.end.max(range.start));
        let reaching_in = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end > start && start < end);
        reaching_in.into_iter().chain(self.pieces.range(start..end)).map(|(&start, &piece)| (start, piece))
    }

    /// Cuts the range out of a piece that overlaps it.
    fn cut(&mut self, start: u64, piece: Piece, range: &Addresses) -> (Displaced, Freed) {
        let gone = start.max(range.start)..piece.end.min(range.end);
        self.pieces.remove(&start);
        let mut rests = 0;
        for rest in [start..gone.start, gone.end..piece.end] {
            if !rest.is_empty() {
                self.pieces.insert(rest.start, Piece { end: rest.end, ..piece });
                rests += 1;
            }
        }
        let is_last = self.replace_piece(piece.mapping, rests) == 0;
        let freed = Freed { bytes: gone.end - gone.start, callsite: piece.callsite, time: piece.time, is_last };
        (Displaced { addresses: gone, time: piece.time, mapping: piece.mapping }, freed)
    }

    /// One piece of a mapping has become `rests` pieces. Returns how many the mapping has now.
    fn replace_piece(&mut self, mapping: u64, rests: u64) -> u64 {
        let left = self.splits.get(&mapping).copied().unwrap_or(1) - 1 + rests;
        if left > 1 {
            self.splits.insert(mapping, left);
        } else {
            self.splits.remove(&mapping);
        }
        left
    }
}

fn overlap(one: &Addresses, other: &Addresses) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests;
