//! The insignificant tail of a profile, folded: what makes less than a share of the whole of a view becomes `<other>`.
//!
//! Stacks are looked at as the flame graph shows them, level by level from the root: below a frame, those that it calls are
//! kept, the largest first, until the next one makes less than the share of the view's total; the rest of them, with all that
//! they call, is one frame, `<other>`. (Chrome's heap dumps were thinned so, at 0.8 %.) What stands above a callsite's own
//! frames is always kept, and so are the callsites of leak candidates, down to their leaves.
//!
//! Owns what is folded and what it adds up to: no total changes, of any view. Refuses to part what belongs to different
//! processes, heaps or threads.

use std::borrow::Cow;
use std::hash::Hash;

use rustc_hash::{FxHashMap, FxHashSet};

use super::folded::{Labels, label};
use super::presentation::{Presentation, Share};
use super::roots::roots;
use crate::ledger::details::Details;
use crate::ledger::totals::Totals;
use crate::model::history::{Change, Held};
use crate::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile};

/// The name of the frame that stands for the rest.
pub(crate) const OTHER: &str = "<other>";

impl Presentation {
    /// The profile as it is to be shown: with its tail folded, where that is asked for.
    pub fn thinned<'a>(&self, profile: &'a Profile) -> Cow<'a, Profile> {
        match self.threshold {
            Some(threshold) if threshold > Share::NOTHING => Cow::Owned(fold(profile, self, threshold)),
            _ => Cow::Borrowed(profile),
        }
    }

    /// The profile with the stacks that [`Self::thinned`] would have, but all of its callsites in their places: for formats that
    /// tell what each of them did.
    pub fn cut<'a>(&self, profile: &'a Profile) -> Cow<'a, Profile> {
        match self.threshold {
            Some(threshold) if threshold > Share::NOTHING => Cow::Owned(cut(profile, self, threshold, cut_target)),
            _ => Cow::Borrowed(profile),
        }
    }
}

fn fold(profile: &Profile, presentation: &Presentation, threshold: Share) -> Profile {
    cut(profile, presentation, threshold, fold_target)
}

/// Has `each` target's stacks cut: it is handed the target, the frame that stands for the rest, and how many of the outermost
/// frames of each callsite are to be kept.
fn cut(
    profile: &Profile,
    presentation: &Presentation,
    threshold: Share,
    each: impl Fn(&mut TargetProfile, FrameId, &[usize]),
) -> Profile {
    let tree = Tree::new(profile, presentation);
    let mut folded = profile.clone();
    let other = other(&mut folded.frames);
    for (target, nodes) in folded.targets.iter_mut().zip(&tree.callsites) {
        let kept_whole: FxHashSet<usize> =
            target.leaks.iter().flat_map(|leaks| &leaks.candidates).map(|candidate| candidate.callsite).collect();
        let kept = |at: usize, callsite: &CallsiteProfile| {
            if kept_whole.contains(&at) {
                return callsite.stack.len();
            }
            let is_kept = |id: &FrameId, node: u32| *id == other || threshold.is_reached(tree.value(node), tree.total);
            let outwards = callsite.stack.iter().rev().zip(&nodes[at]);
            outwards.take_while(|&(id, &node)| is_kept(id, node)).count()
        };
        let kept: Vec<usize> = target.callsites.iter().enumerate().map(|(at, callsite)| kept(at, callsite)).collect();
        each(target, other, &kept);
    }
    folded
}

/// The frame that stands for the rest, which is added unless an earlier folding has.
fn other(frames: &mut Vec<Frame>) -> FrameId {
    let frame = Frame { function: Some(OTHER.into()), ..Frame::default() };
    let at = frames.iter().position(|known| *known == frame).unwrap_or(frames.len());
    if at == frames.len() {
        frames.push(frame);
    }
    FrameId(u32::try_from(at).expect("profiles number their frames in 32 bits"))
}

/// Cuts each callsite's stack to as many of its outermost frames as `kept` says.
fn cut_target(target: &mut TargetProfile, other: FrameId, kept: &[usize]) {
    for (callsite, &kept) in target.callsites.iter_mut().zip(kept) {
        cut_stack(&mut callsite.stack, other, kept);
    }
}

/// Puts `other` in the place of what is further in than the `kept` outermost frames. Whether there was something.
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

/// The same, and joins callsites that are the same then.
fn fold_target(target: &mut TargetProfile, other: FrameId, kept: &[usize]) {
    let callsites = std::mem::take(&mut target.callsites);
    let mut places = Vec::with_capacity(callsites.len());
    let mut joined: FxHashMap<Key, usize> = FxHashMap::default();
    for (mut callsite, &kept) in callsites.into_iter().zip(kept) {
        let next = target.callsites.len();
        if !cut_stack(&mut callsite.stack, other, kept) {
            places.push(next);
            target.callsites.push(callsite);
            continue;
        }
        let place = *joined.entry(Key::of(&callsite)).or_insert(next);
        places.push(place);
        match target.callsites.get_mut(place) {
            Some(sum) => join(sum, &callsite, &target.totals),
            None => target.callsites.push(callsite),
        }
    }
    for candidate in target.leaks.iter_mut().flat_map(|leaks| &mut leaks.candidates) {
        // A candidate of no callsite stays one: there are not more of them than before.
        candidate.callsite = places.get(candidate.callsite).copied().unwrap_or(candidate.callsite);
    }
}

/// What callsites that are folded into one have in common.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    stack: Vec<FrameId>,
    end: Option<&'static str>,
    heap: usize,
    thread: Option<usize>,
    inherited: bool,
    has_older: bool,
}

impl Key {
    fn of(callsite: &CallsiteProfile) -> Self {
        Self {
            stack: callsite.stack.clone(),
            end: callsite.end.map(|end| end.counter().name()),
            heap: callsite.heap,
            thread: callsite.thread,
            inherited: callsite.inherited,
            has_older: callsite.older.is_some(),
        }
    }
}

/// Adds another callsite of the same target.
fn join(sum: &mut CallsiteProfile, more: &CallsiteProfile, target: &Totals) {
    let mut at_peak = sum.totals.at_peak;
    at_peak.add(&more.totals.at_peak);
    let peak = |totals: &Totals| (totals.peak_bytes, totals.peak_count, totals.peak_time);
    let peaks = [peak(&sum.totals), peak(&more.totals)];
    sum.totals.add(&more.totals);
    // When both together held most is not known. It was no less than either's peak, and no less than what they held together
    // at the target's.
    let at_targets = (at_peak.bytes, at_peak.count, target.peak_time);
    let highest = peaks.into_iter().chain([at_targets]).max_by_key(|(bytes, ..)| *bytes);
    (sum.totals.peak_bytes, sum.totals.peak_count, sum.totals.peak_time) = highest.unwrap_or(at_targets);
    sum.totals.at_peak = at_peak;
    if let (Some(sum), Some(more)) = (&mut sum.older, &more.older) {
        sum.add(more);
    }
    Details::add(&mut sum.details, &more.details);
    sum.history = together(&sum.history, &more.history);
}

/// The sum of two histories.
fn together(one: &[Change], other: &[Change]) -> Vec<Change> {
    let mut sum = Vec::with_capacity(one.len() + other.len());
    let (mut held, mut rests) = ([Held::default(); 2], [one, other]);
    while let Some(instant) = rests.iter().filter_map(|rest| rest.first()).map(|change| change.instant).min() {
        for (held, rest) in held.iter_mut().zip(&mut rests) {
            while let Some((first, behind)) = rest.split_first()
                && first.instant <= instant
            {
                (*held, *rest) = (first.held, behind);
            }
        }
        let [one, other] = held;
        let held = Held {
            live_bytes: one.live_bytes + other.live_bytes,
            live_count: one.live_count + other.live_count,
            alloc_bytes: one.alloc_bytes + other.alloc_bytes,
            alloc_count: one.alloc_count + other.alloc_count,
        };
        sum.push(Change { instant, held });
    }
    sum
}

/// The frames as the flame graph shows them, each with what the view says of it and of all that it calls.
struct Tree {
    values: Vec<u128>,
    total: u128,
    /// Per target and callsite, the node of each frame, the outermost first.
    callsites: Vec<Vec<Vec<u32>>>,
}

impl Tree {
    fn new(profile: &Profile, presentation: &Presentation) -> Self {
        let mut labels = Labels::default();
        let frames: Vec<u32> = profile.frames.iter().map(|frame| labels.intern(label(&frame.label()))).collect();
        let mut nodes: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        // The root, above all processes.
        let mut values = vec![0];
        let mut callsites = Vec::with_capacity(profile.targets.len());
        for target in &profile.targets {
            let mut of_target = Vec::with_capacity(target.callsites.len());
            for callsite in &target.callsites {
                let value = u128::from(presentation.view.of_callsite(callsite));
                let above: Vec<u32> =
                    roots(target, callsite, presentation).into_iter().map(|root| labels.intern(label(&root))).collect();
                // An id of no frame is a frame of its own kind.
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

    fn value(&self, node: u32) -> u128 {
        self.values[node as usize]
    }
}
