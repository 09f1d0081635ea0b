//! The history of a target and its callsites within a profile's window. Sums remain those since the recording began;
//! the state at the start of the window is the first point.

use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::totals::Held;
use crate::ledger::totals::Totals;
use crate::model::history::{Change, History, Instant, Moment};
use crate::snapshot::{Base, TargetState};
use crate::units::MonotonicNanos;

pub(super) struct Clip<'state> {
    target: &'state TargetState,
    /// Start of the window and the snapshot there; `None` if the window starts with the target.
    window: Option<(MonotonicNanos, &'state TargetSnapshot)>,
    /// Range of the timeline's points within the window, excluding its start.
    kept: [usize; 2],
    /// Whether a point is added at the start, and one at the end.
    has_ends: [bool; 2],
    instants: Vec<Instant>,
}

impl<'state> Clip<'state> {
    /// `window_start` is the start of the profile's window, if it is one.
    pub(super) fn new(target: &'state TargetState, window_start: Option<MonotonicNanos>) -> Self {
        let points = target.timeline.instants();
        let window = match &target.base {
            Base::At(base) => window_start.map(|start| (start, &**base)),
            Base::Beginning | Base::Ended => None,
        };
        let begun = match window {
            Some((start, _)) => Some(start.min(target.until)),
            // Probes are attached shortly before the official beginning; a point may lie between.
            None => Some(target.facts.beginning.time.min(target.until))
                .filter(|time| points.first().is_none_or(|first| first.time > *time)),
        };
        let first = begun.map_or(0, |begun| points.partition_point(|instant| instant.time <= begun));
        let behind = points.partition_point(|instant| instant.time <= target.until).max(first);
        let mut instants = Vec::with_capacity(behind - first + 2);
        if let Some(time) = begun {
            let same = points[..first].last().filter(|instant| instant.time == time);
            instants.push(Instant { time, occasion: same.and_then(|instant| instant.occasion) });
        }
        instants.extend(&points[first..behind]);
        let has_end = instants.last().is_none_or(|last| last.time < target.until);
        if has_end {
            instants.push(Instant { time: target.until, occasion: None });
        }
        let has_ends = [begun.is_some(), has_end];
        Self { target, window, kept: [first, behind], has_ends, instants }
    }

    /// Returns the points at which the state of a callsite changed.
    pub(super) fn changes(&self, index: u32) -> Vec<Change> {
        let ([first, behind], [has_beginning, has_end]) = (self.kept, self.has_ends);
        let totals = totals_of(&self.target.books, index);
        let at_first = match self.window {
            Some((_, base)) => totals_of(base, index).map(Held::of),
            None => totals.map(Held::at_first),
        };
        let at_first = has_beginning.then_some((0, at_first.unwrap_or_default()));
        // A change before the first point may have been undone by then.
        let timeline = &self.target.timeline;
        let at_point = timeline.changes(index as usize).take_while(|(point, _)| *point <= first).last();
        let at_point = (first < behind).then(|| (first, at_point.map(|(_, held)| held).unwrap_or_default()));
        let later = timeline.changes(index as usize).filter(|(point, _)| *point > first && *point < behind);
        let points =
            at_point.into_iter().chain(later).map(|(point, held)| (point - first + usize::from(has_beginning), held));
        let at_last = has_end.then_some((self.instants.len() - 1, totals.map(Held::of).unwrap_or_default()));
        let (mut changes, mut last) = (Vec::new(), Held::default());
        for (place, held) in at_first.into_iter().chain(points).chain(at_last) {
            if held != last {
                changes.push(Change { instant: u32::try_from(place).unwrap_or(u32::MAX), held });
                last = held;
            }
        }
        changes
    }

    pub(super) fn history(self) -> History {
        History { curve: self.curve(), instants: self.instants }
    }

    fn curve(&self) -> Vec<Moment> {
        let TargetState { curve, books, until, facts, .. } = self.target;
        let (beginning, later) = match self.window {
            Some((start, base)) => {
                let later = curve.partition_point(|moment| moment.time <= start);
                (Moment { time: start.min(*until), held: Held::of(&base.totals) }, later)
            }
            None => {
                let first = curve.first().map_or(*until, |first| first.time);
                (Moment { time: facts.beginning.time.min(first), held: Held::at_first(&books.totals) }, 0)
            }
        };
        let last = Moment { time: *until, held: Held::of(&books.totals) };
        let mut moments = vec![beginning];
        moments.extend(&curve[later..]);
        // Without changes since the start, start and end are the same point.
        if moments.last() != Some(&last) {
            moments.push(last);
        }
        moments.dedup();
        moments
    }
}

/// Returns the totals of a callsite by index; `None` if it was idle.
fn totals_of(books: &TargetSnapshot, index: u32) -> Option<&Totals> {
    let place = books.callsites.binary_search_by_key(&index, |callsite| callsite.index).ok()?;
    Some(&books.callsites[place].totals)
}

#[cfg(test)]
mod tests;
