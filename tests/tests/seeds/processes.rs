//! Selection and separation of processes: heapprofd's cases of two processes, of names, and of a daemon that must not
//! be restarted.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::changed_code;
use heapbpf_tests::report::{Counts, Process};
use heapbpf_tests::target::{Target, build};

use super::assert_multiple;

/// Returns a unique name.
fn name(word: &str) -> String {
    format!("{word}-seed-of-{}", std::process::id())
}

/// The service under this name.
fn service(name: &str) -> Target {
    Target::spawn(Command::new(build("service.c")).arg0(name))
}

/// Fails unless a process has blocks of this size only, and many of them.
#[track_caller]
fn assert_blocks_of(process: &Process, size: u64, other_size: u64) {
    for callsite in &process.callsites {
        let Counts { alloc_count, alloc_bytes, free_count, free_bytes, live_count, live_bytes } =
            callsite.totals.exact();
        for (bytes, count) in [(alloc_bytes, alloc_count), (free_bytes, free_count), (live_bytes, live_count)] {
            assert_multiple(bytes, count, size);
            assert!(bytes == 0 || bytes % other_size != 0, "{bytes} bytes could be blocks of {other_size}, too");
        }
    }
    let sum = process.totals.exact();
    assert!(sum.alloc_count > 20_000 && sum.live_count > 1000, "{sum:?}");
}

#[test]
fn two_processes_at_once_do_not_mix() {
    let (mut one, mut other) = (Target::start("service.c"), Target::start("service.c"));
    let mut heapbpf = Heapbpf::of(one.pid(), &format!("--pid {} --interval 1 -o out.json", other.pid()));
    let session = heapbpf.start();
    let work = |target: &mut Target, size: u64| {
        let kept = target.work(&format!("keep {size} 1009")).sum();
        let mut all = target.work(&format!("churn {size} 20011")).sum();
        all.add(kept);
        all
    };
    let (of_one, of_other) = thread::scope(|scope| {
        let of_one = scope.spawn(|| work(&mut one, 1024));
        let of_other = work(&mut other, 7);
        (of_one.join().expect("it works"), of_other)
    });
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!(report.targets.len(), 2);
    assert_blocks_of(report.process(one.pid()), 1024, 7);
    assert_blocks_of(report.process(other.pid()), 7, 1024);
    assert_eq!(report.process(one.pid()).totals.exact(), of_one);
    assert_eq!(report.process(other.pid()).totals.exact(), of_other);
    one.assert_running();
    other.assert_running();
}

/// Returns the start time of a process in ticks: its PID could be reused.
fn started(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let behind_name = stat.rsplit_once(") ").expect("names are in parentheses").1;
    behind_name.split_ascii_whitespace().nth(19).and_then(|field| field.parse().ok()).expect("a number")
}

/// Android's compatibility tests allocate 4153 bytes at the default interval: larger, and so never estimated.
#[test]
fn a_daemons_blocks_of_4153_bytes_are_counted_whole_and_it_is_not_restarted() {
    let daemon = name("daemon");
    let mut target = service(&daemon);
    let (pid, since) = (target.pid(), started(target.pid()));
    let mut heapbpf = Heapbpf::new(["--cmdline", &daemon, "--interval", "4096", "-o", "out.json"]);
    let session = heapbpf.start();
    target.work("keep 4153 999");
    target.work("churn 4153 5000");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    assert_eq!((report.targets.len(), report.targets[0].pid), (1, pid));
    let totals = report.targets[0].totals.estimates();
    for (count, bytes) in [(totals.alloc_count, totals.alloc_bytes), (totals.live_count, totals.live_bytes)] {
        assert!(bytes > 0.0 && bytes % 4153.0 == 0.0 && bytes / 4153.0 == count, "{bytes} bytes in {count} blocks");
    }
    assert_eq!((totals.alloc_count, totals.live_count), (5999.0, 999.0));
    target.assert_running();
    assert_eq!(started(pid), since, "it is another process");
}

/// Checks which of two running processes, `name` and `name@1.2.3`, a pattern matches.
#[track_caller]
fn check_running(pattern: impl Fn(&str) -> String, finds: [bool; 2]) {
    static NAMES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let plain = format!("{}-{}", name("found"), NAMES.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut targets = [service(&plain), service(&format!("/system/bin/{plain}@1.2.3"))];
    let mut heapbpf = Heapbpf::new(["--cmdline", &pattern(&plain), "--interval", "1", "-o", "out.json"]);
    let session = heapbpf.start();
    for target in &mut targets {
        target.work("keep 1024 10");
    }
    for (target, is_found) in targets.iter().zip(finds) {
        assert_eq!(!changed_code(target.pid()).is_empty(), is_found, "probes in {}", target.pid());
    }
    // A recording of no process is incomplete.
    let _ = session.interrupt().expect_code(if finds.contains(&true) { 0 } else { 3 });
    let report = heapbpf.report("out.json");
    assert_eq!(report.targets.len(), finds.iter().filter(|is_found| **is_found).count());
    assert!(report.health.lost.values().all(|count| *count == 0), "{:?}", report.health.lost);
    for (target, is_found) in targets.iter_mut().zip(finds) {
        target.assert_running();
        let process = report.targets.iter().find(|process| process.pid == target.pid());
        assert_eq!(process.is_some(), is_found);
        assert!(process.is_none_or(|process| process.totals.exact() == Counts::kept(10, 10 * 1024)), "{process:?}");
    }
}

#[test]
fn a_name_matches_running_processes_with_and_without_version() {
    check_running(str::to_owned, [true, true]);
    // heapprofd truncates patterns as well. Here, a pattern with a version matches this version only.
    check_running(|name| format!("{name}@1.2.3"), [false, true]);
    check_running(|name| format!("{name}@1.2.4"), [false, false]);
    check_running(|name| format!("/system/bin/{name}@*"), [false, true]);
}

/// heapprofd's own tests omit this on Linux.
#[test]
fn a_name_matches_a_started_process_with_version_from_its_first_block() {
    let name = name("starts");
    let mut heapbpf = Heapbpf::new(["-v", "--cmdline", &name, "--interval", "1", "-o", "out.json"]);
    let mut session = heapbpf.start();
    let mut target = Target::spawn(Command::new(build("family.c")).arg0(format!("{name}@1.2.3")));
    session.wait_for(&format!("process {} ", target.pid()));
    target.work("keep 1024 10");
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(target.pid());
    assert_eq!((report.targets.len(), process.beginning.origin.as_str()), (1, "exec"));
    let functions = process.exact_by_leaf();
    assert_eq!(functions["keeps"], Counts::kept(10, 10 * 1024));
    // On a busy machine it may not have been stopped in time, and then the report does not claim it.
    let begins = functions.get("begins").copied().unwrap_or_default();
    assert!(
        begins == Counts::kept(7, 7007) || !process.beginning.from_first_call,
        "{begins:?}: {:?}",
        process.beginning
    );
}
