//! Windows of a recording: when they start and end. Takes times and amounts; reads no clock.

use std::time::Duration;

use heapbpf_base::units::EstimatedBytes;
use heapbpf_ledger::model::{Health, Others, Window, WindowReason};
use heapbpf_linux::clock;

use crate::snapshot::WindowFacts;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpPlan {
    pub every: Option<Duration>,
    /// Dump when the live bytes of all targets exceed the maximum at any previous dump by this much.
    pub growth_bytes: Option<u64>,
    /// Dump when this many more bytes were allocated.
    pub alloc_bytes: Option<u64>,
    /// Set a mark after this time: later windows start there.
    pub mark_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    pub(super) elapsed: Duration,
    pub(super) live_bytes: EstimatedBytes,
    /// Bytes allocated by all targets since the start, including exited ones.
    pub(super) alloc_bytes: EstimatedBytes,
}

pub(super) struct Windows {
    next: Option<Duration>,
    merged: u32,
    live_max: EstimatedBytes,
    alloc_base: EstimatedBytes,
    is_marked: bool,
    /// Start of the recording. It is set again when all targets that were found are about to be attached to.
    pub(super) started: clock::Instant,
    /// Start of the current window; `None` for the start of the recording.
    start: Option<clock::Instant>,
    since_mark: bool,
    pub(super) ended: u32,
    health: Health,
}

impl Windows {
    pub(super) fn new(started: clock::Instant) -> Self {
        Self {
            next: None,
            merged: 0,
            live_max: EstimatedBytes::ZERO,
            alloc_base: EstimatedBytes::ZERO,
            is_marked: false,
            started,
            start: None,
            since_mark: false,
            ended: 0,
            health: Health::default(),
        }
    }

    pub(super) fn elapsed(&self, now: clock::Instant) -> Duration {
        now.monotonic.since(self.started.monotonic)
    }

    /// Whether to set the mark of the plan; true once.
    pub(super) fn is_mark_due(&mut self, plan: &DumpPlan, elapsed: Duration) -> bool {
        let is_due = !self.is_marked && plan.mark_after.is_some_and(|after| after <= elapsed);
        self.is_marked |= is_due;
        is_due
    }

    pub(super) fn set_mark(&mut self, now: clock::Instant, health: Health) {
        (self.start, self.health, self.since_mark) = (Some(now), health, true);
    }

    /// Starts the next window, unless windows start at a mark. Returns whether it did.
    pub(super) fn start_next(&mut self, now: clock::Instant, health: &Health) -> bool {
        if !self.since_mark {
            (self.start, self.health) = (Some(now), health.clone());
        }
        !self.since_mark
    }

    pub(super) fn has_last(&self) -> bool {
        self.ended > 0 || self.since_mark
    }

    pub(super) fn end(&mut self, reason: WindowReason, now: clock::Instant, status: &Status) -> Window {
        self.ended += 1;
        Window {
            number: Some(self.ended),
            reason,
            start_unix_ns: self.start.unwrap_or(self.started).unix_ns,
            since_mark: self.since_mark,
            end_unix_ns: now.unix_ns,
            merged_count: self.dumped(status),
        }
    }

    pub(super) fn facts(&self, window: Window, others: Others, health: &Health) -> WindowFacts {
        let start = self.start.unwrap_or(self.started).monotonic;
        WindowFacts { window, start, others, health: health.since(&self.health) }
    }

    /// Returns the reason to dump now. While a dump is being written (`is_busy`), periodic dumps are merged and others
    /// wait.
    pub(super) fn due(&mut self, plan: &DumpPlan, now: &Status, is_busy: bool) -> Option<WindowReason> {
        let is_time = plan.every.is_some_and(|every| self.is_time(every, now.elapsed));
        if is_busy {
            self.merged += u32::from(is_time);
            return None;
        }
        let reaches = |amount: EstimatedBytes, base: EstimatedBytes, by: Option<u64>| {
            by.is_some_and(|by| amount >= base + EstimatedBytes::exact(by))
        };
        let has_grown = reaches(now.live_bytes, self.live_max, plan.growth_bytes);
        let has_allocated = reaches(now.alloc_bytes, self.alloc_base, plan.alloc_bytes);
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

    /// Notes that a dump was taken, for any reason. Returns the number of periodic dumps merged into it.
    fn dumped(&mut self, now: &Status) -> u32 {
        self.live_max = self.live_max.max(now.live_bytes);
        std::mem::take(&mut self.merged)
    }

    /// Whether a periodic dump is due. A late dump does not shift later ones; periods missed meanwhile are merged into
    /// it.
    fn is_time(&mut self, every: Duration, elapsed: Duration) -> bool {
        let next = self.next.unwrap_or(every);
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

    fn windows() -> Windows {
        Windows::new(clock::now())
    }

    /// Milliseconds, live bytes, allocated bytes.
    fn at(elapsed_ms: u64, live: u64, alloc: u64) -> Status {
        Status {
            elapsed: Duration::from_millis(elapsed_ms),
            live_bytes: EstimatedBytes::exact(live),
            alloc_bytes: EstimatedBytes::exact(alloc),
        }
    }

    /// Passes the points in time to the windows and dumps where due.
    fn check(plan: DumpPlan, times: &[(u64, u64, u64)], expected: &[(u64, WindowReason)]) {
        let mut windows = windows();
        let mut dumps = Vec::new();
        for &(elapsed_ms, live, alloc) in times {
            let now = at(elapsed_ms, live, alloc);
            if let Some(reason) = windows.due(&plan, &now, false) {
                assert_eq!(windows.dumped(&now), 0, "nothing was merged at {elapsed_ms} ms");
                dumps.push((elapsed_ms, reason));
            }
        }
        assert_eq!(dumps, expected);
    }

    const SECOND: DumpPlan =
        DumpPlan { every: Some(Duration::from_secs(1)), growth_bytes: None, alloc_bytes: None, mark_after: None };

    #[test]
    fn without_a_plan_nothing_is_due() {
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
    fn growth_counts_from_the_maximum_of_all_dumps() {
        let plan = DumpPlan { growth_bytes: Some(100), ..DumpPlan::default() };
        // Rising again to an earlier level is not growth.
        check(
            plan,
            &[(1, 99, 0), (2, 100, 0), (3, 199, 0), (4, 10, 0), (5, 150, 0), (6, 260, 0), (7, 359, 0), (8, 360, 0)],
            &[(2, Growth), (6, Growth), (8, Growth)],
        );
    }

    #[test]
    fn a_dump_for_another_reason_raises_what_growth_counts_from() {
        let (mut windows, plan) = (windows(), DumpPlan { growth_bytes: Some(100), ..DumpPlan::default() });
        windows.dumped(&at(1, 90, 0));
        assert_eq!(windows.due(&plan, &at(2, 189, 0), false), None);
        assert_eq!(windows.due(&plan, &at(3, 190, 0), false), Some(Growth));
    }

    #[test]
    fn a_large_allocation_is_one_dump() {
        let plan = DumpPlan { alloc_bytes: Some(1000), ..DumpPlan::default() };
        check(plan, &[(1, 0, 999), (2, 0, 5500), (3, 0, 6400), (4, 0, 6500)], &[(2, Alloc), (4, Alloc)]);
    }

    #[test]
    fn periodic_dumps_merge_while_one_is_being_written() {
        let (mut windows, plan) = (windows(), SECOND);
        assert_eq!(windows.due(&plan, &at(1000, 0, 0), true), None);
        assert_eq!(windows.due(&plan, &at(1500, 0, 0), false), None, "it waits for its next period");
        assert_eq!(windows.due(&plan, &at(2000, 0, 0), true), None);
        assert_eq!(windows.due(&plan, &at(3000, 0, 0), false), Some(Time));
        assert_eq!(windows.dumped(&at(3000, 0, 0)), 2);
        // When the session itself was delayed.
        assert_eq!(windows.due(&plan, &at(7200, 0, 0), false), Some(Time));
        assert_eq!(windows.dumped(&at(7200, 0, 0)), 3);
        assert_eq!(windows.due(&plan, &at(7999, 0, 0), false), None);
    }

    #[test]
    fn growth_and_allocation_wait_while_a_dump_is_being_written() {
        let plan = DumpPlan { growth_bytes: Some(100), alloc_bytes: Some(100), ..DumpPlan::default() };
        let mut windows = windows();
        assert_eq!(windows.due(&plan, &at(1, 100, 100), true), None);
        assert_eq!(windows.due(&plan, &at(2, 100, 100), false), Some(Growth));
        assert_eq!(windows.dumped(&at(2, 100, 100)), 0);
        assert_eq!(windows.due(&plan, &at(3, 100, 100), false), None, "one dump serves both");
    }

    #[test]
    fn a_mark_is_due_once() {
        let (mut windows, plan) =
            (windows(), DumpPlan { mark_after: Some(Duration::from_secs(2)), ..DumpPlan::default() });
        let due = [1999, 2005, 2010].map(|ms| windows.is_mark_due(&plan, Duration::from_millis(ms)));
        assert_eq!(due, [false, true, false]);
    }
}
