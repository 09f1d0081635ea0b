//! The peak of live bytes.

use heapbpf_tests::report::Counts;

use super::record;

/// heapprofd's program: 10 and 15 bytes, the first freed before the second; then 15 more, and one of the two freed.
#[test]
fn the_peak_holds_thirty_bytes_in_two_blocks() {
    let (mut target, heapbpf, session) = record("--dump-at-peak -o out.svg");
    target.work("+0:10 -0 +1:15 +2:15 -1");
    let outcome = session.interrupt().expect_code(0);
    assert_eq!(heapbpf.files(), ["out.json", "out.peak.json", "out.peak.svg", "out.svg"]);
    let whole = heapbpf.report("out.json");
    let whole = whole.process(target.pid());
    let counts = whole.totals.exact();
    assert_eq!((counts.alloc_bytes, counts.free_bytes, counts.live_bytes), (40, 25, 15));
    assert_eq!(whole.totals.peak_bytes.as_u64(), Some(30));

    let peak = heapbpf.report("out.peak.json");
    assert_eq!(peak.window.as_ref().map(|window| (window.number, window.reason.as_str())), Some((None, "peak")));
    let process = peak.process(target.pid());
    assert_eq!(process.exact_by_leaf()["few"], Counts::kept(2, 30));
    assert_eq!(process.totals.exact().live_bytes, 30);
    assert!(
        outcome.stderr.contains("out.peak.json, out.peak.svg (each process at its peak, 30 B live)"),
        "{outcome:?}"
    );
}

#[test]
fn blocks_freed_after_the_peak_are_in_it_with_their_stacks() {
    let (mut target, heapbpf, mut session) = record("--dump-at-peak");
    target.work("+0:100 +11:5000 +12:500");
    super::dump(&mut session, 1);
    target.work("-11 -0 +1:5");
    let _ = session.interrupt().expect_code(0);
    let peak = heapbpf.report("out.peak.json");
    let functions = peak.process(target.pid()).exact_by_leaf();
    assert_eq!((functions["few"], functions["many"]), (Counts::kept(1, 100), Counts::kept(2, 5500)));
}
