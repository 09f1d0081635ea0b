//! Programs recorded from their first call: every leaked block is listed with its size and stack, and nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::build;
use heapbpf_tests::unreachable::{Known, Truth};

use super::LEAKS;
use super::runs::{Launch, bytes_by_leaf, truth};

/// Checks on request and at the exit: both reports are equal, block by block.
#[track_caller]
pub(super) fn check(program: &Path, arguments: &[&str]) {
    check_launch(Launch::start("-o check.folded", program, arguments));
}

#[track_caller]
fn check_launch(mut launch: Launch) {
    let truth = truth(&mut launch.target);
    launch.check_now();
    assert_eq!(launch.exit(0), Some(LEAKS), "{}", launch.stderr());
    assert_same(&launch, "check.0001", &truth, false);
    assert_same(&launch, "check", &truth, true);
}

#[track_caller]
fn assert_same(launch: &Launch, name: &str, truth: &Truth, at_exit: bool) {
    let check = launch.check(&format!("{name}.json"));
    assert_eq!(check.at_exit, at_exit);
    let leaked = |path: PathBuf| bytes_by_leaf(&path);
    let reported = leaked(launch.file(&format!("{name}.folded")));
    assert_eq!(reported, truth.leaked_bytes(), "{name}: {}", differences(&reported, &truth.leaked_bytes()));
    truth.assert_is(&check, Known::Watched);
    assert!(check.heaps.iter().all(|heap| heap.precision == "watched"), "{:?}", check.heaps);
    assert!(check.caveats.is_empty(), "{:?}", check.caveats);
    assert!(check.health.lost.values().all(|lost| *lost == 0), "{:?}", check.health);
}

fn differences(reported: &BTreeMap<String, u64>, truth: &BTreeMap<String, u64>) -> String {
    let missing: Vec<_> = truth.keys().filter(|name| !reported.contains_key(*name)).collect();
    let wrong: Vec<_> = reported.keys().filter(|name| !truth.contains_key(*name)).collect();
    format!("missed {missing:?}; reported although reachable {wrong:?}")
}

#[test]
fn memory_and_blocks_of_a_glibc_program() {
    check(&build("leaks/cases.c"), &[]);
}

#[test]
fn memory_and_blocks_of_a_static_glibc_program() {
    check(&Recipe::of("leaks/cases.c").flags("-static").build(), &[]);
}

#[test]
fn memory_and_blocks_of_a_musl_program() {
    check(&Recipe::of("leaks/cases.c").compiler("musl-gcc").build(), &[]);
}

#[test]
fn memory_and_blocks_of_a_static_musl_program() {
    check(&Recipe::of("leaks/cases.c").compiler("musl-gcc").flags("-static").build(), &[]);
}

#[test]
fn threads_of_a_glibc_program() {
    check(&build("leaks/threads.c"), &[]);
}

#[test]
fn threads_of_a_musl_program() {
    check(&Recipe::of("leaks/threads.c").compiler("musl-gcc").build(), &[]);
}

/// A loaded library, and an unloaded one, whose frames are symbolized nevertheless.
pub(super) fn libraries() -> [PathBuf; 2] {
    let stays = Recipe::of("leaks/loaded.c").flags("-shared -fPIC -DLOADED").build();
    let goes = Recipe::of("leaks/loaded.c").flags("-shared -fPIC").build();
    [stays, goes]
}

#[test]
fn libraries_that_are_loaded_and_unloaded() {
    let libraries = libraries();
    let paths: Vec<&str> = libraries.iter().map(|path| path.to_str().expect("text")).collect();
    let mut launch = Launch::start("-o check.folded", &build("leaks/library.c"), &paths);
    // A library without unwind tables yet has no stacks: heapbpf is notified of it by an event.
    libraries.iter().for_each(|library| launch.wait_until_opened(library));
    launch.target.run_command("make");
    check_launch(launch);
}
