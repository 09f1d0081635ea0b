//! Replays a part of a recording, from one time to another. Pure.

use std::time::Duration;

use thiserror::Error;

use super::entry::ModuleFacts;
use super::names::RecordedNames;
use super::replay::{Entry, Replay, Start};
use crate::ids::LedgerId;
use crate::ledger::totals::Flow;
use crate::model::{Window, WindowReason};
use crate::object::module::Modules;
use crate::snapshot::Snapshot;
use crate::units::MonotonicNanos;

/// A time span, in nanoseconds since the recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The live blocks at this time are the opening balance; `None` for the start of the recording.
    pub from_ns: Option<u64>,
    pub to_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    #[error(
        "events before {} were folded (`--max-size`), so `--from` and `--to` must not be earlier: `--from {}s`",
        seconds(*.earliest_ns),
        .earliest_ns.div_ceil(1_000_000_000)
    )]
    Folded { earliest_ns: u64 },
    #[error("`--from` is after the end of the recording, which is {} long", seconds(*.length_ns))]
    AfterEnd { length_ns: u64 },
}

fn seconds(ns: u64) -> String {
    format!("{:.1} s", Duration::from_nanos(ns).as_secs_f64())
}

#[derive(Debug)]
pub struct ReplayedSpan {
    replay: Replay,
    span: Span,
    start: Option<Start>,
    /// Time of the last entry, whether in the span or not.
    last: MonotonicNanos,
    /// Entered so far, including folded ones.
    pub events: u64,
    follows: bool,
}

impl ReplayedSpan {
    /// Replays the span, and adds all names. Callsites distinguish threads if `by_thread` or the recording requires it.
    pub fn read<R>(
        entries: impl Iterator<Item = Entry>,
        span: Span,
        by_thread: bool,
        names: &mut RecordedNames<R>,
    ) -> Result<Self, SpanError> {
        let mut spanned = Self::new(span, by_thread, false);
        for entry in entries {
            match entry {
                Entry::Names(locations) => names.add(locations),
                Entry::Symbolization(symbolization) => names.set_symbolization(symbolization),
                entry => spanned.enter(entry)?,
            }
        }
        if spanned.span.from_ns.is_some() && spanned.start.is_none() {
            return Err(SpanError::AfterEnd { length_ns: spanned.length_ns() });
        }
        Ok(spanned)
    }

    /// Passes flows with nanoseconds since the span's start, first the blocks live then. Returns the span's length.
    pub fn flows<E: From<SpanError>>(
        entries: impl Iterator<Item = Entry>,
        span: Span,
        by_thread: bool,
        mut take: impl FnMut(u64, LedgerId, Flow) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut spanned = Self::new(span, by_thread, true);
        let from_ns = spanned.span.from_ns.unwrap_or(0);
        if from_ns == 0 {
            spanned.replay.follow();
        }
        let mut length_ns = 0;
        for entry in entries.filter(|entry| !matches!(entry, Entry::Names(_))) {
            spanned.enter(entry)?;
            length_ns = spanned.replay.since_start_ns(spanned.replay.time).saturating_sub(from_ns);
            for (ledger, flow) in spanned.replay.take_flows() {
                take(length_ns, ledger, flow)?;
            }
        }
        Ok(length_ns)
    }

    fn new(span: Span, by_thread: bool, follows: bool) -> Self {
        let span = Span { from_ns: span.from_ns.filter(|&from_ns| from_ns > 0), ..span };
        let replay = Replay::default().by_thread(by_thread);
        Self { replay, span, start: None, last: MonotonicNanos(0), events: 0, follows }
    }

    /// Fails if single events are missing since the start of the span was folded.
    pub fn check_whole(&self) -> Result<(), SpanError> {
        let missing = self.folded_until_ns().filter(|_| self.span.from_ns.is_none());
        missing.map_or(Ok(()), |earliest_ns| Err(SpanError::Folded { earliest_ns }))
    }

    fn enter(&mut self, entry: Entry) -> Result<(), SpanError> {
        if let Some(time) = entry.time() {
            self.last = self.last.max(time);
            let at_ns = self.replay.since_start_ns(time);
            // A ledger's state at a time includes all entries in the file before the first later event.
            if self.start.is_none() && self.span.from_ns.is_some_and(|from_ns| at_ns > from_ns) {
                self.start = Some(self.replay.start());
                if self.follows {
                    self.replay.follow();
                }
            }
            if self.span.to_ns.is_some_and(|to_ns| at_ns > to_ns) {
                self.replay.freeze();
            }
        }
        self.events += u64::from(matches!(entry, Entry::Event(_)));
        let is_fold = matches!(entry, Entry::Fold(_));
        self.replay.enter(entry);
        self.last = self.last.max(self.replay.time);
        if is_fold {
            self.events += self.replay.events;
            self.check_fold()?;
        }
        Ok(())
    }

    fn check_fold(&self) -> Result<(), SpanError> {
        let ends = [self.span.from_ns, self.span.to_ns].into_iter().flatten();
        let missing = self.folded_until_ns().zip(ends.min()).filter(|(earliest_ns, first_ns)| first_ns < earliest_ns);
        missing.map_or(Ok(()), |(earliest_ns, _)| Err(SpanError::Folded { earliest_ns }))
    }

    pub fn folded_until_ns(&self) -> Option<u64> {
        self.replay.folded_until.map(|time| self.replay.since_start_ns(time))
    }

    pub fn length_ns(&self) -> u64 {
        self.replay.since_start_ns(self.last)
    }

    pub fn modules(&self) -> &[ModuleFacts] {
        &self.replay.modules
    }

    pub fn targets(&self) -> Vec<LedgerId> {
        self.replay.targets()
    }

    /// Returns the state; `modules` are those of [`modules`](Self::modules), in their order.
    pub fn snapshot(&self, modules: Modules) -> Snapshot {
        let began = self.replay.session.started_monotonic_ns;
        let to = self.span.to_ns.map(|to_ns| MonotonicNanos(began.saturating_add(to_ns)));
        let now = to.map_or(self.last, |to| to.min(self.last));
        let window = |start| {
            let window = Window {
                number: Some(1),
                reason: if self.span.to_ns.is_some() { WindowReason::Time } else { WindowReason::End },
                start_unix_ns: self.replay.session.started_unix_ns.saturating_add(self.span.from_ns.unwrap_or(0)),
                since_mark: false,
                end_unix_ns: self.replay.unix_ns(now),
                merged_count: 0,
            };
            (start, window)
        };
        self.replay.snapshot(self.start.as_ref().map(window), modules, now)
    }
}
