//! Stacks that end before the thread's first frame: why, in which module, and what helps.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, FrameKind, Profile, TargetProfile, base_name};
use profiler_common::interpreter::NATIVE_MISSING;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;

use super::text;

/// Stacks that end in one module for one reason.
pub(super) struct Cut<'a> {
    pub(super) end: StackEnd,
    /// Module of the outermost known frame; `None` for generated code.
    pub(super) module: Option<&'a str>,
    /// Number of sampled allocations.
    pub(super) count: u64,
    /// Of all sampled allocations, from 0 to 1.
    pub(super) share: f64,
    /// What helps, or why nothing does.
    pub(super) advice: Option<&'static str>,
}

/// The most frequent ones first.
pub(super) fn cuts(profile: &Profile) -> Vec<Cut<'_>> {
    let mut counts: BTreeMap<_, u64> = BTreeMap::new();
    let mut whole: u64 = 0;
    for (target, callsite) in profile.callsites() {
        let count = callsite.totals.alloc_samples;
        whole = whole.saturating_add(count);
        let Some((end, frame)) = cut(profile, callsite).filter(|_| count > 0) else { continue };
        let advice = advice(target, end, frame);
        let sum = counts.entry((end as u8, file(frame), advice)).or_default();
        *sum = sum.saturating_add(count);
    }
    let cut = |((end, module, advice), count): ((u8, _, _), u64)| {
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = count as f64 / whole.max(1) as f64;
        Some(Cut { end: StackEnd::from_wire(end)?, module, count, share, advice })
    };
    let mut cuts: Vec<Cut<'_>> = counts.into_iter().filter_map(cut).collect();
    cuts.sort_by_key(|cut| Reverse(cut.count));
    cuts
}

/// The reason, and the outermost known frame before the cut.
fn cut<'a>(profile: &'a Profile, callsite: &CallsiteProfile) -> Option<(StackEnd, &'a Frame)> {
    let end = callsite.end.filter(|end| *end != StackEnd::Complete)?;
    let frame = |id: &FrameId| profile.frames.get(id.0 as usize);
    if end != StackEnd::NativeMissing {
        return Some((end, frame(callsite.stack.last()?)?));
    }
    // The last native one: functions of the interpreter are there.
    let mut known = callsite.stack.iter().filter_map(frame);
    let known = known.by_ref().take_while(|it| it.function.as_deref() != Some(NATIVE_MISSING));
    known.filter(|it| it.kind != FrameKind::Interpreted).last().map(|frame| (end, frame))
}

/// The file of a frame's code.
fn file(frame: &Frame) -> Option<&str> {
    frame.module.as_deref().filter(|_| !matches!(frame.kind, FrameKind::Jitted | FrameKind::Interpreted))
}

impl Cut<'_> {
    /// `libgc.so.1: no unwind information`
    pub(super) fn cause(&self) -> String {
        let module = self.module.map(|path| text::printable(base_name(path)));
        format!("{}: {}", module.as_deref().unwrap_or("generated code"), reason(self.end))
    }
}

/// In the synthetic frame `[unwind stopped: …]`.
pub(super) fn reason(end: StackEnd) -> String {
    match end {
        StackEnd::Complete => "nothing",
        StackEnd::Truncated => return format!("more than {STACK_FRAMES_MAX} frames"),
        StackEnd::Unreadable => "unreadable memory",
        StackEnd::BrokenChain => "broken frame pointers",
        StackEnd::NoScratch => "interrupted",
        StackEnd::MissingModule => "no table",
        StackEnd::NoRow => "no unwind information",
        StackEnd::UnsupportedRule => "unsupported unwind rule",
        StackEnd::NativeMissing => "native functions missing",
        StackEnd::Frozen => "outer frames in the continuation of a virtual thread",
    }
    .to_owned()
}

const NOT_LOADED: &str = "its table was not loaded yet: modules that a program has just loaded";

fn advice(target: &TargetProfile, end: StackEnd, frame: &Frame) -> Option<&'static str> {
    let is_code =
        matches!(end, StackEnd::BrokenChain | StackEnd::NoRow | StackEnd::MissingModule | StackEnd::Unreadable);
    if !is_code {
        return None;
    }
    if frame.function.as_deref().is_some_and(|name| name.starts_with("runtime.asmcgocall")) {
        return Some(
            "Go calls C on another stack, and this program's table of functions is of no version from 1.16 to 1.27: no option helps",
        );
    }
    // `[vdso]` and the like are no files.
    let module = file(frame).map(base_name);
    if module.is_some_and(|name| name.starts_with('[')) {
        return None;
    }
    // What generates code, where the stack ends in it, or in the runtime's own.
    let of_machine = target.memory.runtimes().iter().find_map(|language| {
        let facts = language.facts();
        facts.frame_pointers.filter(|_| module.is_none_or(|name| facts.files.contains(&name)))
    });
    match (module, end) {
        (Some(_), StackEnd::MissingModule) => Some(NOT_LOADED),
        (None, StackEnd::MissingModule) if of_machine.is_some() => {
            Some("the code of the virtual machine was not found yet: it has just started")
        }
        _ if of_machine.is_some() => of_machine,
        (None, _) if target.facts.comm.starts_with("qemu") => {
            Some("QEMU's emulation (TCG) generates code without frame pointers: no option helps")
        }
        (None, _) => Some("its compiler may have an option to keep frame pointers"),
        (Some(_), StackEnd::NoRow) => Some("compile it with `-fasynchronous-unwind-tables`"),
        (Some(_), StackEnd::BrokenChain) => Some("compile it with `-fno-omit-frame-pointer`"),
        _ => None,
    }
}
