//! Leak candidates, and reports of old blocks only.

use std::fs;

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::report::{Candidate, Process, Report};
use heapbpf_tests::sampling::{Errors, SIGMAS, assert_unbiased};
use heapbpf_tests::target::Target;

/// Records a service for some seconds that leaks, caches and churns.
fn serve(arguments: &str, seconds: u32, suppressions: &str) -> (Report, u32, Outcome, String) {
    let mut target = Target::start("grower.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("{arguments} -o out.json -o out.folded"));
    fs::write(heapbpf.file("known.txt"), suppressions).expect("the directory is ours");
    let session = heapbpf.start();
    let _ = target.work(&format!("run {seconds}"));
    let outcome = session.interrupt().expect_code(0);
    let folded = heapbpf_tests::heapbpf::text(&heapbpf.file("out.folded"));
    (heapbpf.report("out.json"), target.pid(), outcome, folded)
}

/// Returns the functions of the leak candidates, in their order.
fn candidate_functions(process: &Process) -> Vec<&str> {
    candidates(process).iter().filter_map(|candidate| candidate.stack[0].function.as_deref()).collect()
}

fn candidates(process: &Process) -> &[Candidate] {
    &process.leak_candidates.as_ref().expect("growth was analyzed").candidates
}

/// Fails unless the growth of the candidate equals the leak: 100 blocks per second.
#[track_caller]
fn assert_growth(candidate: &Candidate, block_bytes: f64) {
    assert!(growth_error(candidate, block_bytes).abs() < 1.0, "{block_bytes}: {candidate:?}");
}

/// Error of the growth of the candidate, as a share of the allowed one. Also checks its age.
#[track_caller]
fn growth_error(candidate: &Candidate, block_bytes: f64) -> f64 {
    let truth = 100.0 * block_bytes;
    // Requests are late if the machine is busy.
    let allowed = candidate.bytes_per_second_margin_95 + 0.1 * truth;
    assert!(candidate.survival.is_some_and(|survival| survival > 0.95), "{candidate:?}");
    assert!((0.25..0.75).contains(&candidate.old_share), "{candidate:?}");
    (candidate.bytes_per_second - truth) / allowed
}

#[test]
fn leaks_rank_above_caches_churn_and_tables() {
    let (report, pid, outcome, _) = serve("--interval 1", 15, "");
    let process = report.process(pid);
    assert_eq!(candidate_functions(process), ["forgets_knowingly", "forgets"], "{:?}", process.leak_candidates);
    assert_growth(&candidates(process)[0], 5000.0);
    assert_growth(&candidates(process)[1], 2000.0);
    let at = outcome.stdout.find("growing callsites, suspected of leaking").expect("the summary has them");
    let section = outcome.stdout[at..].split("\n\n").next().expect("there is text");
    assert!(section.contains("forgets") && !section.contains("fills_cache"), "{section}");
}

#[test]
fn leaks_are_found_in_sampled_profiles() {
    assert_unbiased("a leak", || {
        let (report, pid, ..) = serve("--interval 16KiB", 20, "");
        let process = report.process(pid);
        let candidate_functions = candidate_functions(process);
        assert_eq!(candidate_functions.first(), Some(&"forgets_knowingly"), "{:?}", process.leak_candidates);
        assert!(
            !["fills_cache", "loads_tables"].iter().any(|innocent| candidate_functions.contains(innocent)),
            "{candidate_functions:?}"
        );
        let mut errors = Errors::default();
        errors.note_sigmas("growth", SIGMAS * growth_error(&candidates(process)[0], 5000.0));
        errors
    });
}

#[test]
fn suppressed_candidates_are_counted_and_not_listed() {
    let (report, pid, outcome, _) =
        serve("--interval 1 --suppressions known.txt", 12, "# We know.\nleak:^forgets_know*\n");
    let process = report.process(pid);
    assert_eq!(candidate_functions(process), ["forgets"]);
    let leaks = process.leak_candidates.as_ref().expect("growth was analyzed");
    assert_eq!((leaks.suppressed_count, leaks.growing_count), (1, 2));
    assert!((leaks.suppressed_bytes - 1200.0 * 5000.0).abs() < 1.0, "{leaks:?}");
    assert!(outcome.stdout.contains("(1 suppressed, 5.7 MiB)"), "{}", outcome.stdout);
}

#[test]
fn a_short_recording_reports_that_it_is_too_short() {
    let (report, pid, outcome, _) = serve("--interval 1", 2, "");
    let leaks = report.process(pid).leak_candidates.as_ref().expect("growth was analyzed");
    assert!(leaks.too_short && leaks.candidates.is_empty(), "{leaks:?}");
    assert!(outcome.stdout.contains("is too short to detect growth"), "{}", outcome.stdout);
}

#[test]
fn an_invalid_suppression_is_wrong_usage() {
    let target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--suppressions known.txt");
    fs::write(heapbpf.file("known.txt"), "leak:a\n\nrace:b\n").expect("the directory is ours");
    let error = heapbpf.run().expect_error(2);
    assert!(error.contains("`known.txt`, line 3: unsupported suppression type `race`"), "{error}");
    let error = Heapbpf::of(target.pid(), "--suppressions none.txt").run().expect_error(1);
    assert!(error.contains("`none.txt`"), "{error}");
}

#[test]
fn only_old_blocks_are_shown_and_totals_include_all() {
    let (report, pid, outcome, folded) = serve("--interval 1 --older-than 5s", 9, "");
    let process = report.process(pid);
    let counts = process.exact_by_leaf();
    let live = |function: &str| counts[function].live_count;
    let older = |function: &str| -> u64 {
        let of = process.callsites.iter().filter(|callsite| callsite.stack[0].function.as_deref() == Some(function));
        of.map(|callsite| callsite.older_count.as_ref().and_then(serde_json::Number::as_u64).expect("it is exact"))
            .sum()
    };
    assert_eq!((live("loads_tables"), older("loads_tables")), (40, 40));
    assert_eq!((live("serves"), older("serves")), (50, 0));
    assert_eq!((live("forgets"), live("fills_cache")), (900, 180));
    let forgotten = older("forgets");
    // Requests are never early, but may be late, and so may the end. Ages are accurate to 8.4 ms.
    let most = (report.ended_unix_ns - report.started_unix_ns - 5_000_000_000) / 10_000_000 + 2;
    assert!((200..=most).contains(&forgotten), "{forgotten}, at most {most}");
    assert!(folded.contains("loads_tables") && !folded.contains("serves"), "{folded}");
    assert!(outcome.stdout.contains("by live bytes older than 5s"), "{}", outcome.stdout);
    assert_eq!(report.older_than_ns, Some(5_000_000_000));
    let whole = process.totals.exact();
    assert_eq!(whole.live_count, 40 + 50 + 900 + 900 + 180 + live("buffers"));
}
