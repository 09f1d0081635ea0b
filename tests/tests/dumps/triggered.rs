//! Dumps taken automatically.

use heapbpf_tests::heapbpf::Heapbpf;

use super::{assert_flows, chain, flow, name, record, window};

#[test]
fn periodic_dumps_follow_each_other() {
    let (mut target, heapbpf, mut session) = record("--dump-every 300ms");
    for number in 1..=3 {
        target.work(&format!("+{number}:1000"));
        session.wait_for(&name(number));
    }
    let _ = session.interrupt().expect_code(0);
    let windows = chain(&heapbpf);
    let mut live = 0;
    for report in &windows {
        let [start, allocated, freed, end] = flow(report.process(target.pid()));
        assert_eq!((start, freed), (live, 0));
        live = end;
        assert_eq!(end, start + allocated);
    }
    assert_eq!(live, 3000);
    let (first, all) = windows.split_first().expect("there are four at least");
    assert_eq!(window(first).reason, "time");
    let length = |report| {
        let window = window(report);
        window.end_unix_ns - window.start_unix_ns
    };
    // They are never early; how late they are depends on the machine.
    assert!(length(first) >= 280_000_000, "{first:?}");
    assert!(all.len() >= 3);
}

#[test]
fn growth_is_relative_to_the_maximum_of_previous_dumps() {
    let (mut target, heapbpf, mut session) = record("--dump-on-growth 100000");
    target.work("+0:60000");
    target.work("+1:60000");
    session.wait_for(&name(1));
    // The same amount again is no growth.
    target.work("-0 -1");
    target.work("+0:60000 +1:60000");
    target.work("+2:99999");
    target.work("+3:1");
    session.wait_for(&name(2));
    let _ = session.interrupt().expect_code(0);
    assert_flows(
        &heapbpf,
        &target,
        &[[0, 120_000, 0, 120_000], [120_000, 220_000, 120_000, 220_000], [220_000, 0, 0, 220_000]],
    );
    let reasons: Vec<String> = chain(&heapbpf).iter().map(|report| window(report).reason.clone()).collect();
    assert_eq!(reasons, ["growth", "growth", "end"]);
}

#[test]
fn freed_allocations_count_for_dump_on_alloc() {
    let (mut target, heapbpf, mut session) = record("--dump-on-alloc 10000");
    target.work("+0:6000 -0");
    target.work("+0:4000 -0");
    session.wait_for(&name(1));
    target.work("+0:9999 -0");
    target.work("+0:1 -0");
    session.wait_for(&name(2));
    let _ = session.interrupt().expect_code(0);
    // The free may be drained after the dump that the allocation triggered.
    let windows = chain(&heapbpf);
    let flows: Vec<_> = windows.iter().map(|report| flow(report.process(target.pid()))).collect();
    assert_eq!(flows.iter().map(|flow| flow[1]).collect::<Vec<_>>(), [10_000, 10_000, 0]);
    assert_eq!(flows.iter().map(|flow| flow[2]).sum::<u64>(), 20_000);
    let reasons: Vec<&str> = windows.iter().map(|report| window(report).reason.as_str()).collect();
    assert_eq!(reasons, ["alloc", "alloc", "end"]);
}

#[test]
fn without_a_dump_only_the_report_is_written() {
    let (mut target, heapbpf, session) = record("--dump-every 1h --dump-on-growth 1GiB --dump-on-alloc 1GiB");
    target.work("+0:1000");
    // The target exits while it is recorded.
    target.exit(0);
    let _ = session.wait().expect_code(0);
    assert_eq!(heapbpf.files(), ["out.json"]);
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    assert_eq!((process.exited, process.exit_code), (true, Some(0)));
    assert_eq!(process.totals.exact().alloc_bytes, 1000);
}

#[test]
fn contradictory_options_are_wrong_usage() {
    let check = |options: &str, reason: &str| {
        let arguments = ["--pid", "1"].into_iter().chain(options.split_ascii_whitespace());
        let error = Heapbpf::new(arguments).run().expect_error(2);
        assert!(error.contains(reason), "`{error}` lacks `{reason}`");
    };
    check("-o - --dump-every 10s", "`-o heap.svg`");
    check("-o - --dump-at-peak", "`-o heap.svg`");
    check("--dump-every 1ms", "at least 100ms");
    check("--dump-on-growth 0", "`0`");
}
