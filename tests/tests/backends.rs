//! All attach backends give the same numbers, survive exceptions, and leave other processes alone. A backend that the
//! kernel lacks fails here: the test kernels have all three. The same of what is used where the kernel lacks other features, which
//! `HEAPBPF_WITHOUT` has heapbpf treat as missing.

use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel;
use heapbpf_tests::report::{Counts, Ledger, Report};
use heapbpf_tests::target::Target;

const BACKENDS: [&str; 3] = ["session", "multi", "perf"];

/// Profiles one command of a target with this backend; the target must still run afterwards.
fn profile(source: &str, backend: &str) -> (Target, Report, Ledger) {
    profile_without(source, backend, "")
}

/// As [`profile`], on a kernel without these features.
fn profile_without(source: &str, backend: &str, features: &str) -> (Target, Report, Ledger) {
    let mut target = Target::start(source);
    let mut command = Command::new(binary());
    command.env("HEAPBPF_WITHOUT", features).args(["--pid", &target.pid().to_string(), "--no-inventory"]);
    // Without the kernel's type information, or reads of its memory, forks cannot be followed.
    command.args([
        "--on-overload",
        "drop",
        "--interval",
        "1",
        "--backend",
        backend,
        "--no-follow-fork",
        "-o",
        "out.json",
    ]);
    let mut heapbpf = Heapbpf::with_command(command);
    let session = heapbpf.start();
    let ledger = target.work("go");
    target.assert_running();
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    (target, report, ledger)
}

#[test]
fn every_backend_counts_to_the_byte() {
    for backend in BACKENDS {
        let (target, report, ledger) = profile("exact.c", backend);
        let process = report.process(target.pid());
        process.assert_matches(&ledger);
        assert_eq!(process.totals.exact(), ledger.sum(), "{backend}");
        let hooks = &process.heaps[0].hooks;
        assert!(hooks.iter().all(|hook| hook.backend == backend && hook.attached), "{backend}: {hooks:?}");
        kernel::assert_no_probes(target.pid());
    }
}

#[test]
fn every_backend_counts_eight_threads_to_the_byte() {
    for backend in BACKENDS {
        let (target, report, ledger) = profile("threads.c", backend);
        report.process(target.pid()).assert_matches(&ledger);
    }
}

/// Missing features, and the kind of links that is used then. Without the kernel's type information, or reads of its memory, forks are
/// not followed. Programs without atomic instructions must not preempt each other, which
/// kernels that lack them guarantee, and the test kernels by their preemption mode.
const FALLBACKS: [(&str, &str); 8] = [
    ("btf", "session"),
    ("reads", "session"),
    ("session", "multi"),
    ("session,multi", "perf"),
    ("session,multi,cookies", "perf"),
    ("session,multi,allocation", "perf"),
    ("session,multi,atomics", "perf"),
    ("session,multi,cookies,atomics,allocation", "perf"),
];

#[test]
fn every_fallback_counts_to_the_byte() {
    for (features, backend) in FALLBACKS {
        for source in ["exact.c", "threads.c"] {
            let (target, report, ledger) = profile_without(source, "auto", features);
            let process = report.process(target.pid());
            process.assert_matches(&ledger);
            let hooks = &process.heaps[0].hooks;
            assert!(hooks.iter().all(|hook| hook.backend == backend && hook.attached), "{features}: {hooks:?}");
            kernel::assert_no_probes(target.pid());
        }
    }
}

#[test]
fn an_exception_through_a_sampled_call_is_survived_with_every_backend() {
    for backend in BACKENDS {
        let (target, report, ledger) = profile("throwing.cpp", backend);
        let thrown =
            report.process(target.pid()).exact_under(|function| function.starts_with("__cxa_allocate_exception"));
        assert_ne!(thrown, Counts::default(), "{backend}: exceptions were allocated while recording");
        assert!(!ledger.sites.is_empty());
    }
}

#[test]
fn other_processes_have_no_breakpoints() {
    for backend in BACKENDS {
        let target = Target::start("exact.c");
        let bystander = Target::start("exact.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("--backend {backend} -o out.json"));
        let session = heapbpf.start();
        assert!(!kernel::changed_code(target.pid()).is_empty(), "{backend}: the target has breakpoints");
        kernel::assert_no_probes(bystander.pid());
        let _ = session.interrupt().expect_code(0);
        kernel::assert_no_probes(target.pid());
    }
}
