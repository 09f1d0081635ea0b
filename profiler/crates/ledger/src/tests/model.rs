//! Tests of the ledger against a naive model: a list of all that it should have counted, from which every sum is computed anew.

use std::collections::BTreeMap;

use super::*;
use crate::snapshot::TargetSnapshot;

/// Bytes of one callsite over a span: opening, allocated, freed, live, and live at the target's peak.
type Sums = [EstimatedBytes; 5];

/// What the ledger should have counted.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Opening(usize, EstimatedBytes),
    Alloc(usize, EstimatedBytes),
    Free(usize, EstimatedBytes),
    Restore(usize, EstimatedBytes),
}

#[derive(Clone, Debug, Default)]
struct Model {
    log: Vec<Entry>,
    /// Stack of each callsite, and whether the callsite was inherited from a parent.
    callsites: Vec<(u64, bool)>,
    /// Blocks that are truly live, by address.
    kernel: BTreeMap<u64, Allocation>,
    /// Blocks that are live by the recorded events, by address, with their callsites.
    known: BTreeMap<u64, (Allocation, usize)>,
    /// Block that the thread has freed last and not put back.
    freed: Option<(Allocation, usize)>,
}

fn bytes(allocation: &Allocation) -> EstimatedBytes {
    Amounts::of(allocation.size_bytes, allocation.interval).bytes
}

impl Model {
    fn callsite(&mut self, stack: StackId) -> usize {
        self.callsites.iter().position(|&site| site == (stack.0, false)).unwrap_or_else(|| {
            self.callsites.push((stack.0, false));
            self.callsites.len() - 1
        })
    }

    fn alloc(&mut self, allocation: Allocation) {
        self.free(allocation.address.0);
        let callsite = self.callsite(allocation.stack);
        self.log.push(Entry::Alloc(callsite, bytes(&allocation)));
        self.known.insert(allocation.address.0, (allocation, callsite));
    }

    fn free(&mut self, address: u64) -> Option<(Allocation, usize)> {
        let (allocation, callsite) = self.known.remove(&address)?;
        self.log.push(Entry::Free(callsite, bytes(&allocation)));
        Some((allocation, callsite))
    }

    fn restore(&mut self, allocation: Allocation) {
        if self.known.get(&allocation.address.0).is_some_and(|(known, _)| *known == allocation) {
            return;
        }
        match self.freed.take_if(|(freed, _)| freed.address == allocation.address) {
            Some((freed, callsite)) if freed == allocation => {
                self.free(allocation.address.0);
                self.log.push(Entry::Restore(callsite, bytes(&allocation)));
                self.known.insert(allocation.address.0, (allocation, callsite));
            }
            _ => self.alloc(allocation),
        }
    }

    /// Enters a recorded free.
    fn told_free(&mut self, address: u64) {
        self.freed = self.free(address).or(self.freed.take());
    }

    fn reconcile(&mut self) {
        let is_live = |(known, _): &(Allocation, usize)| self.kernel.get(&known.address.0) == Some(known);
        let wrong: Vec<u64> = self.known.values().filter(|known| !is_live(known)).map(|(a, _)| a.address.0).collect();
        for address in wrong {
            self.free(address);
        }
        for (address, allocation) in self.kernel.clone() {
            if !self.known.contains_key(&address) {
                self.alloc(allocation);
            }
        }
    }

    fn fork(&self) -> Self {
        let log = self.sums(0).iter().enumerate().map(|(callsite, sums)| Entry::Opening(callsite, sums[3])).collect();
        Self {
            log,
            callsites: self.callsites.iter().map(|&(stack, _)| (stack, true)).collect(),
            kernel: self.known.iter().map(|(&address, &(allocation, _))| (address, allocation)).collect(),
            known: self.known.clone(),
            freed: None,
        }
    }

    /// Returns the sums of each callsite since this place in the log.
    fn sums(&self, since: usize) -> Vec<Sums> {
        let mut sums = vec![[EstimatedBytes::ZERO; 5]; self.callsites.len()];
        let (mut live, mut peak) = (EstimatedBytes::ZERO, EstimatedBytes::ZERO);
        for (place, entry) in self.log.iter().enumerate() {
            let (callsite, sum, change) = match *entry {
                Entry::Opening(callsite, bytes) => (callsite, 0, bytes),
                Entry::Alloc(callsite, bytes) => (callsite, 1, bytes),
                Entry::Free(callsite, bytes) => (callsite, 2, EstimatedBytes::ZERO - bytes),
                Entry::Restore(callsite, bytes) => (callsite, 2, bytes),
            };
            live += change;
            sums[callsite][3] += change;
            if sum == 0 || place < since {
                sums[callsite][0] += change;
            } else if sum == 1 {
                sums[callsite][1] += change;
            } else {
                sums[callsite][2] -= change;
            }
            if live > peak {
                peak = live;
                sums.iter_mut().for_each(|sums| sums[4] = sums[3]);
            }
        }
        sums
    }
}

fn sums(totals: &Totals) -> Sums {
    [totals.opening_bytes, totals.alloc_bytes, totals.free_bytes, totals.live_bytes(), totals.at_peak.bytes]
}

/// Compares a snapshot, or a window since this place in the log.
#[track_caller]
fn agree(snapshot: &TargetSnapshot, model: &Model, since: usize) {
    let expected = model.sums(since);
    let whole: Sums = std::array::from_fn(|i| expected.iter().map(|sums| sums[i]).sum());
    assert_eq!(sums(&snapshot.totals), whole);
    assert_eq!(sums(&snapshot.heaps.first().map(|(_, totals)| *totals).unwrap_or_default()), whole);
    assert!(sums(&snapshot.totals).iter().all(|&sum| sum >= EstimatedBytes::ZERO || since > 0), "{whole:?}");
    let found: BTreeMap<usize, (Sums, bool)> =
        snapshot.callsites.iter().map(|site| (site.index as usize, (sums(&site.totals), site.inherited))).collect();
    for (callsite, expected) in expected.into_iter().enumerate() {
        match found.get(&callsite) {
            Some(&(found, inherited)) => assert_eq!((found, inherited), (expected, model.callsites[callsite].1)),
            None => assert_eq!(expected[1..4], [EstimatedBytes::ZERO; 3], "callsite {callsite} is left out"),
        }
    }
    let at_peak = snapshot.at_peak();
    let peak: EstimatedBytes = at_peak.callsites.iter().map(|site| site.totals.live_bytes()).sum();
    assert_eq!(peak, at_peak.totals.live_bytes());
    assert!(since > 0 || peak == snapshot.totals.peak_bytes);
}

/// A step of the target at an address. If `lost`, its record is dropped.
#[derive(Clone, Copy, Debug)]
enum Step {
    Alloc {
        address: u64,
        size_bytes: u64,
        stack: u64,
        interval_bytes: u32,
        lost: bool,
    },
    Free {
        address: u64,
        lost: bool,
    },
    /// The free of a block that is not there, or not sampled.
    UnknownFree {
        address: u64,
    },
    FailedRealloc {
        address: u64,
        free_lost: bool,
        restore_lost: bool,
    },
    Reconcile,
    Fork,
    Window,
}

fn step() -> impl Strategy<Value = Step> {
    let lost = || prop_oneof![9 => Just(false), 1 => Just(true)];
    let interval = prop_oneof![Just(1u32), Just(4096), 2u32..100_000];
    prop_oneof![
        12 => (1u64..12, 1u64..10_000, 0u64..4, interval, lost()).prop_map(
            |(address, size_bytes, stack, interval_bytes, lost)| Step::Alloc { address, size_bytes, stack, interval_bytes, lost }
        ),
        9 => (1u64..12, lost()).prop_map(|(address, lost)| Step::Free { address, lost }),
        1 => (1u64..12).prop_map(|address| Step::UnknownFree { address }),
        2 => (1u64..12, lost(), lost())
            .prop_map(|(address, free_lost, restore_lost)| Step::FailedRealloc { address, free_lost, restore_lost }),
        1 => Just(Step::Reconcile),
        1 => Just(Step::Fork),
        2 => Just(Step::Window),
    ]
}

/// The ledger and its model, which enter the same steps.
struct Pair {
    ledger: Ledger,
    model: Model,
    /// Snapshot and place in the log at which the current window begins.
    base: (TargetSnapshot, usize),
    clock: u64,
}

impl Pair {
    fn new() -> Self {
        let ledger = Ledger::new(PID);
        let base = (ledger.snapshot(MonotonicNanos(0)), 0);
        Self { ledger, model: Model::default(), base, clock: 0 }
    }

    fn take(&mut self, step: Step) {
        // Each block is made in a tick of its own.
        self.clock += 1 << 30;
        let now = MonotonicNanos(self.clock);
        match step {
            Step::Alloc { address, size_bytes, stack, interval_bytes, lost } => {
                let made = Allocation { time: now, ..allocation(address, size_bytes, stack, interval_bytes) };
                self.model.kernel.insert(address, made);
                if !lost {
                    self.ledger.enter(Event::Alloc(made));
                    self.model.alloc(made);
                }
            }
            Step::Free { address, lost } => {
                if self.model.kernel.remove(&address).is_some() && !lost {
                    self.ledger.enter(free(address));
                    self.model.told_free(address);
                }
            }
            Step::UnknownFree { address } => {
                if !self.model.known.contains_key(&address) {
                    let before = self.ledger.frees_unknown();
                    self.ledger.enter(free(address));
                    assert_eq!(self.ledger.frees_unknown(), before + 1);
                }
            }
            Step::FailedRealloc { address, free_lost, restore_lost } => {
                let Some(&block) = self.model.kernel.get(&address) else { return };
                if !free_lost {
                    self.ledger.enter(free(address));
                    self.model.told_free(address);
                }
                if !restore_lost {
                    self.ledger.enter(Event::Restore(block));
                    self.model.restore(block);
                }
            }
            Step::Reconcile => {
                let kernel: Vec<LiveAllocation> = self.model.kernel.values().map(LiveAllocation::from).collect();
                self.ledger.reconcile(kernel.iter().copied(), |_| false);
                self.model.reconcile();
                let truth: EstimatedBytes = self.model.kernel.values().map(bytes).sum();
                assert_eq!(self.ledger.totals().live_bytes(), truth, "what is live is right again");
                assert_eq!(self.ledger.reconcile(kernel, |_| false), Reconciled::default());
            }
            Step::Fork => {
                self.model = self.model.fork();
                self.ledger = self.ledger.fork(PID);
                self.base = (self.ledger.snapshot(now), self.model.log.len());
            }
            Step::Window => {
                let snapshot = self.ledger.snapshot(now);
                agree(&snapshot, &self.model, 0);
                agree_window(&snapshot, self);
                self.base = (snapshot, self.model.log.len());
            }
        }
        assert_eq!(self.ledger.live_blocks(), self.model.known.len());
    }
}

fn agree_window(snapshot: &TargetSnapshot, pair: &Pair) {
    let (base, since) = &pair.base;
    agree(&snapshot.since(base), &pair.model, *since);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Blocks at a few addresses, recorded or not, freed, restored, inherited; resyncs at any time; windows between any two
    /// times: every sum of every callsite, also at the peak, agrees with a list of the recorded events.
    #[test]
    fn the_ledger_agrees_with_a_list_of_events(steps in proptest::collection::vec(step(), 0..120)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.take(step);
        }
        pair.take(Step::Window);
        pair.take(Step::Reconcile);
        pair.take(Step::Window);
        for address in 0..12 {
            pair.take(Step::Free { address, lost: false });
        }
        prop_assert_eq!(pair.ledger.totals().live_bytes(), EstimatedBytes::ZERO);
        prop_assert_eq!(pair.ledger.totals().live_count(), EstimatedCount::ZERO);
        prop_assert_eq!(pair.ledger.totals().live_variance, Default::default());
        prop_assert_eq!((pair.ledger.totals().live_samples, pair.ledger.live_blocks()), (0, 0));
    }
}
