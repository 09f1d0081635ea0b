//! Dumps requested by a signal.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::Counts;
use heapbpf_tests::target::{Target, build};
use rustix::process::{Signal, kill_process};

use super::launched::{Launched, status, wait_until};
use super::{assert_flows, chain, dump, flow, name, record, window};

/// heapprofd's three intervals: 1000, 1000 and 0 bytes retained, with deltas of 1000, 0 and −1000.
#[test]
fn each_window_has_its_own_allocations() {
    let (mut target, heapbpf, mut session) = record("");
    target.work("+0:1000");
    // The target is idle at every dump.
    dump(&mut session, 1);
    dump(&mut session, 2);
    target.work("-0");
    dump(&mut session, 3);
    let outcome = session.interrupt().expect_code(0);
    assert_flows(&heapbpf, &target, &[[0, 1000, 0, 1000], [1000, 0, 0, 1000], [1000, 0, 1000, 0], [0; 4]]);
    assert_eq!(heapbpf.report("out.json").process(target.pid()).totals.exact().alloc_bytes, 1000);
    let reports: Vec<_> = chain(&heapbpf);
    assert!(reports[..3].iter().all(|report| window(report).reason == "signal"));
    assert!(outcome.stderr.contains("out.0003.json (signal, "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(", 0 B retained, \u{2212}1000 B)"), "{}", outcome.stderr);
    // A callsite whose blocks are all freed is still listed.
    let freed = reports[2].process(target.pid()).exact_by_leaf();
    assert_eq!(freed["few"].free_bytes, 1000);
    assert!(reports[3].process(target.pid()).callsites.is_empty(), "nothing happened there");
    target.assert_running();
}

#[test]
fn every_output_has_a_file_per_window() {
    let mut target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o a.folded -o b.svg -o -");
    let mut session = heapbpf.start();
    target.work("+0:300 +11:50");
    session.signal(Signal::USR1);
    session.wait_for("heapbpf: wrote a.0001.folded, b.0001.svg (signal, ");
    target.work("-0");
    let outcome = session.interrupt().expect_code(0);
    assert_eq!(heapbpf.files(), ["a.0001.folded", "a.0002.folded", "a.folded", "b.0001.svg", "b.0002.svg", "b.svg"],);
    let text = |name: &str| heapbpf_tests::heapbpf::text(&heapbpf.file(name));
    let values = |name: &str| {
        let mut values: Vec<u64> =
            text(name).lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        values.sort_unstable();
        values
    };
    assert_eq!(values("a.0001.folded"), [50, 300]);
    assert_eq!(values("a.0002.folded"), [50]);
    assert!(text("b.0002.svg").contains(", window 2 ("), "its title has the window");
    assert!(text("b.0002.svg").contains("live \u{2212}300 B in the window"), "and what changed");
    assert!(!text("b.svg").contains(", window "), "the whole recording is no window");
    assert_eq!(outcome.stdout, text("a.folded"), "standard output has the whole recording alone");
}

#[test]
fn a_signal_right_after_the_start_does_not_end_the_session() {
    let mut target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let mut session = heapbpf.spawn();
    let pid = i32::try_from(session.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("pids are positive");
    // Bit 9 is SIGUSR1's, bit 11 SIGUSR2's.
    let caught = || u64::from_str_radix(&status(pid, "SigCgt"), 16).expect("a mask") & 0xa00 == 0xa00;
    wait_until("that it listens", caught);
    session.signal(Signal::USR1);
    session.wait_for(&name(1));
    target.work("+0:77");
    let _ = session.interrupt().expect_code(0);
    assert_flows(&heapbpf, &target, &[[0; 4], [0, 77, 0, 77]]);
}

#[test]
fn a_command_is_dumped_and_does_not_receive_the_signals() {
    let mut launched = Launched::start("", &[build("slots.c")], &[]);
    launched.target.work("+0:500");
    kill_process(launched.heapbpf(), Signal::USR1).expect("it runs");
    wait_until("the first dump", || launched.file("out.0001.json").exists());
    launched.target.work("+11:40 -0");
    kill_process(launched.heapbpf(), Signal::USR2).expect("it runs");
    wait_until("the mark", || heapbpf_tests::heapbpf::text(&launched.file("stderr")).contains("mark set at "));
    launched.target.work("+12:2");
    assert_eq!(status(launched.command(), "Name"), "slots", "the signals would have ended it");
    launched.target.exit(23);
    let read = |name: &str| heapbpf_tests::report::Report::read(&launched.file(name));
    let first = read("out.0001.json");
    assert_eq!(first.targets.len(), 1);
    assert_eq!(first.targets[0].exact_by_leaf()["few"], Counts::kept(1, 500));
    let last = read("out.0002.json");
    assert!(window(&last).since_mark);
    let [start, allocated, _, live] = flow(&last.targets[0]);
    assert_eq!((live - start, allocated), (2, 2), "glibc itself frees nothing here");
    assert_eq!(launched.report().targets[0].exact_by_leaf()["few"].free_bytes, 500);
}

#[test]
fn dumps_in_quick_succession_are_all_written() {
    let (mut target, heapbpf, mut session) = record("-o out.svg");
    for number in 1..=10 {
        target.work(&format!("+{number}:{}", 10 * number));
        dump(&mut session, number);
    }
    let _ = session.interrupt().expect_code(0);
    let live = |n: u64| 10 * n * (n + 1) / 2;
    let expected: Vec<_> =
        (1..=10).map(|n| [live(n - 1), 10 * n, 0, live(n)]).chain([[live(10), 0, 0, live(10)]]).collect();
    assert_flows(&heapbpf, &target, &expected);
}
