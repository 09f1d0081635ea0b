//! Sessions on a program that always allocates: heapprofd's cases of one session, of two in sequence and in parallel,
//! and of ends.

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::assert_no_probes;
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::Target;

use super::assert_multiple;

const ARGUMENTS: &str = "--interval 1 -o out.json";

/// A program that allocates blocks of this size, one every 10 ms.
fn ticking(size: u64) -> Target {
    let mut target = Target::start("ticking.c");
    target.work(&format!("size {size}"));
    target
}

/// Ends a session and reads its report.
fn report_of(session: Session, heapbpf: &Heapbpf) -> heapbpf_tests::report::Report {
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    report
}

/// Fails unless all events are complete ticks of this size, at least `at_least`, of which at most one is in progress.
#[track_caller]
fn assert_ticks(process: &Process, size: u64, at_least: u64) {
    let Counts { alloc_count, alloc_bytes, free_count, free_bytes, live_count, live_bytes } = process.totals.exact();
    assert_multiple(alloc_bytes, alloc_count, size);
    assert_multiple(free_bytes, free_count, size);
    assert_multiple(live_bytes, live_count, size);
    assert!(live_bytes == 0 || live_bytes == size, "{live_bytes} bytes live");
    assert!(free_count >= at_least, "{free_count} of {at_least} ticks");
    assert!(process.callsites.iter().all(|callsite| callsite.stack[0].function.as_deref() == Some("ticks")));
}

#[test]
fn a_block_of_1024_bytes_every_10_ms_is_whole_blocks_of_which_one_or_none_lives() {
    let mut target = ticking(1024);
    let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
    let session = heapbpf.start();
    target.work("ticks 100");
    let report = report_of(session, &heapbpf);
    // The first block may be older than the session: then its free is not counted.
    assert_ticks(report.process(target.pid()), 1024, 99);
    target.assert_running();
}

#[test]
fn a_second_session_has_no_blocks_of_the_first() {
    let mut target = ticking(5);
    for size in [5, 7] {
        target.work(&format!("size {size}"));
        let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
        let session = heapbpf.start();
        target.work("ticks 30");
        let report = report_of(session, &heapbpf);
        assert_ticks(report.process(target.pid()), size, 29);
        assert_no_probes(target.pid());
        target.assert_running();
    }
}

#[test]
fn a_failed_session_does_not_affect_the_next() {
    let mut target = ticking(7);
    for wrong in ["--interval 0", "--hook x.so:f(size=arg7,ptr=ret)", "--heap-interval libc=0"] {
        let _ = Heapbpf::of(target.pid(), &format!("{wrong} -o out.json")).run().expect_error(2);
        assert_no_probes(target.pid());
    }
    let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
    let session = heapbpf.start();
    target.work("ticks 30");
    assert_ticks(report_of(session, &heapbpf).process(target.pid()), 7, 29);
    target.assert_running();
}

/// heapprofd rejects a second session.
#[test]
fn two_sessions_at_once_have_equal_numbers_and_end_independently() {
    let mut target = ticking(0);
    let mut both = [(); 2].map(|()| Heapbpf::of(target.pid(), ARGUMENTS));
    let [first, second] = both.each_mut().map(Heapbpf::start);
    target.work("size 1024");
    target.work("ticks 50");
    target.work("pause");
    let first = report_of(first, &both[0]);
    let first = first.process(target.pid());
    assert_ticks(first, 1024, 50);
    assert_eq!(first.totals.exact().live_count, 0);

    target.work("size 1024");
    target.work("ticks 50");
    target.work("pause");
    let second = report_of(second, &both[1]);
    let second = second.process(target.pid());
    assert_ticks(second, 1024, 100);
    assert!(second.totals.exact().alloc_count > first.totals.exact().alloc_count);
    target.assert_running();

    let mut both = [(); 2].map(|()| Heapbpf::of(target.pid(), ARGUMENTS));
    let sessions = both.each_mut().map(Heapbpf::start);
    target.work("size 1024");
    target.work("ticks 50");
    target.work("pause");
    let totals: Vec<Counts> = sessions
        .into_iter()
        .zip(&both)
        .map(|(session, heapbpf)| report_of(session, heapbpf).process(target.pid()).totals.exact())
        .collect();
    assert!(totals[0] == totals[1] && totals[0].free_count >= 50, "{totals:?}");
}

#[test]
fn allocations_right_before_the_end_are_in_the_report() {
    let expected = Counts::kept(50_000, 50_000 * 128);
    let mut target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
    let session = heapbpf.start();
    target.work("keep 128 50000");
    let report = report_of(session, &heapbpf);
    assert_eq!(report.process(target.pid()).totals.exact(), expected);
    target.assert_running();

    // Also before the program's own exit.
    let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
    let session = heapbpf.start();
    target.work("keep 128 50000");
    target.begin_exit(0);
    let _ = session.wait().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], expected);
}

#[test]
fn a_program_that_exits_while_profiled_has_a_complete_report() {
    const BLOCKS: u64 = 200;
    let mut target = Target::start("ticking.c");
    let mut heapbpf = Heapbpf::of(target.pid(), ARGUMENTS);
    let session = heapbpf.start();
    target.work(&format!("leak 128 {BLOCKS}"));
    // It exits and is not reaped: it is a zombie.
    let _ = session.wait().expect_code(0);
    assert_eq!(heapbpf.files(), ["out.json"]);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let [process] = report.targets.as_slice() else { panic!("{:?}", report.targets) };
    assert_eq!((process.pid, process.exited, process.exit_code), (target.pid(), true, Some(0)));
    assert_eq!(process.exact_by_leaf()["leaks"], Counts::kept(BLOCKS, BLOCKS * 128));
    assert!(target.wait().success());
}
