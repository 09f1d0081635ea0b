//! The profile that is in a recording, and what has to be said of it while it is read.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::events::Names;
use super::record::UsageError;
use super::say;
use crate::model::Profile;
use crate::recording::names::{self, Found, RecordedNames};
use crate::recording::read::{self, Damage};
use crate::recording::span::{Span, SpanError, Spanned};
use crate::report::text::count;
use crate::snapshot::Scope;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;

/// Modules that are named one by one where they are not found.
const MISSING_NAMED_MAX: usize = 5;

/// What was read of a recording.
pub(super) struct Recorded {
    /// What happened in the span.
    pub(super) profile: Profile,
    /// Until when the recording holds sums alone, in nanoseconds since its beginning.
    pub(super) folded_until_ns: Option<u64>,
    /// The file was not read to its end.
    pub(super) is_damaged: bool,
    /// The names of what happened event by event, where that was asked for.
    pub(super) events: Option<Names>,
}

/// How to read a recording.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct How {
    /// Callsites are told apart by thread, also where the recording was not made so.
    pub(super) by_thread: bool,
    /// The runtime's plumbing is left out of stacks.
    pub(super) trims: bool,
    /// Nothing is said that is of interest only.
    pub(super) quiet: bool,
    /// What happened is to be told event by event.
    pub(super) events: bool,
}

impl Recorded {
    /// Reads what happened in `span`. Where the file is damaged, up to there, and says so.
    ///
    /// # Errors
    ///
    /// When it is no recording, or the span cannot be had of it.
    pub(super) fn read(path: &Path, span: Span, how: How) -> Result<Self> {
        let name = path.display();
        let mut reading = read::read(path).with_context(|| format!("`{name}`"))?;
        let mut names = RecordedNames::new(Resolver::sandboxed(Interrupt::default()));
        let refused = |error: SpanError| UsageError(format!("`{name}`: {error}"));
        let mut entries = 0;
        let counted = (&mut reading).inspect(|_| entries += 1);
        let spanned = Spanned::read(counted, span, how.by_thread, &mut names).map_err(refused)?;
        if how.events {
            spanned.check_whole().map_err(refused)?;
        }
        if let Some(damage) = reading.damage() {
            tell_damage(path, damage, &spanned);
        }
        if reading.passed_over() > 0 {
            let passed_over = count(reading.passed_over());
            say(&format!("heapbpf: `{name}`: {passed_over} entries of a later version of heapbpf were passed over"));
        }
        let Found { modules, missing } = names::find(spanned.modules(), names.is_empty());
        if !how.quiet {
            tell_missing(&missing);
        }
        let snapshot = spanned.snapshot(modules);
        Ok(Self {
            profile: profile(&snapshot, Scope::Window, &names, how.trims),
            events: how.events.then(|| Names::new(&snapshot, spanned.targets(), &names, how.trims, entries)),
            folded_until_ns: spanned.folded_until_ns(),
            is_damaged: reading.damage().is_some(),
        })
    }
}

fn tell_damage(path: &Path, damage: &Damage, spanned: &Spanned) {
    let read = Duration::from_nanos(spanned.length_ns());
    say(&format!(
        "heapbpf: warning: `{}`: damaged at byte {}: {}; read up to {:.1} s, {} events",
        path.display(),
        count(damage.position),
        damage.reason,
        read.as_secs_f64(),
        count(spanned.events()),
    ));
}

fn tell_missing(missing: &[(String, &'static str)]) {
    if missing.is_empty() {
        return;
    }
    let named: Vec<_> = missing.iter().take(MISSING_NAMED_MAX).map(|(path, why)| format!("`{path}` ({why})")).collect();
    let more = match missing.len().saturating_sub(MISSING_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    say(&format!(
        "heapbpf: the recording has no names, and these modules are not on this machine as they were: {}{more}; their frames are told as module+offset",
        named.join(", ")
    ));
}
