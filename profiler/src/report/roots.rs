//! The frames that stand above a callsite's own: what it is grouped by, its process, and what is missing from its stack.

use profiler_common::stack::StackEnd;

use super::describe;
use super::presentation::{Group, Presentation};
use crate::model::{CallsiteProfile, FrameId, TargetProfile};

/// All of them, the outermost first, as names that nothing was done to. Formats that part frames by characters have to
/// take care of those.
pub(super) fn roots(target: &TargetProfile, callsite: &CallsiteProfile, presentation: &Presentation) -> Vec<String> {
    let mut roots: Vec<String> = presentation.by.iter().map(|group| group_of(*group, target, callsite)).collect();
    roots.push(process(target));
    roots.extend(gaps(callsite));
    roots
}

/// What a callsite belongs to, of this kind.
pub(super) fn group_of(group: Group, target: &TargetProfile, callsite: &CallsiteProfile) -> String {
    match group {
        Group::Thread => match callsite.thread.and_then(|thread| target.threads.get(thread)) {
            Some(thread) => format!("{} ({})", thread.name.as_deref().unwrap_or("thread"), thread.tid.0),
            None => "[thread unknown]".to_owned(),
        },
        Group::Command => target.command.clone(),
        Group::Cgroup => target.cgroup.as_deref().unwrap_or("[control group unknown]").to_owned(),
        Group::Heap => match target.heaps.get(callsite.heap) {
            Some(heap) => heap.name.clone(),
            None => "[heap unknown]".to_owned(),
        },
    }
}

/// The process as a frame.
pub(super) fn process(target: &TargetProfile) -> String {
    format!("{} ({})", target.comm, target.pid)
}

/// What has to be said of a stack before its own frames: that its blocks were inherited, that it is not whole.
pub(super) fn gaps(callsite: &CallsiteProfile) -> impl Iterator<Item = String> {
    let inherited = callsite.inherited.then(|| describe::INHERITED.to_owned());
    inherited.into_iter().chain(end(callsite.end, &callsite.stack))
}

/// The frame that says what is missing from a stack. It stands for all that would be further out.
pub(super) fn end(end: Option<StackEnd>, stack: &[FrameId]) -> Option<String> {
    match end {
        None if stack.is_empty() => Some("[stack lost]".to_owned()),
        None => Some("[unwind: unknown]".to_owned()),
        Some(StackEnd::Complete) if stack.is_empty() => Some("[no frames]".to_owned()),
        Some(StackEnd::Complete) => None,
        Some(end) => Some(format!("[unwind: {}]", end.counter().name())),
    }
}
