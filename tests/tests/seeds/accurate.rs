//! heapprofd's five calls: 40 bytes allocated, 25 freed, 15 live, a peak of 30 in two blocks. Also with a vfork in
//! between, which heapprofd's own tests omit on Linux.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Counts, Process, Report};
use heapbpf_tests::target::Target;

use super::counts;

/// Allocated, freed and live.
const ACCURATE: Counts = counts((3, 40), (2, 25));

/// The same with blocks that many times as large.
const fn scaled(scale: u64) -> Counts {
    counts((3, 40 * scale), (2, 25 * scale))
}

/// Hooks of one of the program's own heaps.
fn hooks(heap: &str) -> [String; 4] {
    let hook = |function: &str| format!("{heap}=accurate:{heap}_{function}");
    let (get, put) = (hook("get(size=arg1, ptr=ret)"), hook("put(old=arg1)"));
    ["--hook".to_owned(), get, "--hook".to_owned(), put]
}

/// Starts heapbpf on the program, with the hooks of both of its heaps.
fn heapbpf(target: &Target, arguments: &str) -> Heapbpf {
    let words = ["--pid", &target.pid().to_string(), "-o", "out.json"].map(str::to_owned);
    let arguments = arguments.split_ascii_whitespace().map(str::to_owned);
    Heapbpf::new(words.into_iter().chain(arguments).chain(hooks("first")).chain(hooks("second")))
}

/// Profiles these commands from start to end. The program continues.
#[track_caller]
fn profile(arguments: &str, lines: &[&str]) -> (Report, u32) {
    let mut target = Target::start("accurate.c");
    let mut heapbpf = heapbpf(&target, arguments);
    let session = heapbpf.start();
    for line in lines {
        let truth = target.work(line).sum();
        assert_eq!((truth.alloc_bytes * 25, truth.live_bytes * 8), (truth.free_bytes * 40, truth.alloc_bytes * 3));
    }
    let outcome = session.interrupt();
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete_but_for_programs();
    // Of the two programs, the one that a vfork child executes may have run before its probes were attached.
    let _ = outcome.expect_code(if report.health.verdict().complete { 0 } else { 3 });
    assert!(!report.process(target.pid()).exited, "it was disconnected");
    (report, target.pid())
}

/// Fails unless a heap has exactly these counts, all in one function, and none of a vfork child.
#[track_caller]
fn assert_heap(process: &Process, heap: &str, function: &str, expected: Counts, peak_bytes: u64) {
    let callsites = || process.callsites.iter().filter(|callsite| callsite.heap == heap);
    for callsite in callsites() {
        assert_eq!(callsite.stack[0].function.as_deref(), Some(function), "{callsite:?}");
        assert!(!callsite.has(|name| name == "vforked"), "{callsite:?}");
    }
    assert_eq!(process.exact_by_leaf()[function], expected);
    let totals = &process.heap(heap).totals;
    assert_eq!(totals.exact(), expected, "{heap}");
    assert_eq!(totals.peak_bytes.as_u64(), Some(peak_bytes), "{heap}");
}

/// Fails unless malloc has exactly these counts for the program, excluding what starting threads allocates.
#[track_caller]
fn assert_malloc(process: &Process, expected: Counts) {
    assert_eq!(process.exact_by_leaf()["mallocs"], expected);
    assert!(process.callsites.iter().all(|callsite| !callsite.has(|name| name == "vforked")));
}

#[test]
fn five_calls_are_40_bytes_of_which_25_are_freed_and_15_live() {
    let (report, pid) = profile("--interval 1", &["run malloc 1 plain"]);
    let process = report.process(pid);
    assert_heap(process, "libc", "mallocs", ACCURATE, 30);
    assert_eq!((process.totals.exact(), process.totals.peak_bytes.as_u64()), (ACCURATE, Some(30)));
}

#[test]
fn five_calls_of_a_custom_heap_are_exact() {
    let (report, pid) = profile("--interval 1", &["run first 1 plain"]);
    assert_heap(report.process(pid), "first", "firsts", ACCURATE, 30);
    assert_eq!(report.process(pid).totals.exact(), ACCURATE);
}

/// heapprofd lets an allocator that samples report its samples, and uses them unchanged at any interval. The equivalent
/// here is a heap's own interval.
#[test]
fn a_heap_with_interval_one_is_exact_at_an_interval_of_a_million() {
    for how in ["plain", "vfork", "vfork-thread"] {
        let line = format!("run first 1 {how}");
        let (report, pid) = profile("--interval 1000000 --heap-interval first=1", &[&line]);
        assert_eq!(report.interval_bytes, 1_000_000);
        assert_heap(report.process(pid), "first", "firsts", ACCURATE, 30);
    }
}

/// Blocks as large as the interval are always sampled: the numbers are the same, a hundred thousand times as large.
#[test]
#[expect(clippy::cast_precision_loss, reason = "the report has floats, which hold these exactly")]
fn blocks_of_a_million_bytes_are_exact_at_an_interval_of_a_million() {
    for (heap, function) in [("malloc", "mallocs"), ("first", "firsts")] {
        let (report, pid) = profile("--interval 1000000", &[&format!("run {heap} 100000 plain")]);
        let process = report.process(pid);
        let (got, expected) = (process.estimates_by_leaf()[function], scaled(100_000));
        assert_eq!((got.alloc_count, got.live_count), (expected.alloc_count as f64, expected.live_count as f64));
        assert_eq!((got.alloc_bytes, got.live_bytes), (expected.alloc_bytes as f64, expected.live_bytes as f64));
        assert_eq!(process.totals.peak_bytes.as_f64(), Some(3_000_000.0));
    }
}

#[test]
fn a_vfork_in_the_middle_changes_nothing() {
    for how in ["vfork", "vfork-thread"] {
        let (report, pid) = profile("--interval 1", &[&format!("run first 1 {how}")]);
        assert_heap(report.process(pid), "first", "firsts", ACCURATE, 30);
        let (report, pid) = profile("--interval 1", &[&format!("run malloc 1 {how}")]);
        assert_malloc(report.process(pid), ACCURATE);
        // The child's new program is another target, or exited too soon to be one.
        for other in report.targets.iter().filter(|other| other.pid != pid) {
            assert_eq!((other.beginning.origin.as_str(), other.command.as_str()), ("exec", "true"), "{other:?}");
        }
    }
}

#[test]
fn a_vfork_is_not_an_exit_and_the_exit_has_its_code() {
    let mut target = Target::start("accurate.c");
    let mut heapbpf = heapbpf(&target, "--interval 1");
    let session = heapbpf.start();
    target.work("run first 1 vfork");
    target.work("run first 1 vfork-thread");
    target.assert_running();
    target.begin_exit(0);
    let _ = session.wait().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    assert_heap(process, "first", "firsts", counts((6, 80), (4, 50)), 15 + 30);
    assert_eq!((process.exited, process.exit_code), (true, Some(0)));
}

#[test]
fn two_allocators_of_one_process_are_separate() {
    let lines = ["run first 1 plain", "run second 7 plain", "run malloc 1000 plain"];
    for arguments in ["--interval 1", "--interval 1 --heap all"] {
        let (report, pid) = profile(arguments, &lines);
        let process = report.process(pid);
        assert_heap(process, "first", "firsts", ACCURATE, 30);
        assert_heap(process, "second", "seconds", scaled(7), 30 * 7);
        assert_heap(process, "libc", "mallocs", scaled(1000), 30 * 1000);
        assert_eq!(process.totals.exact().alloc_bytes, 40 + 280 + 40_000);
    }
    let (report, pid) = profile("--interval 1 --heap first --heap second", &lines);
    let process = report.process(pid);
    assert_heap(process, "first", "firsts", ACCURATE, 30);
    assert_heap(process, "second", "seconds", scaled(7), 30 * 7);
    assert_eq!(process.totals.exact().alloc_bytes, 320);
}

#[test]
fn a_heap_that_is_not_selected_has_no_samples() {
    let lines = ["run first 1 plain", "run second 7 plain", "run malloc 1000 plain"];
    for (arguments, of_others) in [("--heap second", 280), ("--exclude-heap first --exclude-heap libc", 280)] {
        let (report, pid) = profile(&format!("--interval 1 {arguments}"), &lines);
        let process = report.process(pid);
        assert_eq!(process.heap_names(), ["second"]);
        assert_eq!(process.totals.exact().alloc_bytes, of_others);
        assert_eq!(
            report.health.events,
            3 + 3 + 2,
            "three blocks, their stacks and two frees; nothing else has got that far"
        );
    }
    // heapprofd accepts an unknown heap and gives an empty profile.
    let mut target = Target::start("accurate.c");
    let error = heapbpf(&target, "--interval 1 --heap invalid").run().expect_error(1);
    for part in ["has none of the selected heaps (`invalid`)", "`libc`", "`first`", "`second`"] {
        assert!(error.contains(part), "{error}");
    }
    target.work("run malloc 1 plain");
    target.assert_running();
}

/// Chrome's allocation register ignores double frees and unknown addresses.
#[test]
fn invalid_frees_are_ignored() {
    let mut target = Target::start("accurate.c");
    let mut heapbpf = heapbpf(&target, "--interval 1");
    let session = heapbpf.start();
    target.work("misuse");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.process(target.pid()).totals.exact(), counts((2, 25), (1, 10)));
}

/// Of two blocks at one address, the second counts: the profile reports a missed free.
#[test]
fn a_second_block_at_one_address_replaces_the_first() {
    let mut target = Target::start("accurate.c");
    let mut heapbpf = heapbpf(&target, "--interval 1");
    let session = heapbpf.start();
    target.work("repeat");
    let _ = session.interrupt().expect_code(3);
    target.assert_running();
    let report = heapbpf.report("out.json");
    assert_eq!(report.health.lost.get("missed_free"), Some(&1));
    assert_eq!(report.process(target.pid()).totals.exact(), counts((2, 25), (1, 10)));
}
