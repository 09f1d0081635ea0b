//! Stack frames as all formats write them: physical calls, the module and mapping of an address, and the synthetic
//! frames that stand above a stack.

use profiler_common::stack::StackEnd;

use super::describe;
use super::presentation::{Group, Presentation};
use crate::model::{CallsiteProfile, Frame, FrameId, MappingProfile, ModuleProfile, Profile, TargetProfile};

/// A report that was read from a file can reference frames that it does not contain.
pub(super) fn frame(profile: &Profile, id: FrameId) -> Option<&Frame> {
    profile.frames.get(id.0 as usize)
}

/// Splits a stack into its physical calls, leaf first. The frames of a call share an address: all but the last were inlined into the
/// next one. Only a stack that was cut within a call ends in an inlined frame.
pub(super) fn calls<'a>(profile: &'a Profile, stack: &'a [FrameId]) -> impl DoubleEndedIterator<Item = &'a [FrameId]> {
    stack.split_inclusive(move |&id| !frame(profile, id).is_some_and(|frame| frame.inlined))
}

/// The last byte of the call instruction, rather than the address it returns to, which can belong to the next line or function.
pub(super) fn call_address(frame: &Frame) -> u64 {
    frame.address.saturating_sub(1)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The module of a frame's code and its mapping in the target. Reports of old versions have neither.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeLocation<'a> {
    pub(super) module: Option<&'a ModuleProfile>,
    pub(super) mapping: Option<&'a MappingProfile>,
}

impl<'a> CodeLocation<'a> {
    pub(super) fn of(profile: &'a Profile, target: &'a TargetProfile, frame: &Frame) -> Self {
        let Some(path) = &frame.module else { return Self::default() };
        let module_at = |at: usize| profile.modules.get(at).filter(|module| module.path == *path);
        let address = call_address(frame);
        // Past mappings are listed too, so another module's can cover the address as well.
        let mapping = target
            .mappings
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&address) && module_at(mapping.module).is_some());
        let module = match mapping {
            Some(mapping) => module_at(mapping.module),
            None => profile.modules.iter().find(|module| module.path == *path),
        };
        Self { module, mapping }
    }

    pub(super) fn build_id(&self) -> Option<&'a [u8]> {
        self.module.and_then(|module| module.build_id.as_deref())
    }

    /// Start, end and file offset of the mapping; zeros if it is unknown.
    pub(super) fn range(&self) -> [u64; 3] {
        self.mapping.map_or([0; 3], |mapping| [mapping.start, mapping.end, mapping.offset])
    }
}

/// The frames above a callsite's own, the outermost first. Names are raw: formats that separate frames by
/// characters must escape those.
pub(super) fn synthetic_frames(
    target: &TargetProfile,
    callsite: &CallsiteProfile,
    presentation: &Presentation,
) -> Vec<String> {
    let groups = presentation.by.iter().map(|group| group_frame(*group, target, callsite));
    groups.chain([process_frame(target)]).chain(gap_frames(callsite)).collect()
}

pub(super) fn group_frame(group: Group, target: &TargetProfile, callsite: &CallsiteProfile) -> String {
    match group {
        Group::Thread => match callsite.thread.and_then(|thread| target.threads.get(thread)) {
            Some(thread) => format!("{} ({})", thread.name.as_deref().unwrap_or("thread"), thread.tid.0),
            None => "[thread unknown]".to_owned(),
        },
        Group::Command => target.facts.command.clone(),
        Group::Cgroup => target.facts.cgroup.as_deref().unwrap_or("[control group unknown]").to_owned(),
        Group::Heap => heap_name(target, callsite.heap).to_owned(),
    }
}

pub(super) fn heap_name(target: &TargetProfile, heap: usize) -> &str {
    target.heaps.get(heap).map_or("[heap unknown]", |heap| &heap.name)
}

pub(super) fn process_frame(target: &TargetProfile) -> String {
    format!("{} ({})", target.facts.comm, target.facts.pid)
}

pub(super) fn gap_frames(callsite: &CallsiteProfile) -> impl DoubleEndedIterator<Item = String> {
    let inherited = callsite.inherited.then(|| describe::INHERITED.to_owned());
    inherited.into_iter().chain(end_frame(callsite.end, &callsite.stack))
}

pub(super) fn end_frame(end: Option<StackEnd>, stack: &[FrameId]) -> Option<String> {
    match end {
        None if stack.is_empty() => Some("[stack lost]".to_owned()),
        None => Some("[unwind: unknown]".to_owned()),
        Some(StackEnd::Complete) if stack.is_empty() => Some("[no frames]".to_owned()),
        Some(StackEnd::Complete) => None,
        Some(end) => Some(format!("[unwind: {}]", end.counter().name())),
    }
}
