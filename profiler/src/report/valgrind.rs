//! What the formats of valgrind's tools have in common: how a frame is written, and what stands above it. Their trees grow from
//! the allocation to its callers, so that what stacks are grouped by comes first, and what is missing from them last.

use rustc_hash::FxHashMap;

use super::Presentation;
use super::describe;
use super::roots::{gaps, group_of, process};
use crate::model::{CallsiteProfile, Profile, TargetProfile};

/// The nodes of all callsites' paths as numbers: those of the profile's frames, and behind them those of heapbpf's own words.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    numbers: FxHashMap<String, u32>,
    words: Vec<String>,
}

impl Nodes {
    /// From the first node below the root to the outermost function. The process is among them where there are several.
    pub(super) fn path(
        &mut self,
        profile: &Profile,
        target: &TargetProfile,
        callsite: &CallsiteProfile,
        presentation: &Presentation,
    ) -> Vec<u32> {
        let groups = presentation.by.iter().map(|group| group_of(*group, target, callsite));
        let process = (profile.targets.len() > 1).then(|| process(target));
        let mut path: Vec<u32> = groups.chain(process).map(|word| self.word(profile, word)).collect();
        path.extend(
            callsite.stack.iter().map(|frame| frame.0).filter(|&frame| (frame as usize) < profile.frames.len()),
        );
        let gaps: Vec<String> = gaps(callsite).collect();
        path.extend(gaps.into_iter().rev().map(|word| self.word(profile, word)));
        path
    }

    /// The number of a word.
    pub(super) fn word(&mut self, profile: &Profile, word: String) -> u32 {
        let next =
            u32::try_from(profile.frames.len() + self.words.len()).expect("profiles number their frames in 32 bits");
        *self.numbers.entry(word).or_insert_with_key(|word| {
            self.words.push(word.clone());
            next
        })
    }

    /// What a node is called: `0x5588AC: function (file:line)`, `0x5588AC: function (in module)`, or a word.
    pub(super) fn text(&self, profile: &Profile, node: u32) -> String {
        let node = node as usize;
        let Some(frame) = profile.frames.get(node) else {
            let word = node.checked_sub(profile.frames.len()).and_then(|at| self.words.get(at));
            return word.cloned().unwrap_or_default();
        };
        let function = frame.function.as_deref().unwrap_or("???");
        let place = match (&frame.file, frame.line, &frame.module) {
            (Some(file), Some(line), _) => format!(" ({file}:{line})"),
            (Some(file), None, _) => format!(" ({file})"),
            (None, _, Some(module)) => format!(" (in {module})"),
            (None, _, None) => String::new(),
        };
        format!("0x{:X}: {function}{place}", frame.address)
    }
}

/// The programs, as one line.
pub(super) fn command(profile: &Profile) -> String {
    match profile.targets.as_slice() {
        [target] => target.command.clone(),
        _ => describe::subject(profile),
    }
}

/// When the profile's span begins, in nanoseconds since the Unix epoch.
pub(super) fn start_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.started_unix_ns, |window| window.start_unix_ns)
}

/// When it ends.
pub(super) fn end_unix_ns(profile: &Profile) -> u64 {
    profile.window.map_or(profile.ended_unix_ns, |window| window.end_unix_ns).max(start_unix_ns(profile))
}
