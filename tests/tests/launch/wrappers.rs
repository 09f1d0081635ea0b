//! `heapbpf -- WRAPPER COMMAND`, where the wrapper has no allocator: the program that it executes or starts is
//! profiled.

use std::ffi::OsString;

use heapbpf_tests::heapbpf::text;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::build;

use super::launched::{Launched, wait_until};

/// Runs the target from a wrapper script, and finds it in the report.
#[track_caller]
fn check(how: &str) -> Process {
    let wrapper = Recipe::of("bare_wrapper.c").flags("-nostdlib -static -ffreestanding -fno-stack-protector").build();
    let words: [OsString; 3] = [wrapper.into(), how.into(), build("launched.c").into()];
    let mut launched = Launched::start("-v", &words, &[]);
    // On a busy machine, the program may be ready before it is recorded.
    wait_until("the target's probes", || text(&launched.file("stderr")).contains("(launched) is being recorded"));
    launched.target.work("keep 77 5");
    launched.target.exit(23);
    let mut report = launched.report();
    let found = report.targets.iter().position(|process| process.command.ends_with("/launched"));
    let process = report
        .targets
        .remove(found.unwrap_or_else(|| panic!("{:?}\n{}", report.targets, text(&launched.file("stderr")))));
    let functions = process.exact_by_leaf();
    // A child is seized when heapbpf receives its exec event, which may be after its first calls; this is reported.
    let first = process.beginning.from_first_call;
    assert!(first || how == "fork", "{:?}", process.beginning);
    for (name, counts, early) in [
        ("constructs", Counts::kept(3, 3 * 501), true),
        ("begins", Counts::kept(7, 7 * 1001), true),
        ("keeps", Counts::kept(5, 385), false),
        ("ends", Counts::kept(2, 666), false),
    ] {
        let got = functions.get(name).copied().unwrap_or_default();
        if first || !early {
            assert_eq!(got, counts, "{name}: {functions:#?}");
        }
        // The recorded part of the first calls is a number of whole blocks, and not too many.
        let part = Counts::kept(got.alloc_count, got.alloc_count * (counts.alloc_bytes / counts.alloc_count));
        assert!(got == part && got.alloc_count <= counts.alloc_count, "{name}: {functions:#?}");
    }
    assert_eq!((process.exited, process.exit_code), (true, Some(23)));
    process
}

#[test]
fn a_wrapper_without_allocator_that_executes_the_program() {
    assert_eq!(check("exec").beginning.origin, "exec");
}

#[test]
fn a_wrapper_without_allocator_that_starts_the_program() {
    check("fork");
}
