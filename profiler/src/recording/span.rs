//! Replays a part of a recording, from one time to another. Pure.

use std::time::Duration;

use heapbpf_base::ids::LedgerId;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Window, WindowReason};
use heapbpf_ledger::totals::Flow;
use thiserror::Error;

use super::entry::ModuleFacts;
use super::names::RecordedNames;
use super::replay::late::LateFacts;
use super::replay::{Entry, Replay, Start};
use crate::object::module::Modules;
use crate::snapshot::Snapshot;

/// A time span, in nanoseconds since the recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Start of the span, whose live blocks are the opening balance; `None` for the start of the recording.
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
    #[error("`--every` would divide the recording into more than {WINDOWS_MAX} windows; use a longer time")]
    TooManyWindows,
}

/// Maximum number of windows, also for damaged files, whose times can be anything.
const WINDOWS_MAX: u32 = 100_000;

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
    /// Number of events entered so far, including folded ones.
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

    /// Passes flows with nanoseconds since the span's start, beginning with the blocks that were live then. Returns the span's
    /// length.
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

    /// Passes a snapshot of each window of `every_ns`; the last one can be shorter, and the first one longer, because a
    /// folded part cannot be divided. `modules` are those of [`modules`](Self::modules) after a first reading, and `late`
    /// has noted its entries: a target can allocate, and even exit, in windows before its first facts.
    pub fn windows<E: From<SpanError>>(
        entries: impl Iterator<Item = Entry>,
        span: Span,
        every_ns: u64,
        by_thread: bool,
        modules: &Modules,
        late: &LateFacts,
        mut take: impl FnMut(&Snapshot) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut spanned = Self::new(span, by_thread, false);
        let to_ns = spanned.span.to_ns.unwrap_or(u64::MAX);
        let mut part = Part::new(spanned.span.from_ns, every_ns);
        for entry in entries.filter(|entry| !matches!(entry, Entry::Names(_))) {
            let at_ns = entry.time().map_or(0, |time| spanned.replay.since_start_ns(time)).min(to_ns);
            while at_ns > part.to_ns {
                spanned.replay.complete_targets(late);
                take(&part.end(&spanned, part.to_ns, modules)?)?;
            }
            let is_fold = matches!(entry, Entry::Fold(_));
            spanned.enter(entry)?;
            if is_fold {
                part.extend(spanned.folded_until_ns().unwrap_or(0));
            }
        }
        let end_ns = spanned.length_ns().min(to_ns);
        if end_ns > part.from_ns {
            spanned.replay.complete_targets(late);
            take(&part.end(&spanned, end_ns, modules)?)?;
        }
        Ok(())
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

/// A window of a replay that is not over.
struct Part {
    /// State at the start of the window; `None` before the first window of a span that starts later than the recording.
    start: Option<Start>,
    from_ns: u64,
    to_ns: u64,
    every_ns: u64,
    number: u32,
}

impl Part {
    fn new(from_ns: Option<u64>, every_ns: u64) -> Self {
        let start = from_ns.is_none().then(Start::default);
        let from_ns = from_ns.unwrap_or(0);
        Self { start, from_ns, to_ns: from_ns.saturating_add(every_ns), every_ns, number: 1 }
    }

    /// Extends the window to end no earlier than this time.
    fn extend(&mut self, until_ns: u64) {
        let missing = until_ns.saturating_sub(self.to_ns).div_ceil(self.every_ns);
        self.to_ns = self.to_ns.saturating_add(missing.saturating_mul(self.every_ns));
    }

    /// Returns the window, which ends at this time, and starts the next window.
    fn end(&mut self, spanned: &ReplayedSpan, end_ns: u64, modules: &Modules) -> Result<Snapshot, SpanError> {
        let replay = &spanned.replay;
        let session = &replay.session;
        let unix_ns = |since_start_ns: u64| session.started_unix_ns.saturating_add(since_start_ns);
        let window = Window {
            number: Some(self.number),
            reason: if end_ns < self.to_ns { WindowReason::End } else { WindowReason::Time },
            start_unix_ns: unix_ns(self.from_ns),
            since_mark: false,
            end_unix_ns: unix_ns(end_ns),
            merged_count: 0,
        };
        let next = replay.start();
        let start = self.start.as_ref().or(spanned.start.as_ref()).unwrap_or(&next);
        let now = MonotonicNanos(session.started_monotonic_ns.saturating_add(end_ns));
        let snapshot = replay.snapshot(Some((start, window)), modules.clone(), now);
        let number = self.number + 1;
        if number > WINDOWS_MAX {
            return Err(SpanError::TooManyWindows);
        }
        *self =
            Self { start: Some(next), from_ns: end_ns, to_ns: end_ns.saturating_add(self.every_ns), number, ..*self };
        Ok(snapshot)
    }
}
