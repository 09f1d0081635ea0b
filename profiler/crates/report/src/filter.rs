//! `--focus`, `--ignore`, `--hide` and `--only-module`, with pprof's meanings: which callsites of a profile are shown,
//! and which of their frames.

use std::fmt;

use heapbpf_ledger::model::{CallsiteProfile, CurvePoint, Frame, FrameId, History, Leaks, Profile, TargetProfile};
use heapbpf_ledger::totals::{HeapUsage, Totals};
use regex::Regex;
use rustc_hash::FxHashMap;

/// Patterns are searched in the names of functions, source files and modules.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Keeps callsites with a matching frame.
    pub focus: Option<Regex>,
    /// Removes callsites with a matching frame.
    pub ignore: Option<Regex>,
    /// Removes matching frames, and callsites of which nothing is left.
    pub hide: Option<Regex>,
    /// Removes frames of all modules that do not match, and callsites of which nothing is left.
    pub only_module: Option<Regex>,
}

/// New indices of each target's callsites; `None` for those removed.
pub(crate) type Kept = Vec<Vec<Option<usize>>>;

impl Filter {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts().next().is_none()
    }

    fn parts(&self) -> impl Iterator<Item = (&'static str, &Regex)> {
        let all = [
            ("focus", &self.focus),
            ("ignore", &self.ignore),
            ("hide", &self.hide),
            ("only-module", &self.only_module),
        ];
        all.into_iter().filter_map(|(name, pattern)| Some((name, pattern.as_ref()?)))
    }

    /// Totals become those of the callsites that are kept.
    pub fn apply(&self, profile: &mut Profile) -> Kept {
        if self.is_empty() {
            return profile.targets.iter().map(|target| (0..target.callsites.len()).map(Some).collect()).collect();
        }
        let mut frames = Frames::new(self, &profile.frames);
        let kept = profile.targets.iter_mut().map(|target| apply_to(target, self, &mut frames)).collect();
        profile.frames.append(&mut frames.outermost);
        profile.round_sums();
        if self.focus.is_some() || self.only_module.is_some() {
            // Exited processes of which only totals are known have no frames.
            profile.others.folded_totals = Totals::default();
        }
        let earlier = profile.filter.take().map(|earlier| format!("{earlier} "));
        profile.filter = Some(format!("{}{self}", earlier.unwrap_or_default()));
        kept
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.parts().map(|(name, pattern)| format!("{name}={pattern}")).collect();
        f.write_str(&parts.join(" "))
    }
}

#[derive(Clone, Copy)]
struct Matches {
    is_focused: bool,
    is_ignored: bool,
    is_hidden: bool,
}

/// What the patterns match, by frame.
struct Frames<'a> {
    all: Vec<Matches>,
    known: Vec<Frame>,
    /// Copies of inlined frames whose callers in the same call are hidden, and their ids.
    outermost: Vec<Frame>,
    copies: FxHashMap<FrameId, FrameId>,
    filter: &'a Filter,
}

impl<'a> Frames<'a> {
    fn new(filter: &'a Filter, frames: &[Frame]) -> Self {
        let is_match = |pattern: &Option<Regex>, frame: &Frame| {
            let names = [frame.function.as_deref(), frame.file.as_deref(), frame.module.as_deref()];
            pattern.as_ref().is_some_and(|pattern| names.into_iter().flatten().any(|name| pattern.is_match(name)))
        };
        let is_of_other_module = |frame: &Frame| {
            let module = frame.module.as_deref().unwrap_or_default();
            filter.only_module.as_ref().is_some_and(|pattern| !pattern.is_match(module))
        };
        let all = frames.iter().map(|frame| Matches {
            is_focused: filter.focus.is_none() || is_match(&filter.focus, frame),
            is_ignored: is_match(&filter.ignore, frame),
            is_hidden: is_match(&filter.hide, frame) || is_of_other_module(frame),
        });
        let all = all.collect();
        Self { all, known: frames.to_vec(), outermost: Vec::new(), copies: FxHashMap::default(), filter }
    }

    fn get(&self, id: FrameId) -> Option<Matches> {
        self.all.get(id.0 as usize).copied()
    }

    /// Removes hidden frames. Returns whether the callsite is kept.
    fn select(&mut self, callsite: &mut CallsiteProfile) -> bool {
        let matches = || callsite.stack.iter().filter_map(|&id| self.get(id));
        let is_focused = self.filter.focus.is_none() || matches().any(|frame| frame.is_focused);
        if !is_focused || matches().any(|frame| frame.is_ignored) {
            return false;
        }
        if !matches().any(|frame| frame.is_hidden) {
            // A stack without frames is of no module.
            return self.filter.only_module.is_none() || !callsite.stack.is_empty();
        }
        let stack = std::mem::take(&mut callsite.stack);
        let known = &self.known;
        let is_inlined = |id: FrameId| known.get(id.0 as usize).is_some_and(|frame| frame.inlined);
        let calls: Vec<&[FrameId]> = stack.split_inclusive(|&id| !is_inlined(id)).collect();
        for call in calls {
            let mut kept: Vec<FrameId> =
                call.iter().copied().filter(|&id| !self.get(id).is_some_and(|frame| frame.is_hidden)).collect();
            if let Some(last) = kept.last_mut().filter(|last| call.last() != Some(*last)) {
                *last = self.outermost(*last);
            }
            callsite.stack.append(&mut kept);
        }
        !callsite.stack.is_empty()
    }

    fn is_inlined(&self, id: FrameId) -> bool {
        self.known.get(id.0 as usize).is_some_and(|frame| frame.inlined)
    }

    /// A frame like this one that was not inlined.
    fn outermost(&mut self, id: FrameId) -> FrameId {
        if !self.is_inlined(id) {
            return id;
        }
        let next = FrameId(u32::try_from(self.known.len() + self.outermost.len()).unwrap_or(u32::MAX));
        let copy = *self.copies.entry(id).or_insert(next);
        if copy == next {
            self.outermost.push(Frame { inlined: false, ..self.known[id.0 as usize].clone() });
        }
        copy
    }
}

fn apply_to(target: &mut TargetProfile, filter: &Filter, frames: &mut Frames<'_>) -> Vec<Option<usize>> {
    debug_assert!(!filter.is_empty());
    let mut kept = Vec::with_capacity(target.callsites.len());
    let mut count = 0;
    target.callsites.retain_mut(|callsite| {
        let is_kept = frames.select(callsite);
        kept.push(is_kept.then_some(count));
        count += usize::from(is_kept);
        is_kept
    });
    if count == kept.len() {
        return kept;
    }
    target.totals = sum(&target.callsites, &target.totals);
    for (index, heap) in target.heaps.iter_mut().enumerate() {
        heap.totals = sum(target.callsites.iter().filter(|callsite| callsite.heap == index), &heap.totals);
    }
    target.history.curve = curve(&target.history, &target.callsites);
    if let Some(leaks) = &mut target.leaks {
        keep_candidates(leaks, &kept);
    }
    kept
}

/// The peak of some callsites is not known; it is at least what they held at the process's.
fn sum<'a>(callsites: impl IntoIterator<Item = &'a CallsiteProfile>, whole: &Totals) -> Totals {
    let mut sum = Totals::default();
    let mut at_peak = sum.at_peak;
    for callsite in callsites {
        sum.add(&callsite.totals);
        at_peak += callsite.totals.at_peak;
    }
    let live = sum.live();
    let (peak, peak_time) = if at_peak.bytes < live.bytes { (live, None) } else { (at_peak, whole.peak_time) };
    Totals { at_peak, peak_bytes: peak.bytes, peak_count: peak.count, peak_time, ..sum }
}

/// What the callsites held together at the points in time of the history.
fn curve(history: &History, callsites: &[CallsiteProfile]) -> Vec<CurvePoint> {
    let mut changes: Vec<(u32, usize, HeapUsage)> = Vec::new();
    for (at, callsite) in callsites.iter().enumerate() {
        changes.extend(callsite.history.iter().map(|change| (change.instant, at, change.held)));
    }
    changes.sort_unstable_by_key(|&(instant, at, _)| (instant, at));
    let mut held = vec![HeapUsage::default(); callsites.len()];
    let mut whole = HeapUsage::default();
    let mut changes = changes.into_iter().peekable();
    let instants = (0_u32..).zip(&history.instants);
    let points = instants.map(|(instant, point)| {
        while let Some((_, at, now)) = changes.next_if(|&(changed, ..)| changed <= instant) {
            whole = minus(whole, held[at]) + now;
            held[at] = now;
        }
        CurvePoint { time: point.time, held: whole }
    });
    points.collect()
}

fn minus(a: HeapUsage, b: HeapUsage) -> HeapUsage {
    HeapUsage {
        live_bytes: a.live_bytes - b.live_bytes,
        live_count: a.live_count - b.live_count,
        alloc_bytes: a.alloc_bytes - b.alloc_bytes,
        alloc_count: a.alloc_count - b.alloc_count,
    }
}

fn keep_candidates(leaks: &mut Leaks, kept: &[Option<usize>]) {
    let before = leaks.candidates.len();
    leaks.candidates.retain_mut(|candidate| {
        let new = kept.get(candidate.callsite).copied().flatten();
        candidate.callsite = new.unwrap_or(candidate.callsite);
        new.is_some()
    });
    leaks.count = leaks.count.saturating_sub(before - leaks.candidates.len());
}
