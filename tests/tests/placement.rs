//! The placement of probes changes their cost and nothing else: every block of every allocator is counted to the byte.

use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Hook, Report};
use heapbpf_tests::target::{Target, build};

/// Profiles the target with this placement. Checks every block; returns the hooks of the heap.
fn profile(command: &mut Command, heap: &str, placement: &str) -> Vec<Hook> {
    let mut target = Target::spawn(command);
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("--interval 1 --placement {placement} -o out.json"));
    let session = heapbpf.start();
    let ledger = target.work("go");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let mut report: Report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    process.assert_matches(&ledger);
    assert_eq!(process.totals.exact(), ledger.sum(), "{heap}, {placement}");
    assert_eq!(process.heap_names(), [heap]);
    report.targets.remove(0).heaps.remove(0).hooks
}

/// Checks a target with both placements: the profiles are equal, and `malloc` and `free` are emulated with one of them.
fn check(command: impl Fn() -> Command, heap: &str) {
    let at_entry = profile(&mut command(), heap, "entry");
    let placed = profile(&mut command(), heap, "auto");
    assert_eq!(at_entry.len(), placed.len());
    for (entry, hook) in at_entry.iter().zip(&placed) {
        assert_eq!(entry.function, hook.function);
        // A probe is moved only to an instruction that is emulated.
        let moved = hook.offset - entry.offset;
        assert!(moved < 128, "{heap}: {hook:?}");
        assert!(moved == 0 || (hook.emulated == Some(true) && entry.emulated == Some(false)), "{heap}: {hook:?}");
        let is_hot = ["malloc", "free"].contains(&hook.function.as_str());
        assert!(!is_hot || hook.emulated == Some(true), "{heap}: {hook:?}");
        assert!(hook.instruction.is_some() && entry.instruction.is_some(), "{heap}: {hook:?}");
    }
}

/// The library of a Debian package.
fn library(name: &str, package: &str) -> PathBuf {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let mut paths = folders.iter().map(|folder| Path::new(folder).join(name));
    paths.find(|path| path.exists()).unwrap_or_else(|| panic!("`{name}` is needed here: apt-get install {package}"))
}

/// Checks the target with a preloaded allocator.
fn check_preloaded(name: &str, package: &str, heap: &str) {
    let library = library(name, package);
    let program = build("placed.c");
    let command = || {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", &library);
        command
    };
    check(command, heap);
}

#[test]
fn glibc() {
    check(|| Command::new(build("placed.c")), "libc");
}

#[test]
fn jemalloc() {
    check_preloaded("libjemalloc.so.2", "libjemalloc2", "jemalloc");
}

#[test]
fn tcmalloc() {
    check_preloaded("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4", "tcmalloc");
}

#[test]
fn mimalloc() {
    check_preloaded("libmimalloc.so.2.0", "libmimalloc2.0", "mimalloc");
}

#[test]
fn musl() {
    let program = Recipe::of("placed.c").compiler("musl-gcc").build();
    check(|| Command::new(&program), "musl");
}
