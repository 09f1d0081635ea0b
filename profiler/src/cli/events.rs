//! What happened in a recording, event by event: the recording is read a second time, when the names that are at its end are known.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use rustc_hash::FxHashMap;

use crate::ledger::journal::{Flow, Movement};
use crate::model::Profile;
use crate::recording::entry::LedgerId;
use crate::recording::read;
use crate::recording::span::{Span, Spanned};
use crate::report::Presentation;
use crate::report::heaptrack::Events;
use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;

/// zstd's own choice.
const COMPRESSION_LEVEL: i32 = 3;

/// The names for what happens, from the first reading.
pub(super) struct Names {
    /// All that the recording has until the end of the span.
    profile: Profile,
    /// Where it has the callsites of books, by their numbers there.
    places: FxHashMap<LedgerId, Place>,
    /// Entries that were read.
    entries: usize,
}

struct Place {
    target: usize,
    callsites: FxHashMap<u32, usize>,
}

impl Names {
    /// `books` are those of the snapshot's targets, in their order.
    pub(super) fn new(
        snapshot: &Snapshot,
        books: Vec<LedgerId>,
        resolver: &dyn Resolve,
        trims: bool,
        entries: usize,
    ) -> Self {
        let place = |(at, (books, target)): (usize, (LedgerId, &crate::snapshot::TargetState))| {
            let callsites = target.books.callsites.iter().enumerate().map(|(at, callsite)| (callsite.index, at));
            (books, Place { target: at, callsites: callsites.collect() })
        };
        let places = books.into_iter().zip(&snapshot.targets).enumerate().map(place).collect();
        Self { profile: profile(snapshot, Scope::Whole, resolver, trims), places, entries }
    }

    /// Writes heaptrack's format of what happened in the span of this recording. Callsites are told apart `by_thread` as they
    /// were in the first reading.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read again, or `out` not be written to.
    pub(super) fn write(
        &self,
        recording: &Path,
        span: Span,
        by_thread: bool,
        presentation: &Presentation,
        out: &mut dyn Write,
    ) -> Result<()> {
        let reading = read::read(recording).with_context(|| format!("`{}`", recording.display()))?;
        let profile = presentation.cut(&self.profile);
        let mut events = Events::new(zstd::Encoder::new(out, COMPRESSION_LEVEL)?, &profile, presentation)?;
        let length_ns = Spanned::flows(reading.take(self.entries), span, by_thread, |at_ns, books, flow| {
            events.at(at_ns)?;
            match self.place(books, flow.callsite) {
                Some((target, callsite)) => tell(&mut events, target, callsite, &flow),
                // Not of a target, or of one of which sums alone were kept.
                None => Ok(()),
            }
        })?;
        events.finish(length_ns)?.finish()?;
        Ok(())
    }

    fn place(&self, books: LedgerId, callsite: u32) -> Option<(usize, usize)> {
        let place = self.places.get(&books)?;
        Some((place.target, *place.callsites.get(&callsite)?))
    }
}

fn tell<W: Write>(events: &mut Events<'_, W>, target: usize, callsite: usize, flow: &Flow) -> Result<()> {
    match flow.movement {
        Movement::In(weight) => events.allocate(target, callsite, weight.bytes.rounded())?,
        Movement::Out(weight) => events.free(target, callsite, weight.bytes.rounded())?,
        Movement::Back(weight) => events.unfree(target, callsite, weight.bytes.rounded())?,
        Movement::Reweighed { from, to } => {
            let (from, to) = (from.bytes.rounded(), to.bytes.rounded());
            match to.checked_sub(from) {
                Some(more) => events.unfree(target, callsite, more)?,
                None => events.free(target, callsite, from - to)?,
            }
        }
    }
    Ok(())
}
