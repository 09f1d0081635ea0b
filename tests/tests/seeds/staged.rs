//! gperftools' heap in stages, in the program itself and in one that it forks and executes.

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::report::{Counts, Process, Report};
use heapbpf_tests::target::Target;

use super::counts;

/// Share of the live bytes that gperftools requires of one function.
const SHARE_MIN: f64 = 0.9;

/// Blocks of 400 bytes, including those that are leaked while 40 others are replaced.
const ALLOCATE: Counts = counts((160, 64_000), (80, 32_000));

/// 360 blocks of 4,000 bytes and 600 of 40,000.
const ALLOCATE_2: Counts = Counts::kept(960, 25_440_000);

/// Allocated and freed bytes of all stages, which gperftools logs as "62 MB allocated" and "62 MB freed".
const ALL: Counts = counts((160 + 960 + 100, 64_000 + 25_440_000 + 40_000_000), (80 + 960 + 40 + 100, 65_488_000));

/// Returns the share of the live bytes in this function.
fn share(process: &Process, function: &str) -> f64 {
    let estimates = process.estimates_by_leaf();
    estimates.get(function).map_or(0.0, |estimates| estimates.live_bytes) / process.totals.estimates().live_bytes
}

fn start(arguments: &str) -> (Target, Heapbpf, Session) {
    let target = Target::start("staged.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("-v {arguments} -o out.json"));
    let session = heapbpf.start();
    (target, heapbpf, session)
}

fn report_of(session: Session, heapbpf: &Heapbpf) -> Report {
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    report
}

#[test]
fn allocate2_has_more_than_nine_tenths_of_what_lives() {
    for arguments in ["--interval 1", "--interval 4KiB", "--interval 512KiB"] {
        let (mut target, heapbpf, session) = start(arguments);
        target.work("fill");
        let report = report_of(session, &heapbpf);
        let process = report.process(target.pid());
        let share = share(process, "Allocate2");
        assert!(share > SHARE_MIN, "{arguments}: {share}");
        if report.interval_bytes == 1 {
            assert_eq!(process.exact_by_leaf()["Allocate"], ALLOCATE);
            assert_eq!(process.exact_by_leaf()["Allocate2"], ALLOCATE_2);
        }
        target.assert_running();
    }
}

#[test]
fn allocate2_has_nearly_all_live_bytes_a_stage_later() {
    let (mut target, heapbpf, session) = start("--interval 1");
    target.work("fill");
    target.work("replace");
    let report = report_of(session, &heapbpf);
    let process = report.process(target.pid());
    assert!(share(process, "Allocate") > SHARE_MIN);
    assert_eq!(process.exact_by_leaf()["Allocate2"], counts((960, 25_440_000), (960, 25_440_000)));
    target.assert_running();
}

#[test]
fn in_the_end_62_mb_were_allocated_and_62_mb_freed() {
    let (mut target, heapbpf, session) = start("--interval 1");
    for stage in ["fill", "replace", "drain"] {
        target.work(stage);
    }
    let report = report_of(session, &heapbpf);
    let totals = report.process(target.pid()).totals.exact();
    assert_eq!(totals, ALL);
    assert_eq!((totals.alloc_bytes >> 20, totals.free_bytes >> 20), (62, 62));
    // The peak is 100 blocks of 400,000 bytes, and the leaked ones.
    assert_eq!(report.process(target.pid()).totals.peak_bytes.as_u64(), Some(40_000_000 + 40 * 400));
    target.assert_running();
}

/// heapprofd does not follow forks; the children of programs under gperftools overwrite their parents' files.
#[test]
fn a_forked_and_executed_child_has_its_own_profile() {
    let (mut target, heapbpf, mut session) = start("--interval 1");
    target.work("fill");
    target.exec("child");
    let child = target.child_pid();
    // The forked copy of the program before its exec has another name.
    session.wait_for(&format!("process {child} (exe) is being recorded"));
    let truth = target.work("fill");
    target.begin_exit(0);
    target.work("replace");
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    report.assert_complete_but_for_programs();
    // The program allocates what is compared below once it is recorded, but it has run before, perhaps without probes.
    let is_late = report.health.lost.contains_key("program_late");
    let _ = outcome.expect_code(if is_late { 3 } else { 0 });
    target.assert_running();

    let parent = report.process(target.pid());
    assert!(!parent.exited && !parent.replaced);
    assert!(share(parent, "Allocate") > SHARE_MIN);
    assert_eq!(parent.exact_by_leaf()["Allocate2"], counts((960, 25_440_000), (960, 25_440_000)));

    let programs: Vec<&Process> = report.targets.iter().filter(|process| process.pid == child).collect();
    let executed = programs.last().expect("the child is a target");
    assert_eq!((executed.beginning.origin.as_str(), executed.command.as_str()), ("exec", "staged-child"));
    assert_eq!((executed.exited, executed.exit_code), (true, Some(0)));
    assert!(share(executed, "Allocate2") > SHARE_MIN);
    assert_eq!(executed.exact_by_leaf()["Allocate2"], truth.site("Allocate2").counts);
    assert_eq!(executed.exact_by_leaf()["Allocate"], truth.site("Allocate").counts);
    assert_eq!(executed.totals.inherited_count.as_u64(), Some(0), "its memory is new");
    // The short-lived forked copy of its parent may have been recorded, too.
    let copies = &programs[..programs.len() - 1];
    assert!(copies.iter().all(|copy| copy.replaced && copy.beginning.origin == "fork"), "{copies:?}");
}
