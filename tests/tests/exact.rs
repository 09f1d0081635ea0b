//! At an interval of 1, every function's blocks and bytes equal the target's own ledger.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Counts, Ledger, Report};
use heapbpf_tests::target::Target;

/// Profiles one command of a target from start to exit at an interval of 1.
fn profile(source: &str) -> (Report, u32, Ledger) {
    let mut target = Target::start(source);
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    let ledger = target.work("go");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    assert_eq!(report.interval_bytes, 1);
    report.assert_complete();
    (report, target.pid(), ledger)
}

#[test]
fn every_allocation_function_is_counted_to_the_byte() {
    let (report, pid, ledger) = profile("exact.c");
    let process = report.process(pid);
    process.assert_matches(&ledger);

    assert_eq!(process.exact_by_leaf()["leaks_30000"], Counts::kept(1, 30_000));

    // glibc itself allocates nothing here, so any surplus is a nested call that was counted twice, a failed call, or a
    // call of the forked child.
    assert_eq!(process.totals.exact(), ledger.sum());
    assert_eq!(process.totals.peak_bytes.as_u64(), Some(ledger.peak_bytes));
    assert!(!process.exited);
    assert_eq!(process.exit_code, None);
}

#[test]
fn the_only_heap_is_that_of_libc_with_all_its_functions() {
    let (report, pid, ledger) = profile("exact.c");
    let process = report.process(pid);
    assert_eq!(process.heap_names(), ["libc"]);
    let heap = &process.heaps[0];
    assert_eq!(heap.totals.exact(), ledger.sum());
    assert!(process.callsites.iter().all(|callsite| callsite.heap == "libc"));

    let mut functions: Vec<&str> = heap.hooks.iter().map(|hook| hook.function.as_str()).collect();
    functions.sort_unstable();
    functions.dedup();
    for function in [
        "malloc",
        "calloc",
        "realloc",
        "reallocarray",
        "posix_memalign",
        "aligned_alloc",
        "memalign",
        "valloc",
        "pvalloc",
        "free",
    ] {
        assert!(functions.contains(&function), "`{function}` is not among {functions:?}");
    }
    for hook in &heap.hooks {
        assert!(hook.module.ends_with("/libc.so.6"), "{hook:?}");
    }
}

#[test]
fn the_leaf_of_a_stack_is_the_allocation_line() {
    let (report, pid, ledger) = profile("exact.c");
    let process = report.process(pid);
    for site in ledger.sites.iter().filter(|site| site.counts.alloc_count > 0) {
        let leaf = process
            .callsites
            .iter()
            .filter_map(|callsite| callsite.stack.first())
            .find(|frame| frame.function.as_deref() == Some(site.function.as_str()))
            .unwrap_or_else(|| panic!("no stack for `{}`", site.function));
        assert_eq!(leaf.line, Some(site.line), "{leaf:?}");
        assert!(leaf.file.as_deref().is_some_and(|file| file.ends_with("exact.c")), "{leaf:?}");
        assert!(leaf.module.as_deref().is_some_and(|module| module.ends_with("/exact")), "{leaf:?}");
        assert!(!leaf.inlined, "{leaf:?}");
        let address = leaf.address.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        assert!(address.is_some_and(|address| address > 0x1000), "{leaf:?}");
    }
}

#[test]
fn stacks_extend_from_the_allocators_caller_to_main() {
    let (report, pid, _) = profile("exact.c");
    // Function, and whether it is inlined into the next.
    let stacks: Vec<Vec<(&str, bool)>> = report
        .process(pid)
        .callsites
        .iter()
        .map(|callsite| callsite.stack.iter().map(|frame| (frame.function.as_deref().unwrap_or("?"), frame.inlined)))
        .map(Iterator::collect)
        .collect();
    for expected in [
        [("leaks_30000", false), ("work", false), ("main", false)].as_slice(),
        &[("grows_mapped", false), ("resized", false), ("work", false), ("main", false)],
        &[("posix_memaligns", false), ("aligned", true), ("work", false), ("main", false)],
    ] {
        assert!(stacks.iter().any(|stack| stack.starts_with(expected)), "{expected:?} is not among {stacks:#?}");
    }
}

#[test]
fn eight_threads_at_once_are_counted_to_the_byte() {
    let (report, pid, ledger) = profile("threads.c");
    report.process(pid).assert_matches(&ledger);
    // The threads did free each other's blocks concurrently, as this test requires.
    let sum = ledger.sum();
    assert!(sum.alloc_count > 30_000 && sum.live_count > 0, "{sum:?}");
}

#[test]
fn few_missed_frees_are_tolerated_unless_strict() {
    for (option, code, verdict) in [("", 0, "complete except for"), ("--strict", 3, "incomplete:")] {
        let mut target = Target::start("unseen_free.c");
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("{option} --interval 1 -o out.json -o out.heapbpf"));
        let session = heapbpf.start();
        let _ = target.work("after 5000");
        let outcome = session.interrupt().expect_code(code);
        let first = format!("health: {verdict} 1 event dropped (<0.1%)");
        assert!(outcome.stdout.lines().any(|line| line == first), "no `{first}` in {}", outcome.stdout);
        assert_eq!(heapbpf.report("out.json").health.lost.get("missed_free"), Some(&1));
        for input in ["out.json", "out.heapbpf"] {
            let input = heapbpf.file(input).display().to_string();
            let words = ["convert", &input].into_iter().chain(option.split_ascii_whitespace());
            let _ = Heapbpf::new(words).run().expect_code(code);
        }
    }
}

#[test]
fn a_recording_of_no_process_is_incomplete() {
    let outcome = Heapbpf::new(["--cmdline", "nosuchprogram", "--duration", "1s"]).run().expect_code(3);
    let verdict = "health: incomplete: no process was profiled";
    assert!(outcome.stdout.lines().any(|line| line == verdict), "{}", outcome.stdout);
}

#[test]
fn a_missed_free_makes_the_profile_incomplete() {
    let mut target = Target::start("unseen_free.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    let ledger = target.work("go");
    let outcome = session.interrupt().expect_code(3);
    let said = outcome.stdout.to_lowercase() + &outcome.stderr.to_lowercase();
    assert!(said.contains("missed"), "the missed frees are not reported:\n{said}");

    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.get("missed_free"), Some(&1), "{:?}", report.health.lost);
    let maps = report.process(target.pid()).exact_by_leaf()["maps"];
    // The target only knows that it allocated twice. Of two blocks at one address, one is live.
    let truth = ledger.site("maps").counts;
    assert_eq!((maps.alloc_count, maps.alloc_bytes), (truth.alloc_count, truth.alloc_bytes));
    assert_eq!((maps.live_count, maps.live_bytes), (1, 1 << 20));
}
