//! Built-in hook sets, on programs with such functions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Heap, Hook, Process, Report};
use heapbpf_tests::target::Target;

/// The system's Python, which exports these functions and is built with all optimizations.
const PYTHON: &str = "/usr/bin/python3";

fn python(environment: &[(&str, &str)]) -> Target {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets/integers.py");
    Target::spawn(Command::new(PYTHON).arg("-s").arg(script).envs(environment.iter().copied()))
}

/// The built-in spec as a file, for builds with inlined functions too: it hooks what is left of them.
static UNCHECKED_SPEC: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("unchecked-cpython.toml");
    let built_in = include_str!("../../../profiler/specs/cpython.toml");
    let lines = built_in.lines().filter(|line| !line.starts_with("if-inlined"));
    // Complete at any time: other tests read it.
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).expect("writable");
    std::fs::write(file.path(), lines.collect::<Vec<_>>().join("\n")).expect("writable");
    file.persist(&path).expect("writable");
    path
});

/// Debian's build has more than a hundred copies of `PyMem_RawMalloc` and `PyObject_Malloc`.
#[test]
fn inlined_functions_are_not_hooked() {
    let mut target = python(&[]);
    let mut heapbpf = Heapbpf::of(target.pid(), "--hooks cpython -o out.json");
    let session = heapbpf.start();
    let _ = target.work("keep");
    let outcome = session.interrupt().expect_code(0);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(heapbpf.file("out.json")).expect("written")).expect("JSON");
    let inlined = &report["health"]["inlined_heaps"][0];
    assert_eq!(inlined["heap"], "cpython");
    assert!(inlined["function"].as_str().is_some_and(|name| name.starts_with("Py")), "{inlined}");
    assert!(inlined["copies"].as_u64().is_some_and(|copies| copies > 50), "{inlined}");
    let heaps = report["targets"][0]["heaps"].as_array().expect("a list");
    assert!(heaps.iter().all(|heap| heap["name"] != "cpython"), "{heaps:#?}");
    for text in [&outcome.stdout, &outcome.stderr] {
        assert!(text.contains("heap cpython is not recorded in `/usr/bin/python3"), "{text}");
        assert!(text.contains("PYTHONMALLOC=malloc"), "{text}");
    }
    target.exit(0);
}

#[track_caller]
fn profile(target: &mut Target, arguments: &str, lines: &[&str]) -> (Report, String) {
    let mut heapbpf =
        Heapbpf::of(target.pid(), &format!("--hooks {} -o out.json {arguments}", UNCHECKED_SPEC.display()));
    let session = heapbpf.start();
    lines.iter().for_each(|line| drop(target.work(line)));
    let outcome = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    (report, outcome.stdout)
}

/// The heap of the C library, whose malloc is recorded.
#[track_caller]
fn libc(process: &Process) -> &Heap {
    let libc = process.heap("libc");
    let is_malloc = |hook: &Hook| hook.function == "malloc" && hook.attached;
    assert!(libc.hooks.iter().any(is_malloc), "{:#?}", libc.hooks);
    libc
}

#[test]
fn pythons_small_objects_are_counted_without_malloc() {
    let mut target = python(&[]);
    let (report, summary) = profile(&mut target, "", &["keep"]);
    let process = report.process(target.pid());
    let cpython = process.heap("cpython").totals.estimates();
    assert!((0.88 * 250e3..1.12 * 250e3).contains(&cpython.live_count), "{cpython:?}");
    // At least 28 bytes each, 32 in some versions. Five percent exceed 2σ of 2000 samples, ten percent 4σ.
    assert!((0.9 * 7e6..1.1 * 8e6 + 3e6).contains(&cpython.live_bytes), "{cpython:?}");
    // The list's pointer array, with up to an eighth of spare capacity, is allocated by inlined calls in optimized
    // builds, and then counts for libc. It is counted once.
    let libc = libc(process).totals.estimates().live_bytes;
    let both = cpython.live_bytes + libc;
    assert!((0.9 * 9e6..1.1 * (8e6 + 2.25e6)).contains(&both), "{both}");
    assert!(libc < 3e6, "arenas are mapped, not taken from malloc: {libc}");
    assert!(process.heap("cpython").hooks.iter().any(|hook| hook.function == "PyObject_Malloc" && hook.attached));
    assert!(summary.contains("(cpython, libc)") || summary.contains("(libc, cpython)"), "{summary}");

    target.exit(0);
}

/// Optimized builds free objects without a call, so this is how all of their memory is recorded.
#[test]
fn without_pythons_own_allocator_libc_has_everything() {
    let mut target = python(&[("PYTHONMALLOC", "malloc")]);
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.json");
    let session = heapbpf.start();
    ["keep", "drop", "keep", "drop"].iter().for_each(|line| drop(target.work(line)));
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let totals = report.process(target.pid()).totals.estimates();
    assert!(totals.alloc_bytes > 2.0 * 0.95 * 9e6 && totals.live_bytes.abs() < 0.02 * totals.alloc_bytes, "{totals:?}");
    target.exit(0);
}

#[test]
fn what_python_allocates_with_malloc_counts_once() {
    let mut target = python(&[]);
    let (report, _) = profile(&mut target, "--interval 1", &["large"]);
    let process = report.process(target.pid());
    let (cpython, libc) = (process.heap("cpython").totals.exact(), libc(process).totals.exact());
    let expected = 50 << 20;
    assert!((expected..expected + (1 << 20)).contains(&cpython.live_bytes), "{cpython:?}");
    assert!(libc.live_bytes < 1 << 20, "{libc:?}");

    let (report, _) = profile(&mut target, "--interval 1", &["free", "large", "free"]);
    let totals = report.process(target.pid()).heap("cpython").totals.exact();
    assert!(totals.alloc_bytes >= 50 << 20 && totals.live_bytes < 1 << 20, "{totals:?}");
    target.exit(0);
}

#[test]
fn device_memory_is_counted_to_the_byte() {
    let runtime = Recipe::of("cudart.c").flags("-shared -fPIC").build();
    let program = Recipe::of("kernels.c").libraries(&runtime.display().to_string()).build();
    let mut target = Target::spawn(&mut Command::new(program));
    let mut heapbpf = Heapbpf::of(target.pid(), "--hooks cuda --interval 1 -o out.json");
    let session = heapbpf.start();
    let ledger = target.work("go");
    let outcome = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    process.assert_matches(&ledger);
    assert_eq!(process.heap("cuda").totals.exact(), ledger.sum_of(|site| site == "uploads"));
    assert_eq!(process.heap("libc").totals.exact(), ledger.sum_of(|site| site == "mallocs"));
    assert_eq!(ledger.site("uploads").counts.live_count, 125);
    // Functions missing in this version are no error; an entirely missing heap is reported.
    let summary = outcome.stdout;
    assert!(summary.contains("cuda-host: none of its functions is in any module of process"), "{summary}");
    assert!(!summary.contains("no function"), "{summary}");
}
