//! Targets whose files and PIDs are not what they seem: other roots and mount namespaces, replaced files, libraries
//! loaded late, and reused PIDs.

use std::fs;
use std::path::Path;

use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::copy_program;

mod files;
mod loaded_late;
mod pids;

/// C library and dynamic linker that targets are run with.
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
const LINKER: &str = "/lib64/ld-linux-x86-64.so.2";

/// `count` live blocks of `size_bytes`.
fn kept(count: u64, size_bytes: u64) -> Counts {
    Counts::kept(count, count * size_bytes)
}

/// Fails unless these functions, called by `main`, have these counts and no other function allocated.
#[track_caller]
fn assert_sites(process: &Process, sites: &[(&str, Counts)]) {
    let reported: Vec<(String, Counts)> = process.exact_by_leaf().into_iter().collect();
    let expected: Vec<(String, Counts)> = sites.iter().map(|&(name, counts)| (name.to_owned(), counts)).collect();
    assert_eq!(reported, expected, "{:#?}", process.callsites);
    for callsite in &process.callsites {
        assert!(callsite.has(|function| function == "main"), "{:#?}", callsite.stack);
    }
}

/// Copies a file, following links.
#[track_caller]
fn copy(from: impl AsRef<Path>, to: &Path) {
    fs::create_dir_all(to.parent().expect("it lies in a folder")).expect("the folder is ours");
    copy_program(from, to);
}

/// Returns the distinct modules of a heap's hooks.
#[track_caller]
fn modules<'a>(process: &'a Process, heap: &str) -> Vec<&'a str> {
    let mut modules: Vec<&str> = process.heap(heap).hooks.iter().map(|hook| hook.module.as_str()).collect();
    modules.sort_unstable();
    modules.dedup();
    modules
}
