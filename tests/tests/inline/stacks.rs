//! Stacks of calls that pass stubs: those of the trap engine.

use std::collections::BTreeMap;
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Frame, Process};
use heapbpf_tests::target::Target;

use super::{assert_passed, assert_unharmed};

/// Minimum share of bytes with identical stacks.
const IDENTICAL_MIN: f64 = 0.999;

type Stacks = BTreeMap<Vec<String>, Counts>;

/// Totals by stack: of the program's functions by name, and of libraries' code by its place in a page, which is the same in
/// every process. Names in libraries vary with what the symbolizer could read in its time: debug information, or symbols.
fn by_stack(process: &Process) -> Stacks {
    let is_own = |frame: &Frame| frame.module.as_deref().is_some_and(|module| module.ends_with(&process.command));
    let name = |frame: &Frame| -> Option<String> {
        let place = u64::from_str_radix(frame.address.trim_start_matches("0x"), 16).expect("an address") % 4096;
        match &frame.function {
            Some(function) if is_own(frame) => Some(function.clone()),
            _ if frame.inlined => None,
            _ => Some(format!("{}+{place:#x}", frame.module.as_deref().unwrap_or("?"))),
        }
    };
    let mut stacks = Stacks::new();
    for callsite in &process.callsites {
        stacks.entry(callsite.stack.iter().filter_map(name).collect()).or_default().add(callsite.totals.exact());
    }
    // Names of C++ include parameters.
    let is_work = |frame: &String| frame == "work" || frame.starts_with("work(");
    assert!(stacks.keys().flatten().any(is_work), "functions have names: {stacks:?}");
    stacks
}

/// Records a fresh process with either engine.
#[track_caller]
fn with_both(recipe: &Recipe, arguments: &str) -> [Stacks; 2] {
    ["inline", "trap"].map(|engine| {
        let mut target = Target::spawn(&mut Command::new(recipe.build()));
        // A child is a target only if it lives until it is found.
        let arguments = format!("--engine {engine} --interval 1 --no-follow-fork {arguments} -o out.json");
        let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
        let session = heapbpf.start();
        target.work("go");
        // Stacks of calls from libraries without frame pointers are cut.
        let _ = session.interrupt().expect_code(if arguments.contains("--unwind fp") { 3 } else { 0 });
        assert_unharmed(&mut target);
        let report = heapbpf.report("out.json");
        report.assert_complete();
        if engine == "inline" {
            assert_passed(&report, 1);
        }
        by_stack(report.process(target.pid()))
    })
}

/// Fails unless nearly all bytes, and all stacks of the program itself, are identical.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn assert_identical(recipe: &Recipe, arguments: &str) {
    let [inline, trap] = with_both(recipe, arguments);
    let bytes = |stacks: &Stacks| stacks.values().map(|counts| counts.alloc_bytes).sum::<u64>();
    let same = trap.iter().filter(|(stack, counts)| inline.get(*stack) == Some(counts));
    let same: u64 = same.map(|(_, counts)| counts.alloc_bytes).sum();
    let share = same as f64 / bytes(&trap).max(bytes(&inline)) as f64;
    let differing = |stacks: &Stacks, others: &Stacks| -> Vec<String> {
        let differing = stacks.iter().filter(|(stack, counts)| others.get(*stack) != Some(counts));
        differing.map(|(stack, counts)| format!("{counts:?} {stack:?}")).take(5).collect()
    };
    assert!(
        share >= IDENTICAL_MIN,
        "{recipe} {arguments}: {:.2} % of bytes have identical stacks\ninline: {:#?}\ntrap: {:#?}",
        share * 100.0,
        differing(&inline, &trap),
        differing(&trap, &inline)
    );
    assert!(inline.len() > 20, "{recipe}: too few stacks for a comparison: {}", inline.len());
    let unnamed = inline.keys().filter(|stack| stack.iter().any(|name| name.contains("heapbpf-stubs")));
    assert_eq!(unnamed.count(), 0, "stubs are no frames");
}

#[test]
fn of_all_functions_of_glibc() {
    let [inline, trap] = with_both(&Recipe::of("exact.c"), "");
    assert_eq!(inline, trap);
}

#[test]
fn of_code_with_frame_pointers() {
    assert_identical(&Recipe::of("callers.cpp"), "");
}

#[test]
fn by_frame_pointers_alone() {
    assert_identical(&Recipe::of("callers.cpp"), "--unwind fp");
}

#[test]
fn of_code_without_frame_pointers() {
    assert_identical(&Recipe::of("callers.cpp").flags("-fomit-frame-pointer"), "");
}

/// Calls without a procedure linkage table: by the slot itself, often as a jump.
#[test]
fn of_code_that_calls_through_slots() {
    let recipe = Recipe::of("callers.cpp").flags("-fomit-frame-pointer -fno-plt -foptimize-sibling-calls");
    assert_identical(&recipe, "");
}

#[test]
fn of_eager_and_lazy_slots() {
    for flags in ["-Wl,-z,now,-z,relro", "-Wl,-z,lazy,-z,norelro"] {
        assert_identical(&Recipe::of("callers.cpp").flags(flags), "");
    }
}
