//! Stacks in the formats of valgrind's tools. Their trees grow from the allocation to its callers, so groups come first, and the frame
//! that replaces missing callers comes last.

use super::frames::{frame, gap_frames, group_frame, process_frame};
use super::intern::Interner;
use super::presentation::Presentation;
use crate::model::{CallsiteProfile, Profile, TargetProfile};

/// The nodes of all callsites' paths: indices of the profile's frames, followed by those of synthetic frames.
#[derive(Default)]
pub(super) struct Nodes {
    synthetic: Interner<String>,
}

impl Nodes {
    /// Returns the path from the node below the root to the outermost function. If there are several processes, it contains the process.
    pub(super) fn path(
        &mut self,
        profile: &Profile,
        target: &TargetProfile,
        callsite: &CallsiteProfile,
        presentation: &Presentation,
    ) -> Vec<u32> {
        let groups = presentation.by.iter().map(|group| group_frame(*group, target, callsite));
        let process = (profile.targets.len() > 1).then(|| process_frame(target));
        let mut path: Vec<u32> = groups.chain(process).map(|name| self.synthetic(profile, name)).collect();
        path.extend(callsite.stack.iter().filter(|&&id| frame(profile, id).is_some()).map(|id| id.0));
        path.extend(gap_frames(callsite).rev().map(|name| self.synthetic(profile, name)));
        path
    }

    pub(super) fn synthetic(&mut self, profile: &Profile, name: String) -> u32 {
        let frames = u32::try_from(profile.frames.len()).expect("profiles number their frames in 32 bits");
        frames + self.synthetic.intern(name)
    }

    /// `0x5588AC: function (file:line)`, `0x5588AC: function (in module)`, or the name of a synthetic frame.
    pub(super) fn text(&self, profile: &Profile, node: u32) -> String {
        let node = node as usize;
        let Some(frame) = profile.frames.get(node) else {
            return self.synthetic.values[node - profile.frames.len()].clone();
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
