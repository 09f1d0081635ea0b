//! Targets in C++ and Rust: demangled names, exact counts, and exceptions that propagate.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Ledger, Report};
use heapbpf_tests::target::Target;

fn profile(source: &str) -> (Report, u32, Ledger) {
    let mut target = Target::start(source);
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    let ledger = target.work("go");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    (report, target.pid(), ledger)
}

#[test]
fn operator_new_counts_once_and_its_throw_is_survived() {
    let (report, pid, ledger) = profile("throwing.cpp");
    for site in &ledger.sites {
        // The C++ runtime allocates the exceptions thrown here.
        if site.function != "news_too_much" {
            let reported = report.process(pid).exact_under(|function| is(function, &site.function));
            assert_eq!(reported, site.counts, "{}", site.function);
        }
    }
}

#[test]
fn c_plus_plus_names_are_demangled() {
    let (report, pid, _) = profile("throwing.cpp");
    let names: Vec<&str> = names(&report, pid);
    assert!(names.iter().any(|name| is(name, "news_array")), "{names:?}");
    assert!(names.contains(&"operator new(unsigned long)"), "{names:?}");
    assert!(names.iter().all(|name| !name.starts_with("_Z")), "{names:?}");
}

#[test]
fn rust_vectors_are_counted_for_the_function_that_creates_them() {
    let (report, pid, ledger) = profile("rusty.rs");
    for site in &ledger.sites {
        let name = format!("rusty::{}", site.function);
        let reported = report.process(pid).exact_under(|function| function == name);
        assert_eq!(reported, site.counts, "{name} is not right among {:?}", names(&report, pid));
    }
}

/// Names of C++ include parameters, also of `static` functions.
fn is(name: &str, function: &str) -> bool {
    name.strip_prefix(function).is_some_and(|rest| rest.starts_with('('))
}

fn names(report: &Report, pid: u32) -> Vec<&str> {
    let stacks = report.process(pid).callsites.iter().flat_map(|callsite| &callsite.stack);
    let mut names: Vec<&str> = stacks.filter_map(|frame| frame.function.as_deref()).collect();
    names.sort_unstable();
    names.dedup();
    names
}
