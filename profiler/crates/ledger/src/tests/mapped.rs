//! Tests of mapped memory in the ledger.

use super::*;

const PAGE: u64 = 4096;

/// A change of pages by a call that took from `began` to one nanosecond later. Each range is its first page and its number of
/// pages.
fn remap(old: (u64, u64), new: (u64, u64), began: u64, stack: u64) -> Event {
    Event::Remap(Remap {
        pid: PID,
        tid: Tid(1),
        old_address: TargetAddr(old.0 * PAGE),
        old_bytes: old.1 * PAGE,
        new_address: TargetAddr(new.0 * PAGE),
        new_bytes: new.1 * PAGE,
        began: MonotonicNanos(began),
        ended: MonotonicNanos(began + 1),
        stack: StackId(stack),
        hook: HookId(0),
        heap: HeapId(0),
    })
}

fn map(new: (u64, u64), began: u64, stack: u64) -> Event {
    remap((0, 0), new, began, stack)
}

fn unmap(old: (u64, u64), began: u64) -> Event {
    remap(old, (0, 0), began, 0)
}

/// Checks live pages and mappings, pages and mappings ever, and pages at the peak.
fn check(events: impl IntoIterator<Item = Event>, expected: [u64; 5]) {
    let totals = *ledger(events).totals();
    let got = [
        totals.live_bytes().rounded() / PAGE,
        totals.live_count().rounded(),
        totals.alloc_bytes.rounded() / PAGE,
        totals.alloc_count.rounded(),
        totals.peak_bytes.rounded() / PAGE,
    ];
    assert_eq!(got, expected);
}

#[test]
fn parts_free_bytes_and_the_last_frees_the_mapping() {
    let events = [map((10, 4), 1, 7), unmap((11, 2), 3), unmap((10, 1), 5), unmap((13, 9), 7)];
    check(events.clone().into_iter().take(2), [2, 1, 4, 1, 4]);
    check(events.clone().into_iter().take(3), [1, 1, 4, 1, 4]);
    check(events, [0, 0, 4, 1, 4]);
}

#[test]
fn a_moved_mapping_belongs_to_the_moving_callsite() {
    let events = [map((10, 4), 1, 7), remap((10, 4), (20, 6), 3, 8), unmap((10, 4), 5)];
    check(events.clone(), [6, 1, 10, 2, 6]);
    let live: Vec<_> = ledger(events)
        .snapshot(MonotonicNanos(1 << 40))
        .callsites
        .iter()
        .map(|site| site.totals.live_bytes())
        .collect();
    assert_eq!(live, [EstimatedBytes::ZERO, EstimatedBytes::exact(6 * PAGE)]);
}

#[test]
fn a_mapping_grows_and_shrinks_in_place() {
    check([map((10, 4), 1, 7), remap((10, 4), (10, 6), 3, 8), remap((10, 6), (10, 1), 5, 8)], [1, 1, 11, 3, 6]);
}

#[test]
fn a_part_is_moved_out_of_a_mapping() {
    check([map((10, 4), 1, 7), remap((12, 1), (30, 1), 3, 8)], [4, 2, 5, 2, 4]);
}

#[test]
fn a_mapping_over_another_replaces_it() {
    check([map((10, 4), 1, 7), map((12, 4), 3, 8)], [6, 2, 8, 2, 6]);
    check([map((10, 4), 1, 7), map((8, 10), 3, 8)], [10, 1, 14, 2, 10]);
}

#[test]
fn moving_an_unknown_mapping_adds_nothing() {
    check([unmap((10, 4), 1), remap((10, 4), (20, 8), 3, 7)], [0, 0, 0, 0, 0]);
}

#[test]
fn a_late_record_leaves_the_range_to_its_new_owner() {
    // The pages were unmapped at 3, another thread has got the range at 4, and the record of that comes first.
    check([map((10, 4), 1, 7), map((10, 4), 4, 8), unmap((10, 4), 3)], [4, 1, 8, 2, 4]);
    // A move in place of the unmapping: what moved is known although its place is taken.
    check([map((10, 4), 1, 7), map((10, 4), 4, 8), remap((10, 4), (20, 4), 3, 9)], [8, 2, 12, 3, 8]);
    // By then, the new owner has moved its pages on, too.
    let owners = [map((10, 4), 1, 7), map((10, 4), 4, 8), remap((10, 4), (30, 4), 6, 8)];
    check(owners.into_iter().chain([remap((10, 4), (20, 4), 3, 9)]), [8, 2, 16, 4, 8]);
    // The new owner's record of its move is late as well.
    let owners = [map((10, 4), 1, 7), map((10, 4), 4, 8), map((10, 4), 7, 9), remap((10, 4), (30, 4), 6, 8)];
    check(owners.into_iter().chain([remap((10, 4), (20, 4), 3, 9)]), [12, 3, 20, 5, 12]);
}

#[test]
fn blocks_and_mappings_are_freed_separately() {
    let events = [alloc(10 * PAGE, 100, 7), map((10, 1), 1, 7), free(10 * PAGE)];
    check(events, [1, 1, 1, 2, 1]);
    check([alloc(10 * PAGE, PAGE, 7), unmap((10, 1), 3)], [1, 1, 1, 1, 1]);
}

/// A range of pages: its first page and their number.
type Pages = (u64, u64);

/// A call that has begun and not ended.
#[derive(Debug)]
struct Running {
    began: u64,
    old: Pages,
    new_pages: u64,
    /// The new range, once the kernel has chosen it.
    done: Option<Pages>,
}

/// Threads that make calls at the same time, and a kernel that gives each the lowest free addresses.
#[derive(Debug, Default)]
struct Machine {
    clock: u64,
    used: std::collections::BTreeSet<u64>,
    running: [Option<Running>; 4],
    owned: [Vec<Pages>; 4],
    records: Vec<Event>,
    mapped_pages: u64,
    mapped_count: u64,
}

impl Machine {
    /// Takes a thread one step further: it calls, the kernel acts, or the record is written.
    fn step(&mut self, thread: usize, wish: u64, new_pages: u64) {
        self.clock += 1;
        match self.running[thread].take() {
            None => {
                let owned = &mut self.owned[thread];
                let gives = !owned.is_empty() && wish > 0;
                let old =
                    if gives { owned.swap_remove(usize::try_from(wish).unwrap_or(0) % owned.len()) } else { (0, 0) };
                let new_pages = if gives && wish.is_multiple_of(3) { 0 } else { new_pages };
                self.running[thread] = Some(Running { began: self.clock, old, new_pages, done: None });
            }
            Some(call @ Running { done: None, .. }) => {
                let is_free = |first: &u64| (*first..first + call.new_pages).all(|page| !self.used.contains(&page));
                let first = (1..).find(is_free).expect("addresses do not end");
                self.used.extend(first..first + call.new_pages);
                (call.old.0..call.old.0 + call.old.1).for_each(|page| assert!(self.used.remove(&page)));
                self.running[thread] = Some(Running { done: Some((first, call.new_pages)), ..call });
            }
            Some(Running { began, old, done: Some(new), .. }) => {
                let Event::Remap(record) = remap(old, new, began, 7) else { unreachable!("it makes no other") };
                self.records.push(Event::Remap(Remap { ended: MonotonicNanos(self.clock), ..record }));
                if new.1 > 0 {
                    self.owned[thread].push(new);
                    self.mapped_pages += new.1;
                    self.mapped_count += 1;
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Threads map, unmap and move their own memory concurrently, and reuse each other's addresses: the ledger is correct for
    /// any order in which calls end.
    #[test]
    fn concurrent_threads_do_not_interfere(
        steps in proptest::collection::vec((0usize..4, 0u64..7, 1u64..4), 0..200),
    ) {
        let mut machine = Machine::default();
        for (thread, wish, new_pages) in steps {
            machine.step(thread, wish, new_pages);
        }
        for thread in 0..4 {
            while machine.running[thread].is_some() {
                machine.step(thread, 0, 1);
            }
        }
        let owned: Vec<Pages> = machine.owned.concat();
        let pages: u64 = owned.iter().map(|range| range.1).sum();
        let totals = *ledger(machine.records).totals();
        prop_assert_eq!(totals.live_bytes(), EstimatedBytes::exact(pages * PAGE));
        prop_assert_eq!(totals.live_count(), EstimatedCount::exact(owned.len() as u64));
        prop_assert_eq!(totals.alloc_bytes, EstimatedBytes::exact(machine.mapped_pages * PAGE));
        prop_assert_eq!(totals.alloc_count, EstimatedCount::exact(machine.mapped_count));
    }
}

#[test]
fn mappings_have_ages() {
    let second = 1_000_000_000;
    let events = [
        map((10, 4), second, 7),
        // Two pieces of one mapping.
        unmap((11, 1), 2 * second),
        map((20, 3), 5 * second, 7),
        map((30, 2), 6 * second, 8),
    ];
    let older = ledger(events).allocated_before([3, 10].map(|seconds| MonotonicNanos(seconds * second)));
    let pages = |amounts: &Amounts| (amounts.bytes.rounded() / PAGE, amounts.count.rounded());
    let told: Vec<_> = older.iter().map(|[old, all]| [pages(old), pages(all)]).collect();
    assert_eq!(told, [[(3, 1), (6, 2)], [(0, 0), (2, 1)]]);
}
