//! What grew between two profiles, callsite by callsite.
//!
//! Owns which callsites of two profiles are the same (`matching`), how far a difference of estimates can be trusted
//! (`change`), and the formats of a difference. It takes profiles as they are: it neither scales one to the other's duration nor
//! guesses what an incomplete one misses.

mod change;
mod flamegraph;
mod folded;
mod json;
mod matching;
mod svg;
mod table;
mod words;

use std::io;

use profiler_common::stack::StackEnd;

use super::{Format, ReportError, View};
use crate::ledger::totals::Totals;
use crate::model::{Frame, FrameId, Profile};

pub(crate) use change::Change;
pub use table::table;

/// Which of the two profiles gives a flame graph's frames their widths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Widths {
    /// The one before: what has vanished since is there to be seen, what is new is not.
    Before,
    /// The one after: what is new is there to be seen, what has vanished is not.
    #[default]
    After,
}

/// How a flame graph is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    /// What frames are as wide as.
    pub widths: Widths,
    /// It grows downwards, with the outermost frames at the top.
    pub icicle: bool,
}

/// One of the two profiles, with the name by which the user knows it.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The file that it was read from, as it was named.
    pub name: &'a str,
    /// The profile.
    pub profile: &'a Profile,
}

/// Two profiles, compared.
#[derive(Clone, Debug)]
pub struct Diff<'a> {
    /// The profile from which on growth is counted.
    pub before: Side<'a>,
    /// The profile up to which it is.
    pub after: Side<'a>,
    /// The programs of both, each once.
    pub programs: Vec<Program>,
    /// All callsites of both, also those that did not change.
    pub callsites: Vec<Callsite<'a>>,
}

/// Formats that can hold a difference.
pub const FORMATS: [Format; 3] = [Format::Flamegraph, Format::Folded, Format::Json];

/// All targets of a command, added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name before, and after. They differ only where either profile has no other program.
    pub names: [Option<String>; 2],
    /// How many targets there are of it, before and after.
    pub targets: [usize; 2],
}

/// A callsite of either profile, or of both.
#[derive(Clone, Debug)]
pub struct Callsite<'a> {
    /// Where it is.
    pub place: Place<'a>,
    /// What it did.
    pub change: Change,
}

/// Where memory comes from.
#[derive(Clone, Debug)]
pub enum Place<'a> {
    /// A stack.
    Stack(Stack<'a>),
    /// Processes that had ended, of which sums alone are kept.
    Folded,
}

/// A stack of one program. Where both profiles have it, its frames are as the one after has them.
#[derive(Clone, Debug)]
pub struct Stack<'a> {
    /// Index into [`Diff::programs`].
    pub program: usize,
    /// The heap's name, where it has one.
    pub heap: Option<&'a str>,
    /// Its blocks were made by a parent, before a fork.
    pub inherited: bool,
    /// Why the stack ends where it does.
    pub end: Option<StackEnd>,
    /// It is of a process that both profiles are of.
    pub of_same_process: bool,
    /// The profile that `frames` are of.
    pub profile: &'a Profile,
    /// Its frames, leaf first.
    pub frames: &'a [FrameId],
}

impl<'a> Stack<'a> {
    /// Its frames, leaf first.
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &'a Frame> + use<'a> {
        let profile = self.profile;
        self.frames.iter().map(|&id| profile.frame(id))
    }
}

impl<'a> Diff<'a> {
    /// Compares.
    pub fn new(before: Side<'a>, after: Side<'a>) -> Self {
        let (programs, callsites) = matching::matched(before.profile, after.profile);
        Self { before, after, programs, callsites }
    }

    /// What all callsites did together.
    pub fn total(&self) -> Change {
        let mut sides = [Totals::default(); 2];
        for callsite in &self.callsites {
            sides[0].add(&callsite.change.before);
            sides[1].add(&callsite.change.after);
        }
        let [before, after] = [self.before, self.after].map(|side| change::largest_interval_bytes(side.profile));
        Change { before: sides[0], after: sides[1], interval_bytes: [before, after] }
    }

    /// Whether all numbers are exact.
    pub fn is_exact(&self) -> bool {
        self.before.profile.is_exact() && self.after.profile.is_exact()
    }

    /// Whether either profile misses something. Exit code 3.
    pub fn incomplete(&self) -> bool {
        self.before.profile.incomplete() || self.after.profile.incomplete()
    }

    /// The callsites that the view says something of, those that changed most first; as many up as down stay in their order.
    fn by_growth(&self, view: View) -> Vec<&Callsite<'a>> {
        let mut callsites: Vec<_> =
            self.callsites.iter().filter(|callsite| !callsite.change.is_nothing(view)).collect();
        callsites.sort_by(|a, b| b.change.growth(view).abs().total_cmp(&a.change.growth(view).abs()));
        callsites
    }

    /// Writes all of it in a format. What shows one quantity only shows the one that `view` names.
    pub fn write(
        &self,
        format: Format,
        view: View,
        drawing: Drawing,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        match format {
            Format::Flamegraph => flamegraph::write(self, view, drawing, out),
            Format::Folded => folded::write(self, view, out),
            Format::Json => json::write(self, view, out),
            _ => Err(ReportError::NoDifference(format)),
        }
    }
}

impl Program {
    /// Its name, for a frame or a line: `app`, or `app-1 → app-2`.
    fn name(&self) -> String {
        match &self.names {
            [Some(before), Some(after)] if before != after => format!("{before} → {after}"),
            [Some(name), _] | [None, Some(name)] => name.clone(),
            [None, None] => String::new(),
        }
    }
}

/// Whether both are of one recording: some process is in both, watched since the same moment.
fn is_same_recording(before: &Profile, after: &Profile) -> bool {
    before.targets.iter().any(|a| after.targets.iter().any(|b| matching::is_same(before, a, after, b)))
}
