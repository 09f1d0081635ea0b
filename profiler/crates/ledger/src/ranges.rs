//! Mapped address ranges of a process with the callsites that mapped them; bounded only by the target's mappings.
//! Records of different threads may arrive out of order; their timestamps determine which mapping is the later one.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use heapbpf_base::units::MonotonicNanos;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

pub(super) type Addresses = Range<u64>;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Piece {
    end: u64,
    /// Time at which the mapping call returned.
    time: MonotonicNanos,
    callsite: u32,
    mapping: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freed {
    pub(super) bytes: u64,
    pub(super) callsite: u32,
    pub(super) time: MonotonicNanos,
    pub(super) is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) bytes: u64,
    pub(super) callsite: u32,
    pub(super) time: MonotonicNanos,
    /// Whether the piece is the lowest one of its mapping.
    pub(super) is_first: bool,
}

/// A piece that was replaced by another mapping before its unmap record arrived.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Displaced {
    addresses: Addresses,
    time: MonotonicNanos,
    mapping: u64,
}

/// Maximum number of displaced pieces that are kept: only late records need them.
const DISPLACED_MAX: usize = 64;

/// Mapped ranges by address, without overlaps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ranges {
    pieces: BTreeMap<u64, Piece>,
    /// Number of remaining pieces, for mappings that have been split.
    splits: FxHashMap<u64, u64>,
    /// Id of the next mapping.
    mappings: u64,
    displaced: VecDeque<Displaced>,
}

impl Ranges {
    /// Removes pieces of the range that were mapped by `until`.
    pub(super) fn unmap(&mut self, range: &Addresses, until: MonotonicNanos) -> Vec<Freed> {
        self.take(range, until).into_iter().map(|(_, freed)| freed).collect()
    }

    /// Removes pieces that were mapped before `time`: they were replaced, or their unmap record is late
    /// ([`Self::was_displaced`]).
    pub(super) fn displace(&mut self, range: &Addresses, time: MonotonicNanos) -> Vec<Freed> {
        let mut removed = Vec::new();
        for (displaced, freed) in self.take(range, time) {
            if self.displaced.len() == DISPLACED_MAX {
                self.displaced.pop_front();
            }
            self.displaced.push_back(displaced);
            removed.push(freed);
        }
        removed
    }

    /// Whether a mapping created in this range by `until` was displaced recently. True once per mapping, the latest first: the
    /// unmapping thread refers to that one.
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

    /// Maps a range. Pieces in the range that are mapped already were mapped later (see [`displace`](Self::displace)). Returns
    /// the parts that they occupy, which count as unmapped.
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

    pub(super) fn mappings(&self) -> impl Iterator<Item = (u32, MonotonicNanos)> {
        self.pieces().filter(|piece| piece.is_first).map(|piece| (piece.callsite, piece.time))
    }

    /// Callsite and remaining bytes of each mapping, in the order in which they were mapped.
    pub(super) fn whole(&self) -> impl Iterator<Item = (u32, u64)> {
        let mut bytes: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
        for (start, piece) in &self.pieces {
            bytes.entry(piece.mapping).or_insert((piece.callsite, 0)).1 += piece.end - start;
        }
        bytes.into_values()
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = Mapped> {
        let mut seen = FxHashSet::default();
        self.pieces.iter().map(move |(start, piece)| Mapped {
            bytes: piece.end - start,
            callsite: piece.callsite,
            time: piece.time,
            is_first: !self.splits.contains_key(&piece.mapping) || seen.insert(piece.mapping),
        })
    }

    /// Mapped ranges with callsites, by ascending address.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (Addresses, u32)> {
        self.pieces.iter().map(|(&start, piece)| (start..piece.end, piece.callsite))
    }

    pub(super) fn is_sound(&self, has_callsite: impl Fn(u32) -> bool) -> bool {
        let mut end = 0;
        let in_order = self.pieces.iter().all(|(&start, piece)| {
            let is_valid = end <= start && start < piece.end && has_callsite(piece.callsite);
            end = piece.end;
            is_valid
        });
        let split = self.splits.values().all(|&pieces| (2..u64::MAX / 2).contains(&pieces));
        in_order && split && self.mappings < u64::MAX / 2 && self.displaced.len() <= DISPLACED_MAX
    }

    fn take(&mut self, range: &Addresses, until: MonotonicNanos) -> Vec<(Displaced, Freed)> {
        let meant: Vec<(u64, Piece)> = self.overlapping(range).filter(|(_, piece)| piece.time <= until).collect();
        meant.into_iter().map(|(start, piece)| self.cut(start, piece, range)).collect()
    }

    fn overlapping(&self, range: &Addresses) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let (start, end) = (range.start, range.end.max(range.start));
        let reaching_in = self.pieces.range(..start).next_back().filter(|(_, piece)| piece.end > start && start < end);
        reaching_in.into_iter().chain(self.pieces.range(start..end)).map(|(&start, &piece)| (start, piece))
    }

    fn cut(&mut self, start: u64, piece: Piece, range: &Addresses) -> (Displaced, Freed) {
        let removed = start.max(range.start)..piece.end.min(range.end);
        self.pieces.remove(&start);
        let mut rests = 0;
        for rest in [start..removed.start, removed.end..piece.end] {
            if !rest.is_empty() {
                self.pieces.insert(rest.start, Piece { end: rest.end, ..piece });
                rests += 1;
            }
        }
        let is_last = self.replace_piece(piece.mapping, rests) == 0;
        let freed = Freed { bytes: removed.end - removed.start, callsite: piece.callsite, time: piece.time, is_last };
        (Displaced { addresses: removed, time: piece.time, mapping: piece.mapping }, freed)
    }

    /// Replaces a piece by its rests. Returns the mapping's new number of pieces.
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
