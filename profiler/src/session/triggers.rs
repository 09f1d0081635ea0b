//! When a recording is dumped by itself. Pure: it is told times and amounts.

use std::time::Duration;

use crate::model::WindowReason;
use crate::units::EstimatedBytes;

/// What a recording is dumped at, beside signals and its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpPlan {
    /// After each such time.
    pub every: Option<Duration>,
    /// When live bytes of all targets are so far above the most that they were at any dump.
    pub growth_bytes: Option<u64>,
    /// When so many bytes more were allocated.
    pub alloc_bytes: Option<u64>,
    /// When dumps begin to be relative to that moment.
    pub mark_after: Option<Duration>,
}

/// Where a recording stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    /// Since it began.
    pub(super) elapsed: Duration,
    /// Of all targets.
    pub(super) live_bytes: EstimatedBytes,
    /// By all targets, also those that have ended, since it began.
    pub(super) alloc_bytes: EstimatedBytes,
}

#[derive(Debug)]
pub(super) struct Triggers {
    plan: DumpPlan,
    /// When the next periodic dump is due.
    next: Option<Duration>,
    /// Periodic dumps that were due since the last dump and not taken.
    merged: u32,
    /// The most live bytes at any dump.
    live_max: EstimatedBytes,
    /// Bytes allocated when a dump was last taken for them.
    alloc_base: EstimatedBytes,
    mark_at: Option<Duration>,
}

impl Triggers {
    pub(super) fn new(plan: DumpPlan) -> Self {
        Self {
            plan,
            next: plan.every,
            merged: 0,
            live_max: EstimatedBytes::ZERO,
            alloc_base: EstimatedBytes::ZERO,
            mark_at: plan.mark_after,
        }
    }

    /// Whether a dump is to be taken now, and why. While an earlier one is still being written (`busy`) none is: a periodic
    /// one is merged with the next one, the others wait.
    pub(super) fn due(&mut self, now: &Standing, busy: bool) -> Option<WindowReason> {
        let is_time = self.is_time(now.elapsed);
        if busy {
            self.merged += u32::from(is_time);
            return None;
        }
        let reaches = |amount: EstimatedBytes, base: EstimatedBytes, by: Option<u64>| {
            by.is_some_and(|by| amount >= base + EstimatedBytes::exact(by))
        };
        let has_grown = reaches(now.live_bytes, self.live_max, self.plan.growth_bytes);
        let has_allocated = reaches(now.alloc_bytes, self.alloc_base, self.plan.alloc_bytes);
        if has_allocated {
            self.alloc_base = now.alloc_bytes;
        }
        match (is_time, has_grown, has_allocated) {
            (true, ..) => Some(WindowReason::Time),
            (_, true, _) => Some(WindowReason::Growth),
            (.., true) => Some(WindowReason::Alloc),
            _ => None,
        }
    }

    /// A dump was taken, for whatever reason. Tells how many periodic ones were merged into it.
    pub(super) fn dumped(&mut self, now: &Standing) -> u32 {
        self.live_max = self.live_max.max(now.live_bytes);
        std::mem::take(&mut self.merged)
    }

    /// Whether it is time to set a mark; once.
    pub(super) fn is_mark_due(&mut self, elapsed: Duration) -> bool {
        self.mark_at.take_if(|at| *at <= elapsed).is_some()
    }

    /// Whether a periodic dump is due. The ones after it stay where they were planned; what is late by more than a period
    /// is one dump.
    fn is_time(&mut self, elapsed: Duration) -> bool {
        let (Some(next), Some(every)) = (self.next, self.plan.every) else { return false };
        if elapsed < next {
            return false;
        }
        let late = elapsed.saturating_sub(next).as_nanos() / every.as_nanos().max(1);
        self.merged = self.merged.saturating_add(u32::try_from(late).unwrap_or(u32::MAX));
        let periods = u32::try_from(late + 1).unwrap_or(u32::MAX);
        self.next = Some(next.saturating_add(every.saturating_mul(periods)));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use WindowReason::{Alloc, Growth, Time};

    /// Milliseconds, live bytes, allocated bytes.
    fn at(elapsed_ms: u64, live: u64, alloc: u64) -> Standing {
        Standing {
            elapsed: Duration::from_millis(elapsed_ms),
            live_bytes: EstimatedBytes::exact(live),
            alloc_bytes: EstimatedBytes::exact(alloc),
        }
    }

    /// Goes through the moments and dumps where that is due.
    fn check(plan: DumpPlan, moments: &[(u64, u64, u64)], expected: &[(u64, WindowReason)]) {
        let mut triggers = Triggers::new(plan);
        let mut dumps = Vec::new();
        for &(elapsed_ms, live, alloc) in moments {
            let now = at(elapsed_ms, live, alloc);
            if let Some(reason) = triggers.due(&now, false) {
                assert_eq!(triggers.dumped(&now), 0, "nothing was in the way at {elapsed_ms} ms");
                dumps.push((elapsed_ms, reason));
            }
        }
        assert_eq!(dumps, expected);
    }

    const SECOND: DumpPlan =
        DumpPlan { every: Some(Duration::from_secs(1)), growth_bytes: None, alloc_bytes: None, mark_after: None };

    #[test]
    fn nothing_is_due_where_nothing_was_asked_for() {
        check(DumpPlan::default(), &[(0, 0, 0), (1 << 40, u64::MAX, u64::MAX)], &[]);
    }

    #[test]
    fn periodic_dumps_do_not_drift() {
        check(
            SECOND,
            &[(0, 0, 0), (999, 0, 0), (1015, 0, 0), (1999, 0, 0), (2000, 0, 0), (2020, 0, 0), (3001, 0, 0)],
            &[(1015, Time), (2000, Time), (3001, Time)],
        );
    }

    #[test]
    fn growth_counts_from_the_highest_of_all_dumps() {
        let plan = DumpPlan { growth_bytes: Some(100), ..DumpPlan::default() };
        // Falling back and rising again to where it was is no growth.
        check(
            plan,
            &[(1, 99, 0), (2, 100, 0), (3, 199, 0), (4, 10, 0), (5, 150, 0), (6, 260, 0), (7, 359, 0), (8, 360, 0)],
            &[(2, Growth), (6, Growth), (8, Growth)],
        );
    }

    #[test]
    fn a_dump_for_another_reason_raises_what_growth_counts_from() {
        let mut triggers = Triggers::new(DumpPlan { growth_bytes: Some(100), ..DumpPlan::default() });
        triggers.dumped(&at(1, 90, 0));
        assert_eq!(triggers.due(&at(2, 189, 0), false), None);
        assert_eq!(triggers.due(&at(3, 190, 0), false), Some(Growth));
    }

    #[test]
    fn what_is_allocated_at_once_is_one_dump() {
        let plan = DumpPlan { alloc_bytes: Some(1000), ..DumpPlan::default() };
        check(plan, &[(1, 0, 999), (2, 0, 5500), (3, 0, 6400), (4, 0, 6500)], &[(2, Alloc), (4, Alloc)]);
    }

    #[test]
    fn periodic_dumps_merge_while_one_is_being_written() {
        let mut triggers = Triggers::new(SECOND);
        assert_eq!(triggers.due(&at(1000, 0, 0), true), None);
        assert_eq!(triggers.due(&at(1500, 0, 0), false), None, "it waits for its next turn");
        assert_eq!(triggers.due(&at(2000, 0, 0), true), None);
        assert_eq!(triggers.due(&at(3000, 0, 0), false), Some(Time));
        assert_eq!(triggers.dumped(&at(3000, 0, 0)), 2);
        // Where the session itself was held up.
        assert_eq!(triggers.due(&at(7200, 0, 0), false), Some(Time));
        assert_eq!(triggers.dumped(&at(7200, 0, 0)), 3);
        assert_eq!(triggers.due(&at(7999, 0, 0), false), None);
    }

    #[test]
    fn growth_and_allocation_wait_while_a_dump_is_being_written() {
        let plan = DumpPlan { growth_bytes: Some(100), alloc_bytes: Some(100), ..DumpPlan::default() };
        let mut triggers = Triggers::new(plan);
        assert_eq!(triggers.due(&at(1, 100, 100), true), None);
        assert_eq!(triggers.due(&at(2, 100, 100), false), Some(Growth));
        assert_eq!(triggers.dumped(&at(2, 100, 100)), 0);
        assert_eq!(triggers.due(&at(3, 100, 100), false), None, "one dump serves both");
    }

    #[test]
    fn a_mark_is_due_once() {
        let mut triggers = Triggers::new(DumpPlan { mark_after: Some(Duration::from_secs(2)), ..DumpPlan::default() });
        let due = [1999, 2005, 2010].map(|ms| triggers.is_mark_due(Duration::from_millis(ms)));
        assert_eq!(due, [false, true, false]);
    }
}
