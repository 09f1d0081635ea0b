//! Ends windows while a recording goes on, and begins them at marks. Each dump is a snapshot that is handed over; naming and
//! writing are another thread's.

use std::time::Duration;

use anyhow::Result;
use tracing::debug;

use super::Session;
use super::control::Order;
use super::listener::Listener;
use super::triggers::{DumpPlan, Standing, Triggers};
use crate::bpf::counters::Counters;
use crate::ledger::timeline::Occasion;
use crate::linux::clock;
use crate::model::{Health, Window, WindowReason};

/// The present window, and when it ends.
pub(super) struct Dumps {
    triggers: Triggers,
    /// When the present window began; `None` for the beginning of the recording.
    start: Option<clock::Instant>,
    /// It began at a mark, and so will those after it.
    pub(super) since_mark: bool,
    /// Windows that have ended.
    pub(super) taken: u32,
    /// As it stood when the window began.
    health: Health,
}

/// Times that the ring is read before a dump: it holds no more than so many batches, and a target that never pauses must not
/// put off the dump for ever.
pub(super) const DRAINS_MAX: u32 = 16;

impl Dumps {
    pub(super) fn new(plan: DumpPlan) -> Self {
        Self { triggers: Triggers::new(plan), start: None, since_mark: false, taken: 0, health: Health::default() }
    }

    /// When the present window began; `None` for the beginning of the recording.
    pub(super) fn start(&self) -> Option<clock::Instant> {
        self.start
    }

    /// The health of the window, of that of the whole recording.
    pub(super) fn health_of_window(&self, whole: &Health) -> Health {
        whole.since(&self.health)
    }
}

impl Session {
    /// Does what was asked for.
    pub(super) fn obey(&mut self, order: Order, listener: &mut dyn Listener) -> Result<()> {
        match order {
            Order::Dump if let Some(method) = self.config.checks => {
                self.inspect_all(method, listener);
                Ok(())
            }
            Order::Dump => self.dump(WindowReason::Signal, listener),
            Order::Mark => self.set_mark(listener),
        }
    }

    /// Dumps if it is time to.
    pub(super) fn dump_if_due(&mut self, listener: &mut dyn Listener) -> Result<()> {
        let standing = self.standing();
        if self.dumps.triggers.is_mark_due(standing.elapsed) {
            self.set_mark(listener)?;
        }
        match self.dumps.triggers.due(&standing, listener.is_busy()) {
            Some(reason) => self.dump(reason, listener),
            None => Ok(()),
        }
    }

    /// Ends the window that the recording ends with, if it is to be told apart from the whole of it.
    pub(super) fn last_window(&mut self, ended: clock::Instant) -> Option<Window> {
        let window =
            (self.dumps.taken > 0 || self.dumps.since_mark).then(|| self.end_window(WindowReason::End, ended))?;
        self.targets.note_occasion(ended.monotonic, Occasion::Dump(self.dumps.taken));
        Some(window)
    }

    fn dump(&mut self, reason: WindowReason, listener: &mut dyn Listener) -> Result<()> {
        self.empty_ring();
        let (now, counters) = (clock::now(), self.counters()?);
        self.targets.refresh_thread_names();
        let window = self.end_window(reason, now);
        self.targets.note_occasion(now.monotonic, Occasion::Dump(self.dumps.taken));
        self.record_mark(now, reason.name());
        let snapshot = self.snapshot(now, &counters, Some(window));
        if !self.dumps.since_mark {
            self.begin_window(now, &counters);
            self.targets.rebase(&snapshot.targets);
        }
        let held = self.elapsed(clock::now()).saturating_sub(self.elapsed(now));
        debug!("window {} held the session for {held:?}", self.dumps.taken);
        listener.dumped(snapshot);
        Ok(())
    }

    /// From now on, until the next mark, dumps are about what happened since.
    fn set_mark(&mut self, listener: &mut dyn Listener) -> Result<()> {
        self.empty_ring();
        let (now, counters) = (clock::now(), self.counters()?);
        self.targets.note_occasion(now.monotonic, Occasion::Mark);
        self.record_mark(now, "mark");
        self.begin_window(now, &counters);
        let states = self.states(now, true);
        self.targets.rebase(&states);
        self.dumps.since_mark = true;
        listener.marked(self.elapsed(now));
        Ok(())
    }

    fn begin_window(&mut self, now: clock::Instant, counters: &Counters) {
        self.dumps.start = Some(now);
        self.dumps.health = self.health(counters);
        self.targets.begin_window();
    }

    fn end_window(&mut self, reason: WindowReason, now: clock::Instant) -> Window {
        let standing = self.standing();
        self.dumps.taken += 1;
        Window {
            number: Some(self.dumps.taken),
            reason,
            start_unix_ns: self.dumps.start.unwrap_or(self.started).unix_ns,
            since_mark: self.dumps.since_mark,
            end_unix_ns: now.unix_ns,
            merged_count: self.dumps.triggers.dumped(&standing),
        }
    }

    /// Takes all that was written to the ring until now.
    fn empty_ring(&mut self) {
        for _ in 0..DRAINS_MAX {
            if self.drain() {
                break;
            }
        }
    }

    fn standing(&self) -> Standing {
        Standing {
            elapsed: self.elapsed(clock::now()),
            live_bytes: self.targets.live_bytes(),
            alloc_bytes: self.targets.alloc_bytes(),
        }
    }

    fn elapsed(&self, now: clock::Instant) -> Duration {
        Duration::from_nanos(now.monotonic.0.saturating_sub(self.started.monotonic.0))
    }
}
