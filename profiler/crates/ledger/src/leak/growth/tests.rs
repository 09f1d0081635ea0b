//! Tests with programs of known behaviour, each with a ledger of its own that is sampled each second.

use std::collections::VecDeque;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid, StackId, Tid};
use heapbpf_base::units::EstimatedBytes;
use profiler_common::interval::Interval;
use proptest::prelude::*;

use super::*;
use crate::ingest::event::{Allocation, Event, Free, Remap};
use crate::timeline::{SampleTrigger, TimelinePoint};
use crate::{LiveAllocation, inventory};

const PID: Pid = Pid(1);
const SECOND: u64 = 1_000_000_000;

/// A program whose callsites are numbered in the order in which they first allocate.
struct Program {
    ledger: Ledger,
    timeline: Timeline,
    now: MonotonicNanos,
    address: u64,
    interval: Interval,
    random: u64,
}

impl Program {
    fn new(interval: u32) -> Self {
        Self {
            ledger: Ledger::new(PID),
            timeline: Timeline::default(),
            now: MonotonicNanos(100 * SECOND),
            address: 0,
            interval: Interval::nearest(interval),
            random: 88_172_645_463_325_252,
        }
    }

    /// Draws a number from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a draw")]
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws a whole number below a limit.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    fn below(&mut self, limit: u32) -> usize {
        (self.draw() * f64::from(limit)) as usize
    }

    /// Allocates a block, and returns its address if the block was sampled.
    #[expect(clippy::cast_precision_loss, reason = "small")]
    fn allocate(&mut self, stack: u64, size_bytes: u64) -> Option<TargetAddr> {
        let chance = 1.0 - (-(size_bytes as f64) / f64::from(self.interval.bytes())).exp();
        if size_bytes < u64::from(self.interval.bytes()) && self.draw() >= chance {
            return None;
        }
        self.address += 16;
        let address = TargetAddr(self.address);
        let allocation = Allocation {
            pid: PID,
            tid: Tid(1),
            address,
            size_bytes,
            time: self.now,
            stack: StackId(stack),
            interval: self.interval,
            hook: HookId(0),
            heap: HeapId(0),
            has_replaced: false,
        };
        self.ledger.enter(Event::Alloc(allocation));
        Some(address)
    }

    fn free(&mut self, address: Option<TargetAddr>) {
        if let Some(address) = address {
            self.ledger.enter(Event::Free(Free { pid: PID, tid: Tid(1), address, time: self.now, age_us: 0 }));
        }
    }

    /// Runs the program for some seconds, calling `work` in each.
    fn run(&mut self, seconds: u64, mut work: impl FnMut(&mut Self, u64)) {
        for second in 0..seconds {
            self.timeline.note(TimelinePoint { time: self.now, trigger: None }, &self.ledger);
            self.now.0 += SECOND / 2;
            // Dumps change nothing, however many there are.
            self.timeline.note(TimelinePoint { time: self.now, trigger: Some(SampleTrigger::Mark) }, &self.ledger);
            work(self, second);
            self.now.0 += SECOND / 2;
        }
    }

    fn growths(&self) -> Leaks {
        Leaks::of(&self.timeline, &self.ledger, self.now, None)
    }

    fn growing(&self) -> Vec<u64> {
        self.growths().candidates.iter().map(|growth| growth.callsite as u64).collect()
    }
}

const LEAK: u64 = 0;
const CACHE: u64 = 1;
const CHURN: u64 = 2;
const STARTUP: u64 = 3;
const RISING: u64 = 4;

/// A slow leak of 200 KiB a second, beside a cache of 100 MiB that fills in a fifth of the time, 20 MiB that were allocated at
/// the beginning, churn of blocks that live for some seconds, and churn whose blocks live but briefly and are more each second.
fn typical(program: &mut Program, seconds: u64) {
    for stack in [LEAK, CACHE, CHURN, STARTUP, RISING] {
        // Each callsite occurs, whether it is sampled or not.
        program.allocate(stack, 1 << 21);
    }
    for _ in 0..2000 {
        program.allocate(STARTUP, 10 << 10);
    }
    let mut churning = VecDeque::new();
    let mut rising: Vec<Option<TargetAddr>> = Vec::new();
    program.run(seconds, |program, second| {
        for _ in 0..200 {
            program.allocate(LEAK, 1024);
        }
        let fills = if second < seconds / 5 { 100 * 1024 / (seconds / 5) } else { 0 };
        for _ in 0..fills {
            program.allocate(CACHE, 1024);
        }
        let requests = 500 + program.below(500);
        for _ in 0..requests {
            churning.push_back((second, program.allocate(CHURN, 2048)));
        }
        while churning.front().is_some_and(|(made, _)| made + 4 < second) {
            let (_, address) = churning.pop_front().expect("it is there");
            program.free(address);
        }
        rising.drain(..).for_each(|address| program.free(address));
        rising.extend((0..second * 10).map(|_| program.allocate(RISING, 1024)));
    });
}

#[test]
fn a_leak_is_found_among_caches_churn_and_initial_blocks() {
    for interval in [1, 4096, 65_536] {
        for seconds in [20, 60, 150] {
            let mut program = Program::new(interval);
            typical(&mut program, seconds);
            let growths = program.growths();
            assert_eq!(program.growing(), [LEAK], "{interval} {seconds}: {growths:?}");
            let leak = growths.candidates[0];
            let truth = 200.0 * 1024.0;
            assert!((leak.bytes_per_second - truth).abs() <= leak.margin + 0.03 * truth, "{interval}: {leak:?}");
            // Half of what it made, and the first block.
            assert!((0.35..0.8).contains(&leak.old_share), "{leak:?}");
            assert!(leak.survival.is_some_and(|survival| survival > 0.99), "{leak:?}");
        }
    }
}

/// An inventory grows once, when it is entered.
#[test]
fn blocks_from_before_the_recording_are_no_candidates() {
    let mut program = Program::new(1);
    program.run(20, |program, second| {
        for number in (0..100).filter(|_| second == 0) {
            program.ledger.enter_earlier(&LiveAllocation {
                address: TargetAddr((1 << 40) + number * 16),
                size_bytes: 1 << 20,
                interval: Interval::EXACT,
                stack: inventory::stack_id(1 << 20),
                heap: HeapId(0),
                time: program.now,
            });
        }
        program.allocate(1, 100);
    });
    let growths = program.growths();
    let of_inventory = |callsite: usize| program.ledger.is_inventory(callsite);
    assert!(!growths.candidates.iter().any(|growth| of_inventory(growth.callsite)), "{growths:?}");
    assert_eq!(growths.candidates.len(), 1, "the other leaks");
}

#[test]
fn larger_leaks_come_first() {
    let mut program = Program::new(1);
    program.run(20, |program, _| {
        (0..10).for_each(|_| {
            program.allocate(0, 100);
        });
        (0..10).for_each(|_| {
            program.allocate(1, 1000);
        });
        (0..5).for_each(|_| {
            program.allocate(2, 1000);
        });
    });
    assert_eq!(program.growing(), [1, 2, 0]);
}

#[test]
fn a_partial_leak_is_found() {
    let mut program = Program::new(1);
    program.run(30, |program, _| {
        for i in 0..80 {
            let address = program.allocate(0, 48);
            if i % 8 != 0 {
                program.free(address);
            }
        }
    });
    let growths = program.growths();
    let [leak] = growths.candidates.as_slice() else { panic!("{growths:?}") };
    assert!((leak.bytes_per_second - 480.0).abs() < 5.0, "{leak:?}");
    assert!(leak.survival.is_some_and(|survival| (0.10..0.15).contains(&survival)), "{leak:?}");
}

#[test]
fn short_recordings_give_no_result() {
    let mut program = Program::new(1);
    program.run(5, |program, _| {
        program.allocate(0, 1000);
    });
    let growths = program.growths();
    assert!(growths.too_short && growths.candidates.is_empty(), "{growths:?}");
    assert_eq!(growths.span_ns, 5 * SECOND);
    program.run(5, |program, _| {
        program.allocate(0, 1000);
    });
    assert!(!program.growths().too_short);
}

#[test]
fn callsites_that_stopped_growing_are_not_candidates() {
    let mut program = Program::new(1);
    program.run(100, |program, second| {
        if second < 45 {
            program.allocate(0, 100_000);
        }
    });
    assert_eq!(program.growing(), [] as [u64; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A stationary program: blocks come at random and live for a random time. At 97.5 % for each of two lines, few
    /// are taken for growing, and those with a small score.
    #[test]
    fn steady_churn_is_rarely_a_candidate(seed in 1u64.., seconds in 12u64..100) {
        let mut program = Program::new(4096);
        program.random = seed;
        let mut live: Vec<Option<TargetAddr>> = Vec::new();
        (0..400).for_each(|_| live.push(program.allocate(CHURN, 1000)));
        program.run(seconds, |program, _| {
            for _ in 0..200 {
                let at = program.below(400);
                program.free(live[at]);
                live[at] = program.allocate(CHURN, 1000);
            }
            (0..40).for_each(|_| { program.allocate(LEAK, 1000); });
        });
        let growths = program.growths();
        // The leak is callsite 1 here, since the churn allocated first.
        let first = growths.candidates.first().map(|growth| growth.callsite);
        prop_assert_eq!(first, Some(1), "{:?}", growths);
    }

    #[test]
    fn results_are_within_bounds(sizes in prop::collection::vec((0u64..3, 1u64..5000, any::<bool>()), 1..400)) {
        let mut program = Program::new(512);
        let mut sizes = sizes.into_iter();
        program.run(20, |program, _| {
            for (stack, size, frees) in sizes.by_ref().take(20) {
                let address = program.allocate(stack, size);
                if frees {
                    program.free(address);
                }
            }
        });
        for growth in program.growths().candidates {
            prop_assert!(growth.score > 0.0 && growth.score <= growth.bytes_per_second, "{:?}", growth);
            prop_assert!((0.0..=1.0).contains(&growth.old_share), "{:?}", growth);
            prop_assert!(growth.survival.is_none_or(|survival| (0.0..=1.0).contains(&survival)), "{:?}", growth);
        }
    }
}

#[test]
fn mappings_can_leak() {
    let mut program = Program::new(1);
    program.run(20, |program, second| {
        program.ledger.enter(Event::Remap(Remap {
            pid: PID,
            tid: Tid(1),
            old_address: TargetAddr(0),
            old_bytes: 0,
            new_address: TargetAddr(1 << 40 | second << 20),
            new_bytes: 1 << 20,
            began: program.now,
            ended: program.now,
            stack: StackId(LEAK),
            hook: HookId(0),
            heap: HeapId(0),
        }));
    });
    let growths = program.growths();
    assert_eq!(growths.count, 1, "{growths:?}");
    let growth = growths.candidates[0];
    assert!((growth.bytes_per_second - f64::from(1 << 20)).abs() <= growth.margin.max(20_000.0), "{growth:?}");
    assert!((0.4..0.6).contains(&growth.old_share), "{growth:?}");
}

/// If only old blocks are requested, callsites without any are left out.
#[test]
fn callsites_without_old_blocks_are_left_out() {
    let mut program = Program::new(1);
    program.run(20, |program, _| {
        for stack in [LEAK, CACHE] {
            program.allocate(stack, 5000);
        }
    });
    let growing = |older: Option<&[Amounts]>| -> Vec<usize> {
        let growths = Leaks::of(&program.timeline, &program.ledger, program.now, older);
        assert_eq!(growths.count, growths.candidates.len());
        growths.candidates.iter().map(|growth| growth.callsite).collect()
    };
    let old = Amounts { bytes: EstimatedBytes::exact(1), ..Amounts::default() };
    assert_eq!(growing(None), [0, 1]);
    assert_eq!(growing(Some(&[Amounts::default(), old])), [1]);
    assert_eq!(growing(Some(&[])), [0_usize; 0], "of those that are not named nothing is old");
}

/// A user who knows the worst hundred wants to see the next.
#[test]
fn all_growing_callsites_are_kept() {
    let mut program = Program::new(1);
    program.run(20, |program, _| {
        for stack in 0..150 {
            program.allocate(stack, 1000 + stack);
        }
    });
    assert_eq!(program.growing(), (0..150).rev().collect::<Vec<_>>());
}
