//! The cache of unwind tables: the contents of one process's files must not change another process's stacks.

use std::fs;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel;
use heapbpf_tests::report::Report;
use heapbpf_tests::target::{Target, build};
use object::{Object, ObjectSection};

/// Profiles all allocations of one command, with the cache in `cache`, and expects this exit code.
#[track_caller]
fn profile(target: &mut Target, cache: &Path, code: i32) -> Report {
    kernel::require_root();
    let mut command = Command::new(binary());
    command.args([
        "--no-inventory",
        "--pid",
        &target.pid().to_string(),
        "--interval",
        "1",
        "--on-overload",
        "drop",
        "-o",
        "out.json",
    ]);
    command.env("XDG_CACHE_HOME", cache);
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    target.work("go");
    let _ = session.interrupt().expect_code(code);
    heapbpf.report("out.json")
}

/// Returns the libc that the target maps.
fn libc_of(target: &Target) -> std::path::PathBuf {
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).expect("it runs");
    let path =
        maps.lines().find_map(|line| line.split_ascii_whitespace().last().filter(|path| path.ends_with("/libc.so.6")));
    path.expect("it is linked with libc").into()
}

/// Copies a library with its build id and length, but without unwind information: a terminator replaces the first
/// function's.
fn without_functions(library: &Path, copy: &Path) {
    let mut bytes = fs::read(library).expect("it is mapped");
    let (at, length) = {
        let file = object::File::parse(&*bytes).expect("it is a library");
        file.section_by_name(".eh_frame").and_then(|section| section.file_range()).expect("libc has `.eh_frame`")
    };
    let range = usize::try_from(at).expect("a file offset")..usize::try_from(at + length).expect("a file offset");
    bytes[range].fill(0);
    fs::write(copy, bytes).expect("the directory is ours");
}

fn share_complete(report: &Report) -> f64 {
    let ends = &report.health.unwind;
    let sum: u64 = ends.values().sum();
    ends.get("complete").copied().unwrap_or(0) as f64 / sum as f64
}

#[test]
fn a_library_with_the_build_id_of_libc_changes_no_other_processs_stacks() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let (cache, libraries) = (directory.path().join("cache"), directory.path().join("lib"));
    fs::create_dir_all(&libraries).expect("the directory is ours");
    let mut innocent = Target::start("threads.c");
    without_functions(&libc_of(&innocent), &libraries.join("libc.so.6"));
    let mut hostile = Target::spawn(Command::new(build("threads.c")).env("LD_LIBRARY_PATH", &libraries));
    assert!(libc_of(&hostile).starts_with(&libraries), "it does not use the copy");

    let of_hostile = profile(&mut hostile, &cache, 3);
    assert!(share_complete(&of_hostile) < 0.9, "the copy unwinds: {:?}", of_hostile.health.unwind);
    let of_innocent = profile(&mut innocent, &cache, 0);
    assert!(share_complete(&of_innocent) >= 1.0, "{:?}", of_innocent.health.unwind);
    // A table read from the cache is equivalent to one that was built.
    assert!(share_complete(&profile(&mut innocent, &cache, 0)) >= 1.0);
}
