//! Silence of the probes is not silence of the program: what no probe sees is counted, and lowers the verdict.

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::report::Report;
use heapbpf_tests::target::Target;

fn record(target: &Target, arguments: &str) -> (Heapbpf, heapbpf_tests::heapbpf::Session) {
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("-v --interval 1 -o out.json {arguments}"));
    let session = heapbpf.start();
    (heapbpf, session)
}

#[track_caller]
fn assert_counted(report: &Report, outcome: &Outcome, reason: &str, words: &str) {
    assert_eq!(report.health.lost.get(reason), Some(&1), "{:?}", report.health.lost);
    assert_eq!(outcome.status.code(), Some(3), "{outcome:?}");
    assert!(outcome.stdout.contains(words), "{}", outcome.stdout);
}

#[test]
fn a_process_that_shares_the_memory_of_a_target_is_counted() {
    for engine in ["trap", "inline"] {
        let mut target = Target::start("silenced.c");
        let (heapbpf, mut session) = record(&target, &format!("--engine {engine}"));
        target.work("keep 100 7");
        target.work("share 50 20");
        session.wait_for("runs in the memory of process");
        if engine == "trap" {
            session.wait_for("is being recorded");
        }
        target.work("again 60 9");
        target.work("join");
        let outcome = session.interrupt();
        let report = heapbpf.report("out.json");
        assert_counted(&report, &outcome, "memory_shared", "1 process sharing the memory of another");
        assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"].alloc_count, 7);
        // The inline engine does not distinguish the two.
        let recorded = report.targets.iter().filter(|process| process.pid != target.pid());
        let counts: Vec<u64> = recorded.map(|process| process.exact_by_leaf()["shared_keeps"].alloc_count).collect();
        assert_eq!(counts, if engine == "trap" { vec![9] } else { vec![] });
    }
}

#[test]
fn a_child_of_vfork_is_none_that_shares_memory() {
    let mut target = Target::start("waiting_for_child.c");
    let (heapbpf, session) = record(&target, "");
    target.work("suspend");
    // It waits for its child meanwhile, longer than a process that shares memory takes to be found.
    std::thread::sleep(std::time::Duration::from_secs(1));
    target.work("resume");
    let _ = session.interrupt().expect_code(0);
    assert!(!heapbpf.report("out.json").health.lost.contains_key("memory_shared"));
}

#[test]
fn a_target_without_its_breakpoints_is_not_observed() {
    let mut target = Target::start("silenced.c");
    let (heapbpf, session) = record(&target, "");
    target.work("disarm");
    target.work("keep 100 20");
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    assert!(!report.process(target.pid()).exact_by_leaf().contains_key("keeps"), "its calls meet no probe");
    assert_counted(&report, &outcome, "unobserved", "1 process not observed");
}

#[test]
fn an_idle_target_is_observed() {
    for backend in ["session", "multi", "perf"] {
        let target = Target::start("silenced.c");
        let (heapbpf, session) = record(&target, &format!("--backend {backend}"));
        let _ = session.interrupt().expect_code(0);
        heapbpf.report("out.json").assert_complete();
    }
}
