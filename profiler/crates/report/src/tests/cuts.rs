//! Where stacks are cut, and what helps.

use std::sync::Arc;

use heapbpf_base::language::Language;
use heapbpf_ledger::model::{Frame, FrameId, FrameKind, Health, MemoryAccount, MemoryFacts, Profile};
use profiler_common::interpreter::NATIVE_MISSING;
use profiler_common::stack::StackEnd;
use serde_json::{Value, json};

use super::render;
use crate::testing::{self as profiles, Frames, callsite, heap, profile, taken, target};
use crate::{Format, View, summary};

/// A process of 100 sampled allocations, of which `count` have a stack that ends in this frame.
fn cut(comm: &str, runtimes: &[Language], end: StackEnd, outermost: Frame, count: u64) -> Profile {
    let mut frames = Frames::default();
    let main = frames.add("main", "/usr/bin/app");
    frames.frames.push(outermost);
    let outermost = heapbpf_ledger::model::FrameId(1);
    let callsites = vec![
        callsite(&[main], Some(StackEnd::Complete), 0, taken(1, 100 - count, 10, 0)),
        callsite(&[outermost], Some(end), 0, taken(1, count, 10, 0)),
    ];
    let mut process = target(5, comm, "/usr/bin/app", vec![heap("libc", &[("malloc", None)])], callsites);
    let mut account = MemoryAccount::default();
    account.extend(MemoryFacts { runtimes: runtimes.to_vec(), ..MemoryFacts::default() });
    process.memory = Arc::new(account);
    let unwind = vec![("complete".to_owned(), 100 - count), (end.counter().name().to_owned(), count)];
    profile(1, vec![process], frames, Health { events: 100, unwind, ..Health::default() })
}

fn frame(function: Option<&str>, module: Option<&str>) -> Frame {
    Frame { function: function.map(Into::into), module: module.map(Into::into), address: 0x1000, ..Frame::default() }
}

#[track_caller]
fn check(profile: &Profile, cause: &str, advice: Option<&str>) {
    let report: Value = serde_json::from_str(&render(Format::Json, profile, View::LiveBytes)).expect("it is JSON");
    let [cut] = report["health"]["cut_stacks"].as_array().expect("a list").as_slice() else { panic!("{report}") };
    assert_eq!((&cut["count"], &cut["share"], &cut["advice"]), (&json!(75), &json!(0.75), &json!(advice)), "{cut}");
    let text = summary::summary(profile, View::LiveBytes, 0, None, false);
    let expected =
        [format!("health: incomplete: 75.0% of stacks are cut ({cause})"), format!("    75.0% end in {cause}")];
    for line in expected.into_iter().chain(advice.map(|advice| format!("      {advice}"))) {
        assert!(text.lines().any(|actual| actual == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn cut_stacks_have_module_reason_and_advice() {
    let generated = || frame(None, None);
    let java = Some("Java: start it with `-XX:+PreserveFramePointer`");
    let of_java = |outermost| cut("java", &[Language::Java], StackEnd::BrokenChain, outermost, 75);
    check(&of_java(generated()), "generated code: broken frame pointers", java);
    check(&of_java(frame(Some("f"), Some("/jvm/server/libjvm.so"))), "libjvm.so: broken frame pointers", java);
    check(
        &cut("qemu-system-x86", &[], StackEnd::BrokenChain, generated(), 75),
        "generated code: broken frame pointers",
        Some("QEMU's emulation (TCG) generates code without frame pointers: no option helps"),
    );
    check(
        &cut("app", &[], StackEnd::NoRow, frame(Some("runtime.asmcgocall.abi0"), Some("/usr/bin/app")), 75),
        "app: no unwind information",
        Some(
            "Go calls C on another stack, and this program's table of functions is of no version from 1.16 to 1.27: no option helps",
        ),
    );
    check(
        &cut("app", &[], StackEnd::NoRow, frame(None, Some("/lib/libold.so")), 75),
        "libold.so: no unwind information",
        Some("compile it with `-fasynchronous-unwind-tables`"),
    );
    let beam = cut("beam.smp", &[], StackEnd::BrokenChain, generated(), 75);
    let erlang = Some("Erlang: start it with `+JPperf true`, as in `ERL_FLAGS='+JPperf true'` (OTP 25 or later)");
    check(&beam, "generated code: broken frame pointers", erlang);
    check(&cut("app", &[], StackEnd::NoRow, frame(None, Some("[vdso]")), 75), "[vdso]: no unwind information", None);
    check(&cut("app", &[], StackEnd::Truncated, generated(), 75), "generated code: more than 1024 frames", None);
}

/// Python's functions follow the cut.
#[test]
fn stacks_with_missing_native_functions_are_cut_at_the_last_native_one_before_them() {
    for (last, cause) in [
        (Frame { kind: FrameKind::Jitted, ..frame(None, Some("[jit]")) }, "generated code: native functions missing"),
        (frame(Some("_PyEval_EvalFrameDefault"), Some("/usr/bin/python3.9")), "python3.9: native functions missing"),
    ] {
        let mut profile = cut("python3", &[], StackEnd::NativeMissing, last, 75);
        let first = profile.frames.len();
        for name in ["f", NATIVE_MISSING, "f", "<module>"] {
            profile.frames.push(Frame { kind: FrameKind::Interpreted, ..frame(Some(name), Some("[python]")) });
        }
        let followed = (first..profile.frames.len()).map(|number| FrameId(u32::try_from(number).expect("few")));
        profile.targets[0].callsites[1].stack.extend(followed);
        check(&profile, cause, None);
        // A frame stands for what is missing, not one outside of all.
        let folded = render(Format::Folded, &profile, View::AllocBytes);
        let expected = format!("<module>;f;{NATIVE_MISSING};f;");
        assert!(folded.contains(&expected) && !folded.contains("unwind stopped"), "{folded}");
    }
}

#[test]
fn advice_is_for_the_compiler_of_the_module() {
    let app = "/usr/bin/app";
    let check = |end, function, path: &str, reason: &str, advice: &str| {
        let module = path.rsplit('/').next().expect("a name");
        let profile = cut("app", &[], end, frame(Some(function), Some(path)), 75);
        check(&profile, &format!("{module}: {reason}"), Some(advice));
    };
    let (no_row, broken) =
        ((StackEnd::NoRow, "no unwind information"), (StackEnd::BrokenChain, "broken frame pointers"));
    let rust = "alloc::vec::Vec<T>::push";
    check(no_row.0, rust, app, no_row.1, "Rust: compile it with `RUSTFLAGS=-Cforce-unwind-tables=yes`");
    check(broken.0, rust, app, broken.1, "Rust: compile it with `RUSTFLAGS=-Cforce-frame-pointers=yes`");
    check(no_row.0, "main", app, no_row.1, "compile it with `-fasynchronous-unwind-tables`");
    for haskell in ["stg_newByteArrayzh", "base_GHCziBase_map_info"] {
        check(broken.0, haskell, app, broken.1, "GHC's code has its frames on another stack: no option helps");
    }
    check(broken.0, "get_info", app, broken.1, "compile it with `-fno-omit-frame-pointer`");
    let libvips = "/app/node_modules/@img/sharp-libvips-linux-x64/lib/libvips-cpp.so.8.17.3";
    let advice = "the npm package `@img/sharp-libvips-linux-x64` has it compiled so: compile that with \
        `-fasynchronous-unwind-tables`, or use a library of your own";
    check(no_row.0, "vips_tracked_malloc", libvips, no_row.1, advice);
}

/// Other functions of the module show its compiler.
#[test]
fn code_without_a_name_has_the_compiler_of_its_module() {
    let mut profile = cut("app", &[], StackEnd::NoRow, frame(None, Some("/usr/bin/app")), 75);
    profile.frames[0].file = Some("src/main.rs".into());
    check(&profile, "app: no unwind information", Some("Rust: compile it with `RUSTFLAGS=-Cforce-unwind-tables=yes`"));
}

#[test]
fn complete_stacks_are_not_listed() {
    let report: Value = serde_json::from_str(&render(Format::Json, &profiles::exact(), View::LiveBytes)).expect("JSON");
    assert_eq!(report["health"]["cut_stacks"], json!([]));
}
