//! Programs that are watched from their first call on: every leaked block is told, with its size and its stack, and nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::build;
use heapbpf_tests::unreachable::{Known, Truth};

use crate::LEAKS;
use crate::looks::{Launch, bytes_by_leaf, truth};

/// Looks when asked, and when it ends: the same both times, block by block.
#[track_caller]
pub(super) fn check(program: &Path, arguments: &[&str]) {
    check_launch(Launch::start("-o check.folded", program, arguments));
}

#[track_caller]
fn check_launch(mut launch: Launch) {
    let truth = truth(&mut launch.target);
    launch.look();
    assert_eq!(launch.exit(0), Some(LEAKS), "{}", launch.stderr());
    assert_same(&launch, "check.0001", &truth, false);
    assert_same(&launch, "check", &truth, true);
}

#[track_caller]
fn assert_same(launch: &Launch, name: &str, truth: &Truth, at_exit: bool) {
    let check = launch.check(&format!("{name}.json"));
    assert_eq!(check.at_exit, at_exit);
    let leaked = |path: PathBuf| bytes_by_leaf(&path);
    let told = leaked(launch.file(&format!("{name}.folded")));
    assert_eq!(told, truth.leaked_bytes(), "{name}: {}", differences(&told, &truth.leaked_bytes()));
    truth.assert_is(&check, Known::Watched);
    assert!(check.heaps.iter().all(|heap| heap.precision == "watched"), "{:?}", check.heaps);
    assert!(check.caveats.is_empty(), "{:?}", check.caveats);
    assert!(check.health.lost.values().all(|lost| *lost == 0), "{:?}", check.health);
}

fn differences(told: &BTreeMap<String, u64>, truth: &BTreeMap<String, u64>) -> String {
    let missing: Vec<_> = truth.keys().filter(|name| !told.contains_key(*name)).collect();
    let wrong: Vec<_> = told.keys().filter(|name| !truth.contains_key(*name)).collect();
    format!("missed {missing:?}; told though held {wrong:?}")
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

/// A library that stays, and one that is unloaded: its names are known all the same.
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
    // What is not known of a library yet has no stack: heapbpf learns of it by an event.
    libraries.iter().for_each(|library| launch.wait_until_opened(library));
    launch.target.order("make");
    check_launch(launch);
}
