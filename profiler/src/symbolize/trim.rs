//! Removes runtime frames: at both ends of stacks, between allocating call and malloc, and between system and `main`; and those of
//! an interpreter between, and outside of, the functions that it executes.

use std::borrow::Cow;

use heapbpf_base::language::Language;
use heapbpf_ledger::model::{Frame, FrameId, FrameKind};

/// Prefixes of functions between an allocating statement and malloc.
const ALLOCATION: &[&str] = &[
    "__rust_alloc",
    "__rust_alloc_zeroed",
    "__rust_realloc",
    "__rustc::__rust_",
    "__rdl_",
    "__rg_",
    "alloc::alloc::",
    "<alloc::alloc::",
    "alloc::raw_vec::",
    "<alloc::raw_vec::",
    "alloc::vec::from_elem",
    "alloc::boxed::Box<T>::new",
    "<std::alloc::System as ",
    "std::alloc::",
    "std::sys::alloc::",
    "std::sys::pal::unix::alloc::",
    "operator new",
    "std::allocator<",
    "std::allocator_traits<",
    "std::__new_allocator<",
    "__gnu_cxx::new_allocator<",
    "std::__detail::_Hashtable_alloc<",
    "std::_Vector_base<",
    "std::__cxx1998::_Vector_base<",
];

const START: &[&str] = &[
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "libc_start_main_stage2",
    "start_thread",
    "__clone",
    "clone3",
    "__clone3",
    "std::rt::lang_start",
    "std::rt::lang_start_internal",
    "std::panic::catch_unwind",
    "std::panicking::try",
    "std::panicking::catch_unwind",
    "std::panicking::do_call",
    "std::panicking::r#try",
    "std::sys::backtrace::__rust_begin_short_backtrace",
    "std::sys_common::backtrace::__rust_begin_short_backtrace",
    "core::ops::function::FnOnce::call_once",
    "core::ops::function::impls::",
    "<&dyn core::ops::function::Fn",
    "<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once",
    "<core::panic::unwind_safe::AssertUnwindSafe<T> as core::ops::function::FnOnce<()>>::call_once",
    "std::thread::Builder::spawn_unchecked_",
    "std::thread::lifecycle::spawn_unchecked",
    "std::sys::thread::unix::Thread::new::thread_start",
    "std::sys::pal::unix::thread::Thread::new::thread_start",
    "std::thread::Invoker<",
    "std::thread::_Invoker<",
    "std::thread::_State_impl<",
    "execute_native_thread_routine",
];

/// Traits that only the standard library implements, on its way to an allocation.
const ALLOCATION_TRAITS: &[&str] = &[" as alloc::vec::spec_", " as alloc::slice::hack::", " as alloc::vec::is_zero::"];

/// Which frames are removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trim {
    /// Of the language runtime, at both ends.
    pub ends: bool,
    /// Of the interpreter.
    pub interpreter: bool,
}

impl Trim {
    pub const NOTHING: Self = Self { ends: false, interpreter: false };
}

/// A stack that consists of runtime frames is kept.
pub(crate) fn trim<'stack>(stack: &'stack [FrameId], frames: &[Frame], what: Trim) -> Cow<'stack, [FrameId]> {
    let kept = if what.interpreter { trim_interpreter(stack, frames) } else { Cow::Borrowed(stack) };
    if !what.ends {
        return kept;
    }
    match kept {
        Cow::Borrowed(stack) => Cow::Borrowed(trim_ends(stack, frames)),
        Cow::Owned(stack) => Cow::Owned(trim_ends(&stack, frames).to_vec()),
    }
}

fn trim_interpreter<'stack>(stack: &'stack [FrameId], frames: &[Frame]) -> Cow<'stack, [FrameId]> {
    let kind = |id: &FrameId| frames.get(id.0 as usize).map_or(FrameKind::Native, |frame| frame.kind);
    let is_code = |id: &FrameId| matches!(kind(id), FrameKind::Interpreted | FrameKind::Jitted);
    let Some(first) = stack.iter().position(is_code) else {
        return Cow::Borrowed(stack);
    };
    // What the interpreter does for the innermost function shows what is allocated: only its loop, which is native, and the stubs
    // of virtual machines are removed.
    let (inside, outside) = stack.split_at(first);
    let language_of =
        |id: &FrameId| frames.get(id.0 as usize).and_then(|frame| Language::of_module(frame.module.as_deref()?));
    let functions = outside.first().and_then(language_of).and_then(Language::functions);
    let loop_frames = functions.map_or(1, |functions| functions.loop_frames);
    let of_loop = inside.iter().rev().take(loop_frames).take_while(|id| kind(id) == FrameKind::Runtime).count();
    let inside = inside[..inside.len() - of_loop].iter().filter(|id| language_of(id).is_none());
    let outside = outside.iter().filter(|id| kind(id) != FrameKind::Runtime);
    Cow::Owned(inside.chain(outside).copied().collect())
}

fn trim_ends<'stack>(stack: &'stack [FrameId], frames: &[Frame]) -> &'stack [FrameId] {
    let name = |id: &FrameId| frames.get(id.0 as usize).and_then(|frame| frame.function.as_deref()).unwrap_or("");
    let allocates = |name: &str| {
        begins_like_any(name, ALLOCATION) || ALLOCATION_TRAITS.iter().any(|of_trait| name.contains(of_trait))
    };
    let leaf = stack.iter().take_while(|id| allocates(name(id))).count();
    let mut kept = &stack[leaf..];
    while let [rest @ .., last] = kept {
        // The `main` of a Rust program is generated; the program's own is further in.
        let rust_main =
            name(last) == "main" && rest.last().is_some_and(|id| name(id).starts_with("std::rt::lang_start"));
        if !rust_main && !begins_like_any(name(last), START) {
            return kept;
        }
        kept = rest;
    }
    stack
}

fn begins_like_any(name: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| begins(name, prefix))
}

/// `clone3` must not match `clone3_table`.
fn begins(name: &str, prefix: &str) -> bool {
    let Some(rest) = name.strip_prefix(prefix) else { return false };
    let word = |byte: u8| byte.is_ascii_alphanumeric();
    !(prefix.bytes().last().is_some_and(word) && rest.bytes().next().is_some_and(|byte| word(byte) || byte == b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: &[&str]) {
        let frames: Vec<Frame> = names
            .iter()
            .map(|name| Frame { function: (!name.is_empty()).then(|| (*name).into()), ..Frame::default() })
            .collect();
        let stack: Vec<FrameId> = (0..).map(FrameId).take(names.len()).collect();
        let kept: Vec<&str> = trim_ends(&stack, &frames).iter().map(|id| names[id.0 as usize]).collect();
        assert_eq!(kept, expected);
    }

    #[test]
    fn both_ends_are_trimmed_and_the_middle_is_not() {
        check(
            &[
                "alloc::alloc::alloc",
                "<alloc::raw_vec::RawVec<T,A>>::with_capacity_in",
                "alloc::vec::Vec<T>::with_capacity",
                "operator new(unsigned long)",
                "app::run",
                "std::sys::backtrace::__rust_begin_short_backtrace",
                "std::rt::lang_start::{{closure}}",
                "std::rt::lang_start_internal",
                "main",
                "__libc_start_call_main",
                "__libc_start_main_impl",
                "_start",
            ],
            &["alloc::vec::Vec<T>::with_capacity", "operator new(unsigned long)", "app::run"],
        );
        check(
            &["<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem", "alloc::vec::from_elem", "app::run"],
            &["app::run"],
        );
        check(
            &["operator new(unsigned long)", "std::allocator<int>::allocate(unsigned long)", "Shop::add(int)"],
            &["Shop::add(int)"],
        );
    }

    #[test]
    fn similar_names_and_unknown_ones_stay() {
        check(&["", "main", "_start"], &["", "main"]);
        check(
            &["operator newest", "clone3_table", "start_thread_pool"],
            &["operator newest", "clone3_table", "start_thread_pool"],
        );
    }

    #[test]
    fn frames_of_an_interpreter_are_removed_except_those_that_allocate() {
        use FrameKind::{Interpreted, Native, Runtime};
        let of = |kind| Frame { kind, ..Frame::default() };
        let kinds = [
            Native,
            Runtime,
            Runtime,
            Interpreted,
            Interpreted,
            Runtime,
            Native,
            Runtime,
            Interpreted,
            Runtime,
            Native,
        ];
        let frames: Vec<Frame> = kinds.into_iter().map(of).collect();
        let stack: Vec<FrameId> = (0..).map(FrameId).take(frames.len()).collect();
        let kept = |what| trim(&stack, &frames, what).iter().map(|id| id.0).collect::<Vec<_>>();
        assert_eq!(kept(Trim { ends: false, interpreter: true }), [0, 1, 3, 4, 6, 8, 10]);
        assert_eq!(kept(Trim::NOTHING).len(), frames.len());
        // Without an interpreted function, the interpreter is all that there is.
        assert_eq!(trim(&stack[..3], &frames, Trim { ends: false, interpreter: true }).len(), 3);
        assert_eq!(trim(&stack[3..6], &frames, Trim { ends: false, interpreter: true }).len(), 2);
    }

    /// The machine's innermost functions stay, even the last one: methods are not executed by a native loop.
    #[test]
    fn frames_of_a_java_machine_are_removed_except_those_that_allocate() {
        use FrameKind::{Interpreted, Jitted, Native, Runtime};
        let of = |(kind, path): (_, &str)| Frame { kind, module: Some(path.into()), ..Frame::default() };
        let frames: Vec<Frame> = [
            (Runtime, "/libjvm.so"),
            (Runtime, "/libjvm.so"),
            (Runtime, "[java]"),
            (Jitted, "[java]"),
            (Interpreted, "[java]"),
            (Runtime, "[java]"),
            (Runtime, "/libjvm.so"),
            (Native, "/libjava.so"),
            (Interpreted, "[java]"),
            (Runtime, "/libjvm.so"),
            (Native, "/libc.so.6"),
        ]
        .map(of)
        .into();
        let stack: Vec<FrameId> = (0..).map(FrameId).take(frames.len()).collect();
        let kept = trim(&stack, &frames, Trim { ends: false, interpreter: true });
        assert_eq!(kept.iter().map(|id| id.0).collect::<Vec<_>>(), [0, 1, 3, 4, 7, 8, 10]);
    }

    /// Two functions are Ruby's loop.
    #[test]
    fn frames_of_ruby_are_removed_except_those_that_allocate() {
        use FrameKind::{Interpreted, Native, Runtime};
        let of = |(kind, path): (_, &str)| Frame { kind, module: Some(path.into()), ..Frame::default() };
        let libruby = (Runtime, "/libruby.so");
        let ruby = (Interpreted, "[ruby]");
        let frames: Vec<Frame> =
            [libruby, libruby, libruby, ruby, ruby, libruby, (Native, "/ext.so"), ruby, libruby].map(of).into();
        let stack: Vec<FrameId> = (0..).map(FrameId).take(frames.len()).collect();
        let kept = |stack| {
            let kept = trim(stack, &frames, Trim { ends: false, interpreter: true });
            kept.iter().map(|id| id.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(&stack), [0, 3, 4, 6, 7]);
        // The loop itself allocates.
        assert_eq!(kept(&stack[2..4]), [3]);
        assert_eq!(kept(&stack[6..8]), [6, 7]);
    }

    #[test]
    fn a_stack_of_runtime_frames_is_kept() {
        check(&["operator new(unsigned long)", "_start"], &["operator new(unsigned long)", "_start"]);
        check(&[], &[]);
    }
}
