//! Tests that the replay, too, has the corrections of ledgers that were corrected after records were dropped.

use heapbpf_ledger::live::Correction;
use heapbpf_ledger::{Ledger, LiveAllocation};

use super::*;

proptest! {
    #[test]
    fn a_replay_applies_the_corrections_of_the_session(
        calls in prop::collection::vec((1u64..20, 1u64..9000, any::<bool>(), 0u8..4), 1..100),
    ) {
        let mut ledger = Ledger::new(Pid(7));
        ledger.record_as(LedgerId(1));
        let mut replay = Replay::default();
        beginning().into_iter().for_each(|entry| replay.enter(entry));
        // Blocks that are truly live. One of four events is lost.
        let mut truth: Vec<LiveAllocation> = Vec::new();
        for (time, (address, size_bytes, is_free, luck)) in (1_000_000u64..).step_by(20_000_000).zip(calls) {
            truth.retain(|block| block.address != TargetAddr(address));
            let event = if is_free {
                free(address, time)
            } else {
                truth.push(LiveAllocation::from(&allocation(address, size_bytes, time)));
                Event::Alloc(allocation(address, size_bytes, time))
            };
            if luck > 0 {
                ledger.enter(event.clone());
                replay.enter(Entry::Event(event));
            }
        }
        // Every other block is thinned out, wholly or to a larger interval.
        for (block, stays) in truth.iter().step_by(2).zip([false, true].into_iter().cycle()) {
            ledger.thin(block, stays.then(|| Interval::nearest(8192)));
        }
        let thinned = ledger.take_corrections();
        replay.enter(Entry::Step(Step::Corrected { ledger: LedgerId(1), corrections: thinned }));
        let reconciled = ledger.reconcile(truth.iter().copied(), |_| false);
        let corrections: Vec<Correction> = ledger.take_corrections();
        prop_assert_eq!(corrections.len() as u64, reconciled.total() + reconciled.replaced);
        replay.enter(Entry::Step(Step::Corrected { ledger: LedgerId(1), corrections }));

        let now = MonotonicNanos(1 << 40);
        let replayed = replay.snapshot(None, Modules::default(), now);
        prop_assert_eq!(format!("{:?}", replayed.targets[0].ledger), format!("{:?}", ledger.snapshot(now)));
        prop_assert!(ledger.take_corrections().is_empty());
    }
}
