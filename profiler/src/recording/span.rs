//! A part of a recording, from one time to another: its entries replayed so far as they are asked for. Pure.

use std::time::Duration;

use thiserror::Error;

use super::entry::{BooksId, Entry, ModuleFacts};
use super::names::RecordedNames;
use super::replay::{Replay, Start};
use crate::ledger::journal::Flow;
use crate::model::{Window, WindowReason};
use crate::object::module::Modules;
use crate::snapshot::Snapshot;
use crate::units::MonotonicNanos;

/// What is asked for, in nanoseconds since the recording began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// What was live here is the opening balance; `None` for the beginning.
    pub from_ns: Option<u64>,
    /// Live is what is live here; `None` for the end.
    pub to_ns: Option<u64>,
}

/// Why a recording does not have what is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SpanError {
    /// Single events are not known any more.
    #[error(
        "what happened before {} was folded (`--max-size`), so `--from` and `--to` must be that or later: `--from {}s`",
        seconds(*.earliest_ns),
        .earliest_ns.div_ceil(1_000_000_000)
    )]
    Folded {
        /// The earliest time that can be asked for.
        earliest_ns: u64,
    },
    /// The recording was over by then.
    #[error("it is {} long, and `--from` is behind that", seconds(*.length_ns))]
    Behind {
        /// The time of its last entry.
        length_ns: u64,
    },
}

fn seconds(ns: u64) -> String {
    format!("{:.1} s", Duration::from_nanos(ns).as_secs_f64())
}

/// State of a recording at the end of a span.
#[derive(Debug)]
pub struct Spanned {
    replay: Replay,
    span: Span,
    start: Option<Start>,
    /// When the last entry was that was read, asked for or not.
    last: MonotonicNanos,
    events: u64,
    /// What comes and goes is asked for, from the span's beginning on.
    follows: bool,
}

impl Spanned {
    /// Replays what is asked for, and reads all of the rest for the sake of names, which are added to `names`. Callsites are told
    /// apart `by_thread` where that is asked for, or was when the recording was made.
    ///
    /// # Errors
    ///
    /// If the recording does not have it.
    pub fn read<R>(
        entries: impl Iterator<Item = Entry>,
        span: Span,
        by_thread: bool,
        names: &mut RecordedNames<R>,
    ) -> Result<Self, SpanError> {
        let mut spanned = Self::new(span);
        spanned.replay = spanned.replay.by_thread(by_thread);
        for entry in entries {
            match entry {
                Entry::Names(places) => names.add(places),
                Entry::Symbolization(symbolization) => names.found_by(symbolization),
                entry => spanned.enter(entry)?,
            }
        }
        match span.from_ns {
            Some(from_ns) if from_ns > 0 && spanned.start.is_none() => {
                Err(SpanError::Behind { length_ns: spanned.length_ns() })
            }
            _ => Ok(spanned),
        }
    }

    /// Tells what came into books and went out of them in the span, in that order, each with the nanoseconds since the span
    /// began: first what was live then, block by block. Returns how long the span is.
    ///
    /// # Errors
    ///
    /// If the recording does not have it, and what `tell` says.
    pub fn flows<E: From<SpanError>>(
        entries: impl Iterator<Item = Entry>,
        span: Span,
        by_thread: bool,
        mut tell: impl FnMut(u64, BooksId, Flow) -> Result<(), E>,
    ) -> Result<u64, E> {
        let mut spanned = Self { follows: true, ..Self::new(span) };
        spanned.replay = spanned.replay.by_thread(by_thread);
        let from_ns = span.from_ns.unwrap_or(0);
        if from_ns == 0 {
            spanned.replay.follow();
        }
        for entry in entries.filter(|entry| !matches!(entry, Entry::Names(_))) {
            spanned.enter(entry)?;
            let at_ns = spanned.replay.since_start_ns(spanned.replay.time()).saturating_sub(from_ns);
            for (books, flow) in spanned.replay.take_flows() {
                tell(at_ns, books, flow)?;
            }
        }
        Ok(spanned.replay.since_start_ns(spanned.replay.time()).saturating_sub(from_ns))
    }

    fn new(span: Span) -> Self {
        Self { replay: Replay::default(), span, start: None, last: MonotonicNanos(0), events: 0, follows: false }
    }

    /// Makes sure that there are single events of all of the span.
    ///
    /// # Errors
    ///
    /// If its beginning was folded.
    pub fn check_whole(&self) -> Result<(), SpanError> {
        match self.folded_until_ns() {
            Some(earliest_ns) if self.span.from_ns.is_none_or(|from_ns| from_ns == 0) => {
                Err(SpanError::Folded { earliest_ns })
            }
            _ => Ok(()),
        }
    }

    fn enter(&mut self, entry: Entry) -> Result<(), SpanError> {
        if let Some(time) = entry.time() {
            self.last = self.last.max(time);
            let at_ns = self.replay.since_start_ns(time);
            // Books are those of a moment: what comes in the file before the first later event has happened.
            if self.start.is_none() && self.span.from_ns.is_some_and(|from_ns| from_ns > 0 && at_ns > from_ns) {
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
        self.last = self.last.max(self.replay.time());
        if is_fold {
            self.events += self.replay.events();
            self.check_fold()?;
        }
        Ok(())
    }

    fn check_fold(&self) -> Result<(), SpanError> {
        let Some(earliest_ns) = self.folded_until_ns() else { return Ok(()) };
        let asked = [self.span.from_ns.filter(|&from_ns| from_ns > 0), self.span.to_ns];
        if asked.into_iter().flatten().any(|ns| ns < earliest_ns) {
            return Err(SpanError::Folded { earliest_ns });
        }
        Ok(())
    }

    /// Until when the recording has no single events any more, in nanoseconds since it began.
    pub fn folded_until_ns(&self) -> Option<u64> {
        self.replay.folded_until().map(|time| self.replay.since_start_ns(time))
    }

    /// When the last entry was, in nanoseconds since the recording began.
    pub fn length_ns(&self) -> u64 {
        self.replay.since_start_ns(self.last)
    }

    /// Events that were read, those before a fold among them.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// All modules, by number.
    pub fn modules(&self) -> &[ModuleFacts] {
        self.replay.modules()
    }

    /// The books of the snapshot's targets, in their order there.
    pub fn targets(&self) -> Vec<BooksId> {
        self.replay.targets()
    }

    /// What was asked for. `modules` are those of [`modules`](Self::modules), in their order.
    pub fn snapshot(&self, modules: Modules) -> Snapshot {
        let began = self.replay.session().started_monotonic_ns;
        let to = self.span.to_ns.map(|to_ns| MonotonicNanos(began.saturating_add(to_ns)));
        let now = to.map_or(self.last, |to| to.min(self.last));
        let window = |start| {
            let window = Window {
                number: Some(1),
                reason: if self.span.to_ns.is_some() { WindowReason::Time } else { WindowReason::End },
                start_unix_ns: self.replay.session().started_unix_ns.saturating_add(self.span.from_ns.unwrap_or(0)),
                since_mark: false,
                end_unix_ns: self.replay.unix_ns(now),
                merged_count: 0,
            };
            (start, window)
        };
        self.replay.snapshot(self.start.as_ref().map(window), modules, now)
    }
}
