//! The comparison of two profiles: matched callsites, and how much they grew.
//!
//! Profiles are compared as they are: neither scaled to the same duration nor corrected for losses.

use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;

use crate::ledger::totals::{Totals, Z_95};
use crate::model::{Frame, FrameId, Profile};
use crate::report::View;
use crate::units::Amounts;

/// One of the two profiles.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// The file that it was read from, as specified.
    pub name: &'a str,
    /// Content of the file.
    pub profile: &'a Profile,
}

/// The difference of two profiles.
#[derive(Clone, Debug)]
pub struct Diff<'a> {
    /// The earlier profile.
    pub before: Side<'a>,
    /// The later profile.
    pub after: Side<'a>,
    /// The programs of both profiles, without duplicates.
    pub programs: Vec<Program>,
    /// All callsites of both profiles, including unchanged ones.
    pub callsites: Vec<Callsite<'a>>,
}

/// All targets of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name before and after. They differ only if neither profile has another program.
    pub names: [Option<String>; 2],
    /// Number of its targets, before and after.
    pub targets: [usize; 2],
}

/// A callsite of either profile, or of both.
#[derive(Clone, Debug)]
pub struct Callsite<'a> {
    /// `None` for the exited processes of which only totals are kept.
    pub stack: Option<Stack<'a>>,
    /// Totals before and after.
    pub delta: Delta,
}

/// A stack of one program. Where both profiles have it, its frames are those of the later one.
#[derive(Clone, Debug)]
pub struct Stack<'a> {
    /// Index into [`Diff::programs`].
    pub program: usize,
    /// Name of the heap.
    pub heap: Option<&'a str>,
    /// The blocks were allocated by the parent, before a fork.
    pub inherited: bool,
    /// Why the stack ends where it does.
    pub end: Option<StackEnd>,
    /// Both profiles have the process of the stack.
    pub of_same_process: bool,
    /// The profile of `frames`.
    pub profile: &'a Profile,
    /// Leaf first.
    pub frames: &'a [FrameId],
}

impl<'a> Stack<'a> {
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &'a Frame> + use<'a> {
        let profile = self.profile;
        self.frames.iter().map(|&id| profile.frame(id))
    }
}

impl<'a> Diff<'a> {
    /// The sum over all callsites.
    pub fn total(&self) -> Delta {
        let mut sides = [Totals::default(); 2];
        for callsite in &self.callsites {
            sides[0].add(&callsite.delta.before);
            sides[1].add(&callsite.delta.after);
        }
        let [before, after] = [self.before, self.after].map(|side| largest_interval_bytes(side.profile));
        Delta { before: sides[0], after: sides[1], interval_bytes: [before, after] }
    }

    /// Whether all numbers are exact.
    pub fn is_exact(&self) -> bool {
        self.before.profile.is_exact() && self.after.profile.is_exact()
    }

    /// Whether either profile is incomplete. Exit code 3.
    pub fn incomplete(&self) -> bool {
        self.before.profile.incomplete() || self.after.profile.incomplete()
    }

    /// The callsites with an amount in the view, by falling absolute growth. The sort is stable.
    pub(super) fn by_growth(&self, view: View) -> Vec<&Callsite<'a>> {
        let mut callsites: Vec<_> = self.callsites.iter().filter(|callsite| !callsite.delta.is_zero(view)).collect();
        callsites.sort_by(|a, b| b.delta.growth(view).abs().total_cmp(&a.delta.growth(view).abs()));
        callsites
    }
}

impl Program {
    /// `app`, or `app-1 → app-2`.
    pub(super) fn name(&self) -> String {
        match &self.names {
            [Some(before), Some(after)] if before != after => format!("{before} → {after}"),
            [Some(name), _] | [None, Some(name)] => name.clone(),
            [None, None] => String::new(),
        }
    }
}

/// Maximum sampling interval.
const INTERVAL_BYTES_MAX: u32 = 1 << 30;

/// Totals before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    pub before: Totals,
    pub after: Totals,
    /// Largest interval of either side, in bytes.
    pub interval_bytes: [u64; 2],
}

impl Delta {
    /// Whether both amounts of the view are 0.
    pub fn is_zero(&self, view: View) -> bool {
        view.estimate(&self.before) == 0.0 && view.estimate(&self.after) == 0.0
    }

    /// Growth of the view's quantity, in bytes or blocks; negative for shrinkage.
    pub fn growth(&self, view: View) -> f64 {
        match view {
            View::LiveBytes => (self.after.live_bytes() - self.before.live_bytes()).to_f64(),
            View::LiveCount => (self.after.live_count() - self.before.live_count()).to_f64(),
            View::AllocBytes => (self.after.alloc_bytes - self.before.alloc_bytes).to_f64(),
            View::AllocCount => (self.after.alloc_count - self.before.alloc_count).to_f64(),
        }
    }

    /// 95 % confidence interval of the growth.
    ///
    /// The variances of both estimates are summed. That is exact for independent samples, and conservative for two profiles of
    /// one recording: blocks in both were sampled once, so their errors cancel in the difference. Each side counts one
    /// additional sample of the callsite's mean size, because the variance is itself estimated from the samples, and too
    /// small, or 0, where there are few.
    pub fn confidence(&self, view: View) -> [f64; 2] {
        let estimated = view.variance(&self.before).to_f64() + view.variance(&self.after).to_f64();
        let one_more: f64 =
            self.interval_bytes.iter().map(|&interval_bytes| self.variance_of_one(view, interval_bytes)).sum();
        let margin = Z_95 * (estimated + one_more).max(0.0).sqrt();
        let growth = self.growth(view);
        [growth - margin, growth + margin]
    }

    /// The variance that one sample of the mean size adds at this interval.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    fn variance_of_one(&self, view: View, interval_bytes: u64) -> f64 {
        let (bytes, blocks) = match view {
            View::LiveBytes | View::LiveCount => (
                self.before.live_bytes().to_f64() + self.after.live_bytes().to_f64(),
                self.before.live_count().to_f64() + self.after.live_count().to_f64(),
            ),
            View::AllocBytes | View::AllocCount => (
                self.before.alloc_bytes.to_f64() + self.after.alloc_bytes.to_f64(),
                self.before.alloc_count.to_f64() + self.after.alloc_count.to_f64(),
            ),
        };
        if blocks <= 0.0 {
            return 0.0;
        }
        let interval = Interval::nearest(
            u32::try_from(interval_bytes).map_or(INTERVAL_BYTES_MAX, |bytes| bytes.min(INTERVAL_BYTES_MAX)),
        );
        let weight = Amounts::of((bytes / blocks).max(0.0) as u64, interval);
        match view {
            View::LiveBytes | View::AllocBytes => weight.variance.bytes.to_f64(),
            View::LiveCount | View::AllocCount => weight.variance.count.to_f64(),
        }
    }

    /// Whether the change is insignificant: the confidence interval contains 0.
    pub fn is_noise(&self, view: View) -> bool {
        let [low, high] = self.confidence(view);
        low <= 0.0 && high >= 0.0
    }

    pub fn is_exact(&self) -> bool {
        self.interval_bytes.iter().all(|&bytes| bytes <= 1)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.before.add(&other.before);
        self.after.add(&other.after);
        for (mine, others) in self.interval_bytes.iter_mut().zip(other.interval_bytes) {
            *mine = others.max(*mine);
        }
    }
}

/// The largest interval of the profile's heaps; that of the profile without heaps.
pub(super) fn largest_interval_bytes(profile: &Profile) -> u64 {
    let heaps = profile.targets.iter().flat_map(|target| &target.heaps).map(|heap| heap.interval_bytes);
    heaps.chain(profile.others.folded_interval_bytes).max().unwrap_or(profile.interval_bytes)
}
