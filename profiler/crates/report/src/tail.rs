//! `--threshold`: merges the small frames of a profile into `<other>`.
//! Below each frame, callees that reach the threshold, a share of the view's total, are kept; all others, with
//! everything they call, become one frame, `<other>`. (Chrome thinned its heap dumps like this, at 0.8 %.) Synthetic
//! frames above a callsite's own and the whole stacks of leak candidates are kept. No total of any view changes, and
//! callsites of different processes, heaps or threads are never merged.

use std::borrow::Cow;

use heapbpf_ledger::details::Details;
use heapbpf_ledger::model::{CallsiteProfile, Change, Frame, FrameId, HeapUsage, Profile, TargetProfile};
use heapbpf_ledger::totals::Totals;
use rustc_hash::{FxHashMap, FxHashSet};

use super::folded::{Labels, label};
use super::presentation::{Presentation, Share};
use super::tables::{Intern, synthetic_frames};

pub(crate) const OTHER: &str = "<other>";

impl Presentation {
    /// Also merges callsites with equal stacks: those of stacks that the agent has completed.
    pub fn thinned<'a>(&self, profile: &'a Profile) -> Cow<'a, Profile> {
        if !profile.targets.iter().any(has_duplicates) {
            return cut(profile, self, merge_target);
        }
        let mut merged = profile.clone();
        for target in &mut merged.targets {
            merge_callsites(target, |_, callsite| !callsite.stack.is_empty());
        }
        merged.round_sums();
        Cow::Owned(cut(&merged, self, merge_target).into_owned())
    }

    /// Like [`Self::thinned`], but keeps the callsites and their indices: for formats that list the events of each.
    pub fn cut<'a>(&self, profile: &'a Profile) -> Cow<'a, Profile> {
        cut(profile, self, cut_target)
    }
}

/// Arguments: the frame that replaces merged ones, and the number of outermost frames of each callsite to keep.
type CutTarget = fn(&mut TargetProfile, FrameId, &[usize]);

fn cut<'a>(profile: &'a Profile, presentation: &Presentation, cut_target: CutTarget) -> Cow<'a, Profile> {
    let Some(threshold) = presentation.threshold.filter(|&threshold| threshold > Share::ZERO) else {
        return Cow::Borrowed(profile);
    };
    let tree = Tree::new(profile, presentation);
    let mut thinned = profile.clone();
    let other = other(&mut thinned.frames);
    for (target, nodes) in thinned.targets.iter_mut().zip(&tree.callsites) {
        let kept_whole: FxHashSet<usize> =
            target.leaks.iter().flat_map(|leaks| &leaks.candidates).map(|candidate| candidate.callsite).collect();
        let kept = |at: usize, callsite: &CallsiteProfile| {
            if kept_whole.contains(&at) {
                return callsite.stack.len();
            }
            let is_kept =
                |id: &FrameId, node: u32| *id == other || threshold.is_reached(tree.values[node as usize], tree.total);
            let outwards = callsite.stack.iter().rev().zip(&nodes[at]);
            outwards.take_while(|&(id, &node)| is_kept(id, node)).count()
        };
        let kept: Vec<usize> = target.callsites.iter().enumerate().map(|(at, callsite)| kept(at, callsite)).collect();
        cut_target(target, other, &kept);
    }
    thinned.round_sums();
    Cow::Owned(thinned)
}

/// Returns the `<other>` frame, which an earlier merge can have added.
fn other(frames: &mut Vec<Frame>) -> FrameId {
    let frame = Frame { function: Some(OTHER.into()), ..Frame::default() };
    let at = frames.iter().position(|known| *known == frame).unwrap_or(frames.len());
    if at == frames.len() {
        frames.push(frame);
    }
    FrameId(u32::try_from(at).expect("profiles number their frames in 32 bits"))
}

fn cut_target(target: &mut TargetProfile, other: FrameId, kept: &[usize]) {
    for (callsite, &kept) in target.callsites.iter_mut().zip(kept) {
        cut_stack(&mut callsite.stack, other, kept);
    }
}

/// Replaces everything below the `kept` outermost frames. Returns whether there was something to replace.
fn cut_stack(stack: &mut Vec<FrameId>, other: FrameId, kept: usize) -> bool {
    match stack.len().saturating_sub(kept) {
        0 => false,
        cut => {
            stack.drain(..cut - 1);
            stack[0] = other;
            true
        }
    }
}

fn merge_target(target: &mut TargetProfile, other: FrameId, kept: &[usize]) {
    merge_callsites(target, |at, callsite| cut_stack(&mut callsite.stack, other, kept[at]));
}

fn has_duplicates(target: &TargetProfile) -> bool {
    let mut seen = FxHashSet::default();
    let mut stacks = target.callsites.iter().filter(|callsite| !callsite.stack.is_empty());
    stacks.any(|callsite| !seen.insert(key(callsite)))
}

/// Merges callsites with equal stacks of those that `is_merged` returns true for. It can change them.
fn merge_callsites(target: &mut TargetProfile, mut is_merged: impl FnMut(usize, &mut CallsiteProfile) -> bool) {
    let callsites = std::mem::take(&mut target.callsites);
    let mut new_indices = Vec::with_capacity(callsites.len());
    let mut merged: FxHashMap<Key<Vec<FrameId>>, usize> = FxHashMap::default();
    for (at, mut callsite) in callsites.into_iter().enumerate() {
        let next = target.callsites.len();
        if !is_merged(at, &mut callsite) {
            new_indices.push(next);
            target.callsites.push(callsite);
            continue;
        }
        let index = *merged.entry(owned_key(&callsite)).or_insert(next);
        new_indices.push(index);
        match target.callsites.get_mut(index) {
            Some(sum) => add(sum, &callsite, &target.totals),
            None => target.callsites.push(callsite),
        }
    }
    for candidate in target.leaks.iter_mut().flat_map(|leaks| &mut leaks.candidates) {
        // An invalid index stays invalid: the number of callsites does not grow.
        candidate.callsite = new_indices.get(candidate.callsite).copied().unwrap_or(candidate.callsite);
    }
}

type Key<Stack> = (Stack, Option<&'static str>, usize, Option<usize>, bool, bool);

fn key(callsite: &CallsiteProfile) -> Key<&[FrameId]> {
    let CallsiteProfile { stack, end, heap, thread, inherited, older, .. } = callsite;
    (stack, end.map(|end| end.counter().name()), *heap, *thread, *inherited, older.is_some())
}

fn owned_key(callsite: &CallsiteProfile) -> Key<Vec<FrameId>> {
    let (stack, end, heap, thread, inherited, has_older) = key(callsite);
    (stack.to_vec(), end, heap, thread, inherited, has_older)
}

fn add(sum: &mut CallsiteProfile, more: &CallsiteProfile, target: &Totals) {
    let mut at_peak = sum.totals.at_peak;
    at_peak += more.totals.at_peak;
    let peak = |totals: &Totals| (totals.peak_bytes, totals.peak_count, totals.peak_time);
    let peaks = [peak(&sum.totals), peak(&more.totals)];
    sum.totals.add(&more.totals);
    // The peak of the sum is unknown. Lower bounds are either callsite's peak, and their sum at the target's peak.
    let at_target_peak = (at_peak.bytes, at_peak.count, target.peak_time);
    let highest = peaks.into_iter().chain([at_target_peak]).max_by_key(|(bytes, ..)| *bytes);
    (sum.totals.peak_bytes, sum.totals.peak_count, sum.totals.peak_time) = highest.unwrap_or(at_target_peak);
    sum.totals.at_peak = at_peak;
    if let (Some(sum), Some(more)) = (&mut sum.older, &more.older) {
        *sum += *more;
    }
    Details::add(&mut sum.details, &more.details);
    sum.history = added(&sum.history, &more.history);
}

fn added(one: &[Change], other: &[Change]) -> Vec<Change> {
    let mut sum = Vec::with_capacity(one.len() + other.len());
    let (mut held, mut rests) = ([HeapUsage::default(); 2], [one, other]);
    while let Some(instant) = rests.iter().filter_map(|rest| rest.first()).map(|change| change.instant).min() {
        for (held, rest) in held.iter_mut().zip(&mut rests) {
            while let Some((first, behind)) = rest.split_first()
                && first.instant <= instant
            {
                (*held, *rest) = (first.held, behind);
            }
        }
        let [one, other] = held;
        sum.push(Change { instant, held: one + other });
    }
    sum
}

/// The frames as in the flame graph, each with the value of itself and all that it calls.
struct Tree {
    values: Vec<u128>,
    total: u128,
    /// By target and callsite: the node of each frame, the outermost first.
    callsites: Vec<Vec<Vec<u32>>>,
}

impl Tree {
    fn new(profile: &Profile, presentation: &Presentation) -> Self {
        let mut labels = Labels::default();
        let frames: Vec<u32> = profile.frames.iter().map(|frame| labels.intern(label(&frame.label()))).collect();
        let mut nodes: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut values = vec![0];
        let mut callsites = Vec::with_capacity(profile.targets.len());
        for target in &profile.targets {
            let mut of_target = Vec::with_capacity(target.callsites.len());
            for callsite in &target.callsites {
                let value = u128::from(presentation.view.of_callsite(callsite));
                let synthetic = synthetic_frames(target, callsite, presentation);
                let above: Vec<u32> = synthetic.iter().map(|name| labels.intern(label(name))).collect();
                // All invalid frame ids count as one frame.
                let own = callsite.stack.iter().rev().map(|id| frames.get(id.0 as usize).copied().unwrap_or(u32::MAX));
                let mut node = 0;
                values[0] += value;
                let path = above.iter().copied().chain(own).map(|label| {
                    let next = u32::try_from(values.len()).expect("a profile has fewer frames in all its stacks");
                    node = *nodes.entry((node, label)).or_insert(next);
                    if node == next {
                        values.push(0);
                    }
                    values[node as usize] += value;
                    node
                });
                of_target.push(path.skip(above.len()).collect());
            }
            callsites.push(of_target);
        }
        Self { total: values[0], values, callsites }
    }
}
