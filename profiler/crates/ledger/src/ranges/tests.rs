//! Tests of ranges, compared with single pages.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const PAGES: u64 = 32;

/// What holds a page: since when, by which callsite, and as a part of which mapping.
type Holder = (MonotonicNanos, u32, usize);

/// A reference implementation of [`Ranges`] by single pages of one byte.
#[derive(Debug, Default)]
struct Pages {
    holders: BTreeMap<u64, Holder>,
    mappings: usize,
}

/// Bytes and mappings by callsite.
type Sums = BTreeMap<u32, (u64, u64)>;

impl Pages {
    fn unmap(&mut self, range: &Addresses, until: MonotonicNanos) {
        self.holders.retain(|page, (time, ..)| !range.contains(page) || *time > until);
    }

    fn map(&mut self, range: &Addresses, time: MonotonicNanos, callsite: u32) {
        self.unmap(range, time);
        for page in range.clone() {
            self.holders.entry(page).or_insert((time, callsite, self.mappings));
        }
        self.mappings += 1;
    }

    fn live(&self) -> Sums {
        let mut mappings = BTreeSet::new();
        let mut sums = Sums::new();
        for &(_, callsite, mapping) in self.holders.values() {
            let (bytes, count) = sums.entry(callsite).or_default();
            *bytes += 1;
            *count += u64::from(mappings.insert(mapping));
        }
        sums
    }
}

#[derive(Clone, Debug)]
enum Change {
    Map(Addresses, u32),
    Unmap(Addresses),
    Move(Addresses, Addresses, u32),
}

fn addresses() -> impl Strategy<Value = Addresses> {
    (0..PAGES, 1..=PAGES / 2).prop_map(|(start, length)| start..(start + length).min(PAGES))
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (addresses(), 0u32..3).prop_map(|(range, callsite)| Change::Map(range, callsite)),
        addresses().prop_map(Change::Unmap),
        (addresses(), addresses(), 0u32..3).prop_map(|(old, new, callsite)| Change::Move(old, new, callsite)),
    ]
}

/// The ranges, and the sums of what was mapped less what was freed.
#[derive(Debug, Default)]
struct Recorded {
    ranges: Ranges,
    live: Sums,
}

impl Recorded {
    fn free(&mut self, pieces: impl IntoIterator<Item = Freed>) {
        for piece in pieces {
            assert!(piece.bytes > 0);
            let (bytes, count) = self.live.get_mut(&piece.callsite).expect("it has mapped");
            *bytes -= piece.bytes;
            *count -= u64::from(piece.is_last);
        }
    }

    fn unmap(&mut self, range: &Addresses, until: MonotonicNanos) {
        let gone = self.ranges.unmap(range, until);
        self.free(gone);
    }

    fn map(&mut self, range: &Addresses, time: MonotonicNanos, callsite: u32) {
        let displaced = self.ranges.displace(range, time);
        self.free(displaced);
        let (bytes, count) = self.live.entry(callsite).or_default();
        *bytes += range.end - range.start;
        *count += 1;
        let covered = self.ranges.map(range, time, callsite);
        self.free(covered);
    }

    fn live(&self) -> Sums {
        self.live.clone().into_iter().filter(|(_, sums)| *sums != (0, 0)).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Whatever is mapped, unmapped and moved, in whatever order the records come: the sums are those of single pages,
    /// pieces do not overlap, and nothing is kept of what is gone.
    #[test]
    fn ranges_agree_with_single_pages(changes in proptest::collection::vec((change(), 0u64..40, 0u64..20), 0..80)) {
        let (mut ledger, mut pages) = (Recorded::default(), Pages::default());
        for (turn, (change, late, lasted)) in (0u64..).zip(changes) {
            // The change may begin before up to four changes that were entered earlier.
            let began = MonotonicNanos(100 + 10 * turn - late);
            let ended = MonotonicNanos(began.0 + lasted);
            match change {
                Change::Map(range, callsite) => {
                    ledger.map(&range, ended, callsite);
                    pages.map(&range, ended, callsite);
                }
                Change::Unmap(range) => {
                    ledger.unmap(&range, began);
                    pages.unmap(&range, began);
                }
                Change::Move(old, new, callsite) => {
                    ledger.unmap(&old, began);
                    ledger.map(&new, ended, callsite);
                    pages.unmap(&old, began);
                    pages.map(&new, ended, callsite);
                }
            }
            prop_assert_eq!(ledger.live(), pages.live());
            let ends: Vec<u64> = ledger.ranges.pieces.iter().flat_map(|(&start, piece)| [start, piece.end]).collect();
            prop_assert!(ends.is_sorted(), "{:?}", ends);
            prop_assert!(ledger.ranges.displaced.len() <= DISPLACED_MAX);
        }
        ledger.unmap(&(0..PAGES), MonotonicNanos(u64::MAX));
        prop_assert_eq!(ledger.live(), Sums::new());
        prop_assert!(ledger.ranges.pieces.is_empty() && ledger.ranges.splits.is_empty());
    }
}

const AT: fn(u64) -> MonotonicNanos = MonotonicNanos;

#[test]
fn a_mapping_is_gone_with_its_last_piece() {
    let mut ranges = Ranges::default();
    assert_eq!(ranges.map(&(0..30), AT(1), 7), None);
    let freed = |bytes, is_last| vec![Freed { bytes, callsite: 7, time: AT(1), is_last }];
    assert_eq!(ranges.unmap(&(10..20), AT(2)), freed(10, false));
    assert_eq!(ranges.unmap(&(10..20), AT(3)), []);
    assert_eq!(ranges.unmap(&(25..40), AT(4)), freed(5, false));
    assert_eq!(ranges.unmap(&(0..10), AT(5)), freed(10, false));
    assert_eq!(ranges.unmap(&(0..100), AT(6)), freed(5, true));
}

#[test]
fn later_mappings_are_not_unmapped() {
    let mut ranges = Ranges::default();
    ranges.map(&(0..10), AT(5), 1);
    assert_eq!(ranges.unmap(&(0..10), AT(4)), []);
    assert_eq!(ranges.unmap(&(0..10), AT(5)).len(), 1);
}

#[test]
fn a_late_mapping_gets_the_free_parts_of_its_range() {
    let mut ranges = Ranges::default();
    ranges.map(&(10..20), AT(9), 1);
    assert_eq!(ranges.displace(&(0..30), AT(8)), []);
    assert_eq!(ranges.map(&(0..30), AT(8), 2), Some(Freed { bytes: 10, callsite: 2, time: AT(8), is_last: false }));
    assert_eq!(ranges.map(&(12..15), AT(7), 3), Some(Freed { bytes: 3, callsite: 3, time: AT(7), is_last: true }));
    assert_eq!(ranges.unmap(&(0..30), AT(8)).iter().map(|freed| freed.bytes).sum::<u64>(), 20);
}

#[test]
fn displaced_pieces_are_reported_once() {
    let mut ranges = Ranges::default();
    ranges.map(&(0..10), AT(1), 1);
    assert_eq!(ranges.displace(&(5..20), AT(2)).len(), 1);
    assert!(!ranges.was_displaced(&(0..5), AT(9)), "that part is still there");
    assert!(!ranges.was_displaced(&(5..10), AT(0)));
    assert!(ranges.was_displaced(&(5..10), AT(1)));
    assert!(!ranges.was_displaced(&(5..10), AT(1)));
}

#[test]
fn empty_and_endless_ranges_do_no_harm() {
    let mut ranges = Ranges::default();
    ranges.map(&(10..u64::MAX), AT(1), 1);
    assert_eq!(ranges.unmap(&(20..20), AT(2)), []);
    assert_eq!(ranges.unmap(&(u64::MAX..u64::MAX), AT(2)), []);
    assert_eq!(
        ranges.unmap(&(0..u64::MAX), AT(2)),
        [Freed { bytes: u64::MAX - 10, callsite: 1, time: AT(1), is_last: true }]
    );
}
