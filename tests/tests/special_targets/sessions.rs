//! Several sessions on one target.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::changed_code;
use heapbpf_tests::report::Counts;
use heapbpf_tests::target::Target;

use super::assert_unharmed;

/// Killed once while the target allocates, and once while it is idle.
#[test]
fn a_killed_session_does_not_affect_another() {
    let mut target = Target::start("service.c");
    let mut survivor = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = survivor.start();
    target.work("keep 1000 25");

    let first = Heapbpf::of(target.pid(), "--interval 1 -o out.json").start();
    let killer = std::thread::spawn(move || first.kill());
    target.work("churn 100 100000");
    killer.join().expect("it was killed");

    let second = Heapbpf::of(target.pid(), "--interval 1 -o out.json").start();
    target.work("keep 10 5");
    second.kill();
    assert!(!changed_code(target.pid()).is_empty(), "the killed session took the other one's probes away");
    target.work("keep 7 3");

    let _ = session.interrupt().expect_code(0);
    let report = survivor.report("out.json");
    report.assert_complete();
    let sites = report.process(target.pid()).exact_by_leaf();
    assert_eq!(sites.get("keeps"), Some(&Counts::kept(25 + 5 + 3, 25_000 + 50 + 21)));
    assert_eq!(sites["churns"].alloc_count, 100_000);
    assert_eq!((sites["churns"].free_count, sites["churns"].live_count), (100_000, 0));
    assert_unharmed(&mut target);
}
