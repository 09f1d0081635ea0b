//! Stubs that are installed in one process, and the calls that have passed them.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use heapbpf_base::ids::{HeapId, Pid};
use heapbpf_linux::proc::maps::Mapping;
use heapbpf_linux::proc::writable;
use heapbpf_linux::process_memory;
use profiler_common::interval::Interval;

use super::slots::Replaced;
use crate::bpf::load::Kernel;
use crate::bpf::processes::StubCalls;
use crate::keeper::control;
use crate::keeper::{Installation, Link, SlotChange};
use crate::probe::stub::slot;
use crate::session::rates::Rates;

/// Time after which calls decide which engine records a program: those of its start-up do not.
const START_UP: Duration = Duration::from_secs(1);
/// Pause after an attempt to hand calls back has failed.
const POSTPONED: Duration = Duration::from_secs(5);
/// Time and number of calls after which the share of trapped calls is known.
const WINDOW: Duration = Duration::from_millis(250);
const WINDOW_CALLS_MIN: u64 = 1000;
/// Maximum share of trapped calls: stubs that fewer calls pass save too little.
const TRAPPED_SHARE_MAX: f64 = 0.1;
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Divisor of the time for which a process may be stopped to change its slots.
const STOP_PART: u32 = 200;

/// When to search a process for slots that its dynamic linker has resolved meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    next: Instant,
    pause: Duration,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { next: Instant::now(), pause: PAUSE_MIN }
    }

    pub(super) fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Delays the next search, because no slots were to be changed.
    pub(super) fn found_nothing(&mut self) {
        self.next = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    pub(super) fn stopped_for(&mut self, stopped: Duration) {
        self.pause = PAUSE_MIN;
        self.next = Instant::now() + self.pause.max(stopped * STOP_PART);
    }
}

/// Stubs that slots of a process lead to, or have led to.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    /// Link of the probes in the stubs. It is detached late, because a thread may be in a stub when slots are restored.
    _link: Arc<Link>,
    /// Inode of the file with the stubs.
    pub(super) inode: u64,
    pub(super) plan: Installation,
    pub(super) functions: Vec<Replaced>,
    /// Heaps with the address of their countdowns, and the interval that was written last.
    heaps: Vec<(HeapId, u64, Interval)>,
    slots_per_heap: u32,
    pub(super) search: Pace,
    /// Number of calls that have passed the stubs, of sampled ones among them, and of calls that have met a probe.
    counts: Counts,
    /// Counts that a forked child has inherited.
    before: Counts,
    /// Counts at the beginning of the window, and trapped calls at the last search for slots.
    window: Window,
    searched: u64,
    /// Share of trapped calls in the last window.
    trapped_share: f64,
    decision: Decision,
}

/// Whether the share of trapped calls lets a process keep its stubs.
#[derive(Clone, Debug)]
enum Decision {
    Open,
    /// One window had too many. The counts of stubs and of probes are read one after the other, and heapbpf may have waited for a
    /// processor in between, so another window has to confirm it.
    Suspected,
    Keeps,
    /// Too many calls do not pass the stubs, in percent.
    Leaves(f64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    passed: u64,
    samples: u64,
    /// Number of sampled calls that were left to functions that may throw.
    left: u64,
    kernel: StubCalls,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    since: Instant,
    counts: Counts,
}

/// Stubs that a process had when it forked a child. Their probes stay attached as long as this exists: the process may exit or execute
/// another program before the child is a target.
#[derive(Clone, Debug)]
pub(in crate::session) struct CopiedStubs(Arc<Installed>);

impl CopiedStubs {
    pub(super) fn of(installed: &Installed) -> Self {
        Self(Arc::new(installed.clone()))
    }

    pub(super) fn installed(&self) -> &Installed {
        &self.0
    }
}

impl Installed {
    pub(super) fn new(
        link: Link,
        inode: u64,
        plan: Installation,
        functions: Vec<Replaced>,
        heaps: Vec<(HeapId, u64, Interval)>,
        slots_per_heap: u32,
        is_start_up: bool,
    ) -> Self {
        let since = Instant::now() + if is_start_up { START_UP } else { Duration::ZERO };
        Self {
            _link: Arc::new(link),
            inode,
            plan: Installation { data: Vec::new(), is_mapped: true, ..plan },
            functions,
            heaps,
            slots_per_heap,
            search: Pace::new(),
            counts: Counts::default(),
            before: Counts::default(),
            window: Window { since, counts: Counts::default() },
            searched: 0,
            trapped_share: 0.0,
            decision: Decision::Open,
        }
    }

    /// Whether this mapping contains these stubs.
    pub(super) fn is_at(&self, mapping: &Mapping) -> bool {
        (self.inode, self.plan.address) == (mapping.inode, mapping.start.0)
    }

    /// Returns the stubs that a child has copied from this process.
    pub(super) fn of_child(&self, pid: Pid, kernel: &Kernel) -> Self {
        let mut copied = self.clone();
        copied.plan.pid = pid;
        copied.before = Counts::default();
        copied.count(kernel);
        copied.before = std::mem::take(&mut copied.counts);
        copied.before.kernel = StubCalls::default();
        copied.decision = Decision::Keeps;
        copied
    }

    /// Counts calls. The counts stay after the end of the process or of its program.
    pub(super) fn count(&mut self, kernel: &Kernel) {
        let Some(counts) = self.read(kernel) else { return };
        self.counts = Counts {
            passed: counts.passed.wrapping_sub(self.before.passed),
            samples: counts.samples.wrapping_sub(self.before.samples),
            left: counts.left.wrapping_sub(self.before.left),
            kernel: counts.kernel,
        };
    }

    fn read(&self, kernel: &Kernel) -> Option<Counts> {
        let plan = &self.plan;
        let mut data = vec![0; usize::try_from(plan.data_bytes).ok()?];
        let read = process_memory::read(plan.pid, &[(plan.data_address(), data.len())], &mut data).ok()?;
        let at = data.len().checked_sub(control::BYTES)?;
        let word = |at: usize| data.get(at..)?.first_chunk::<8>().map(|word| u64::from_ne_bytes(*word));
        if read < data.len() || word(at + control::LIVE)? != plan.data_address() {
            return None;
        }
        let lines = self.heaps.len() * self.slots_per_heap as usize;
        let sum = |field: i32| {
            let words = (0..lines).filter_map(|line| word(line * slot::BYTES + field.unsigned_abs() as usize));
            words.fold(0, u64::wrapping_add)
        };
        let [passed, samples, left] = [slot::CALLS, slot::SAMPLES, slot::LEFT].map(sum);
        // These counts are read after the stubs' counts, so that they contain all calls that the stubs have counted.
        Some(Counts { passed, samples, left, kernel: kernel.stub_calls(plan.pid).ok()? })
    }

    pub(super) fn passed(&self) -> u64 {
        self.counts.passed
    }

    pub(super) fn trapped(&self) -> u64 {
        self.counts.kernel.trapped
    }

    /// Number of calls that the stubs have sampled and no probe has recorded.
    pub(super) fn missed(&self) -> u64 {
        self.counts.samples.saturating_sub(self.counts.kernel.sampled)
    }

    /// Number of sampled calls that were left to functions that may throw, up to now.
    pub(super) fn left_to_throw(&self, kernel: &Kernel) -> u64 {
        self.read(kernel).map_or(self.counts.left, |counts| counts.left.wrapping_sub(self.before.left))
    }

    pub(super) fn trapped_share(&self) -> f64 {
        self.trapped_share
    }

    /// Whether calls have met probes in functions since the last search for slots. If so, the process may have resolved
    /// more slots.
    pub(super) fn is_search_due(&self) -> bool {
        self.search.is_due() && self.trapped() > self.searched
    }

    pub(super) fn searched(&mut self) {
        self.searched = self.trapped();
        self.search.found_nothing();
    }

    pub(super) fn add_slots(&mut self, slots: Vec<SlotChange>, stopped: Duration) {
        self.plan.add_slots(slots);
        self.search.stopped_for(stopped);
        // Calls from before the change do not show what passes these slots.
        self.window = Window { since: self.window.since.max(Instant::now()), counts: self.counts };
    }

    /// Percentage of trapped calls if it was too high when the program had made enough calls. It is returned until the
    /// stubs are removed.
    pub(super) fn excess(&mut self) -> Option<f64> {
        self.judge();
        if let Decision::Leaves(percent) = self.decision { Some(percent) } else { None }
    }

    /// Decides again later, because calls cannot be handed back now.
    pub(super) fn postpone(&mut self) {
        self.decision = Decision::Suspected;
        self.window = Window { since: Instant::now() + POSTPONED, counts: self.counts };
    }

    fn judge(&mut self) {
        let now = Instant::now();
        let elapsed = now.checked_duration_since(self.window.since);
        let Some(elapsed) = elapsed else {
            self.window.counts = self.counts;
            return;
        };
        let trapped = self.trapped().saturating_sub(self.window.counts.kernel.trapped);
        let calls = self.passed().saturating_sub(self.window.counts.passed).saturating_add(trapped);
        if elapsed < WINDOW || calls < WINDOW_CALLS_MIN {
            return;
        }
        self.window = Window { since: now, counts: self.counts };
        self.trapped_share = share(trapped, calls);
        let is_too_high = self.trapped_share > TRAPPED_SHARE_MAX;
        match self.decision {
            Decision::Open if is_too_high => self.decision = Decision::Suspected,
            Decision::Suspected if is_too_high => self.decision = Decision::Leaves(100.0 * self.trapped_share),
            Decision::Open | Decision::Suspected => self.decision = Decision::Keeps,
            Decision::Keeps | Decision::Leaves(_) => {}
        }
    }

    /// Passes changed intervals on to the stubs, which use them from their next samples on.
    pub(super) fn update(&mut self, rates: &Rates) {
        for (heap, address, written) in &mut self.heaps {
            let now = rates.current(*heap);
            if now == *written {
                continue;
            }
            let Ok(memory) = writable::memory(self.plan.pid) else { continue };
            for number in 0..u64::from(self.slots_per_heap) {
                let at = *address + number * slot::BYTES as u64 + u64::from(slot::NEXT_CODE.unsigned_abs());
                let _ = memory.write_all_at(&now.code().to_ne_bytes(), at);
            }
            *written = now;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
