//! Tests of the journal against the totals.

use super::*;
use crate::live::Correction;
use crate::totals::{Flow, Movement};

/// Live bytes, live blocks and the number of samples that came, by the journal alone.
#[derive(Debug, Default, PartialEq)]
struct Sums {
    live_bytes: EstimatedBytes,
    live_count: EstimatedCount,
    came: u64,
    peak_bytes: EstimatedBytes,
}

impl Sums {
    fn enter(&mut self, flows: Vec<Flow>) {
        for flow in flows {
            let (came, went) = match flow.movement {
                Movement::In(weight) | Movement::Opening(weight) => {
                    self.came += weight.samples;
                    (weight, Amounts::default())
                }
                Movement::Passed(weight) => {
                    self.came += weight.samples;
                    (Amounts::default(), Amounts::default())
                }
                Movement::Out(weight) => (Amounts::default(), weight),
                Movement::Back(weight) => (weight, Amounts::default()),
                Movement::Reweighed { from, to } => (to, from),
                Movement::FreedReweighed { .. } => Default::default(),
            };
            self.live_bytes += came.bytes - went.bytes;
            self.live_count += came.count - went.count;
            self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        }
    }
}

fn map(old: std::ops::Range<u64>, new: std::ops::Range<u64>, time: u64) -> Event {
    Event::Remap(Remap {
        pid: PID,
        tid: Tid(1),
        began: MonotonicNanos(time),
        ended: MonotonicNanos(time),
        old_address: TargetAddr(old.start),
        old_bytes: old.end - old.start,
        new_address: TargetAddr(new.start),
        new_bytes: new.end - new.start,
        stack: StackId(1),
        hook: HookId(0),
        heap: HeapId(1),
    })
}

#[test]
fn flows_are_not_recorded_by_default() {
    assert_eq!(ledger([alloc(1, 100, 7)]).take_flows(), []);
}

#[test]
fn flows_begin_with_the_live_blocks() {
    let mut ledger = ledger([alloc(1, 100, 7), alloc(2, 50, 8), alloc(3, 7, 7), free(2), map(0..0, 0..4096, 5)]);
    ledger.enter(map(1024..2048, 0..0, 6));
    ledger.record_flows();
    let flow = |callsite, bytes| Flow { callsite, movement: Movement::In(Amounts::exact(bytes, 1)) };
    assert_eq!(ledger.take_flows(), [flow(0, 7), flow(0, 100), flow(2, 3072)]);
    assert_eq!(ledger.take_flows(), []);
    let mut child = ledger.fork(Pid(2));
    assert_eq!(child.take_flows(), []);
    child.record_flows();
    assert_eq!(child.take_flows(), [flow(0, 7), flow(0, 100), flow(2, 3072)]);
}

#[test]
fn a_failed_realloc_is_a_free_and_its_reversal() {
    let mut ledger = ledger([]);
    ledger.record_flows();
    for event in [alloc(1, 100, 7), free(1), Event::Restore(allocation(1, 100, 7, 1))] {
        ledger.enter(event);
    }
    let weight = Amounts::exact(100, 1);
    let movements: Vec<Movement> = ledger.take_flows().iter().map(|flow| flow.movement).collect();
    assert_eq!(movements, [Movement::In(weight), Movement::Out(weight), Movement::Back(weight)]);
}

proptest! {
    /// Flows add up to the totals of a ledger after any events.
    #[test]
    fn flows_add_up_to_totals(
        operations in proptest::collection::vec((1u64..12, 0u64..5000, 0u64..3, 0u8..9), 0..200),
        interval_bytes in prop_oneof![Just(1u32), 2u32..100_000],
        asked_at in 0usize..20,
    ) {
        let mut ledger = Ledger::new(PID);
        let mut sums = Sums::default();
        let mut came_before = 0;
        for (at, (address, size, stack, operation)) in operations.into_iter().enumerate() {
            if at == asked_at {
                came_before = ledger.totals().alloc_samples - ledger.totals().live_samples;
                ledger.record_flows();
            }
            let block = Allocation { time: MonotonicNanos(1), ..allocation(address, size, stack, interval_bytes) };
            let time = 10 + at as u64;
            match operation {
                0..=2 => ledger.enter(Event::Alloc(block)),
                3 | 4 => ledger.enter(free(address)),
                5 => ledger.enter(Event::Restore(block)),
                6 => ledger.enter(map(0..0, address * 10..address * 10 + size, time)),
                7 => ledger.enter(map(address * 10..address * 10 + size, 0..0, time)),
                _ => ledger.correct(&Correction::Removed(TargetAddr(address))),
            }
            sums.enter(ledger.take_flows());
            if at >= asked_at {
                prop_assert_eq!(sums.live_bytes, ledger.totals().live_bytes());
                prop_assert_eq!(sums.live_count, ledger.totals().live_count());
                prop_assert_eq!(sums.came, ledger.totals().alloc_samples - came_before);
                prop_assert!(sums.peak_bytes <= ledger.totals().peak_bytes);
                if asked_at == 0 {
                    prop_assert_eq!(sums.peak_bytes, ledger.totals().peak_bytes);
                }
            }
        }
    }

    /// Thinning moves what is live and nothing else.
    #[test]
    fn thinning_adds_up(sizes in proptest::collection::vec((1u64..5000, any::<bool>()), 1..20)) {
        let mut ledger = Ledger::new(PID);
        ledger.record_flows();
        let mut sums = Sums::default();
        for (address, (size, _)) in (1..).zip(&sizes) {
            ledger.enter(Event::Alloc(allocation(address, *size, 1, 64)));
        }
        for block in ledger.live().collect::<Vec<_>>() {
            let stays = sizes[usize::try_from(block.address.0 - 1).expect("few")].1;
            ledger.thin(&block, stays.then(|| Interval::nearest(4096)));
        }
        sums.enter(ledger.take_flows());
        prop_assert_eq!(sums.live_bytes, ledger.totals().live_bytes());
        prop_assert_eq!(sums.live_count, ledger.totals().live_count());
    }
}
