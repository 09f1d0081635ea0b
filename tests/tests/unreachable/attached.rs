//! Programs that were running before: their blocks are found in the heap, and those allocated while heapbpf records
//! have stacks.

use std::path::Path;

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build};
use heapbpf_tests::unreachable::Known;

use super::LEAKS;
use super::launched::libraries;
use super::runs::{run_check, truth};
use std::process::Command;

/// Without probes, both methods of heap snapshots give the same result.
#[track_caller]
fn check(program: &Path, arguments: &[&str], heap: &str) {
    let mut target = Target::spawn(Command::new(program).args(arguments));
    check_target(&mut target, heap);
    target.exit(0);
}

#[track_caller]
fn check_target(target: &mut Target, heap: &str) {
    let truth = truth(target);
    for snapshot in ["read", "fork"] {
        let check = run_check(target, &format!("--snapshot {snapshot}"), LEAKS);
        assert_eq!(check.method, snapshot);
        truth.assert_is(&check, Known::Walked);
        let heaps: Vec<_> = check.heaps.iter().map(|heap| (heap.name.as_str(), heap.precision.as_str())).collect();
        assert_eq!(heaps, [(heap, "walked")], "{:?}", check.heaps);
        assert!(check.caveats.is_empty(), "{:?}", check.caveats);
        assert!(!check.at_exit && check.watched_ns.is_none());
    }
}

#[test]
fn memory_and_blocks_of_a_glibc_program() {
    check(&build("leaks/cases.c"), &[], "libc");
}

#[test]
fn memory_and_blocks_of_a_static_glibc_program() {
    check(&Recipe::of("leaks/cases.c").flags("-static").build(), &[], "libc");
}

#[test]
fn memory_and_blocks_of_a_musl_program() {
    check(&Recipe::of("leaks/cases.c").compiler("musl-gcc").build(), &[], "musl");
}

#[test]
fn memory_and_blocks_of_a_static_musl_program() {
    check(&Recipe::of("leaks/cases.c").compiler("musl-gcc").flags("-static").build(), &[], "musl");
}

#[test]
fn threads_of_a_glibc_program() {
    check(&build("leaks/threads.c"), &[], "libc");
}

#[test]
fn threads_of_a_musl_program() {
    check(&Recipe::of("leaks/threads.c").compiler("musl-gcc").build(), &[], "musl");
}

#[test]
fn libraries_that_are_loaded_and_unloaded() {
    let libraries = libraries();
    let mut target = Target::spawn(Command::new(build("leaks/library.c")).args(libraries));
    target.run_command("make");
    check_target(&mut target, "libc");
    target.exit(0);
}
