//! Stacks that end before the thread's first frame: why, in which module, and what helps.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, FrameKind, Profile, TargetProfile, base_name};
use profiler_common::interpreter::NATIVE_MISSING;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;

use super::origin::{self, Compiler, Compilers};
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
    pub(super) advice: Option<Cow<'static, str>>,
}

/// The most frequent ones first.
pub(super) fn cuts(profile: &Profile) -> Vec<Cut<'_>> {
    let mut counts: BTreeMap<_, u64> = BTreeMap::new();
    let mut whole: u64 = 0;
    let compilers = OnceCell::new();
    for (target, callsite) in profile.callsites() {
        let count = callsite.totals.alloc_samples;
        whole = whole.saturating_add(count);
        let Some((end, frame)) = cut(profile, callsite).filter(|_| count > 0) else { continue };
        let advice = advice(target, end, frame, compilers.get_or_init(|| Compilers::of(profile)));
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

fn advice(
    target: &TargetProfile,
    end: StackEnd,
    frame: &Frame,
    compilers: &Compilers<'_>,
) -> Option<Cow<'static, str>> {
    let is_code =
        matches!(end, StackEnd::BrokenChain | StackEnd::NoRow | StackEnd::MissingModule | StackEnd::Unreadable);
    if !is_code {
        return None;
    }
    if frame.function.as_deref().is_some_and(|name| name.starts_with("runtime.asmcgocall")) {
        return Some(
            "Go calls C on another stack, and this program's table of functions is of no version from 1.16 to 1.27: no option helps"
                .into(),
        );
    }
    // `[vdso]` and the like are no files.
    let path = file(frame);
    let module = path.map(base_name);
    if module.is_some_and(|name| name.starts_with('[')) {
        return None;
    }
    // What generates code, where the stack ends in it, or in the runtime's own.
    let of_machine = target.memory.runtimes().iter().find_map(|language| {
        let facts = language.facts();
        facts.frame_pointers.filter(|_| module.is_none_or(|name| facts.files.contains(&name)))
    });
    match (path, end) {
        (Some(_), StackEnd::MissingModule) => Some(NOT_LOADED.into()),
        (None, StackEnd::MissingModule) if of_machine.is_some() => {
            Some("the code of the virtual machine was not found yet: it has just started".into())
        }
        _ if of_machine.is_some() => of_machine.map(Cow::Borrowed),
        (None, _) => Some(of_generated(&target.facts.comm).into()),
        (Some(path), StackEnd::NoRow | StackEnd::BrokenChain) => Some(of_module(path, end, compilers.get(frame))),
        _ => None,
    }
}

/// For code that a program generates, by the program's name.
fn of_generated(comm: &str) -> &'static str {
    match comm {
        comm if comm.starts_with("qemu") => {
            "QEMU's emulation (TCG) generates code without frame pointers: no option helps"
        }
        comm if comm.starts_with("beam") => {
            "Erlang: start it with `+JPperf true`, as in `ERL_FLAGS='+JPperf true'` (OTP 25 or later)"
        }
        "sbcl" => "SBCL calls C without a frame of the caller: no option helps",
        _ => "its compiler may have an option to keep frame pointers",
    }
}

/// Returns what helps for code in a file: an option of its compiler, or of whoever has built its package.
fn of_module(path: &str, end: StackEnd, compiler: Option<Compiler>) -> Cow<'static, str> {
    let is_without_tables = end == StackEnd::NoRow;
    let option = match (compiler, is_without_tables) {
        (Some(Compiler::Haskell), _) => return "GHC's code has its frames on another stack: no option helps".into(),
        (Some(Compiler::Rust), true) => "-Cforce-unwind-tables=yes",
        (Some(Compiler::Rust), false) => "-Cforce-frame-pointers=yes",
        (None, true) => "-fasynchronous-unwind-tables",
        (None, false) => "-fno-omit-frame-pointer",
    };
    match (origin::package(path), compiler) {
        (Some(package), _) => {
            format!("{package} has it compiled so: compile that with `{option}`, or use a library of your own").into()
        }
        (None, Some(Compiler::Rust)) => format!("Rust: compile it with `RUSTFLAGS={option}`").into(),
        (None, _) => format!("compile it with `{option}`").into(),
    }
}
