//! Effects of a heap snapshot on the process: none that it could notice, however the snapshot ends.

use std::process::Command;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::{assert_no_probes, state, tracer};
use heapbpf_tests::target::{Target, run};
use heapbpf_tests::unreachable::Sum;
use rustix::process::{Pid, Signal, kill_process};

use super::runs::run_check;
use super::{CLEAN, FAILED, LEAKS};

/// Timeout for hangs.
const WITHIN: Duration = Duration::from_secs(120);

fn signal(target: &Target, signal: Signal) {
    let pid = i32::try_from(target.pid()).ok().and_then(Pid::from_raw).expect("pids are positive");
    kill_process(pid, signal).expect("it runs");
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} does not come");
        std::thread::yield_now();
    }
}

/// Starts a heap snapshot of a process with so much memory that it takes long.
#[track_caller]
fn begin(heapbpf: &mut Heapbpf, target: &Target) -> Session {
    let session = heapbpf.spawn();
    wait_until("the snapshot", || tracer(target.pid()).is_some());
    session
}

fn large() -> (Target, Heapbpf) {
    let mut target = Target::start("leaks/holder.c");
    target.run_command("fill 512");
    let pid = target.pid().to_string();
    (target, Heapbpf::new(["leaks", "--pid", &pid, "-o", "check.json"]))
}

#[test]
fn a_process_is_killed_during_a_snapshot() {
    let (mut target, mut heapbpf) = large();
    let session = begin(&mut heapbpf, &target);
    target.kill();
    let text = session.wait().expect_error(FAILED);
    assert!(text.contains(&format!("`{}`", target.pid())) && text.contains("exited"), "{text}");
}

#[test]
fn a_process_continues_when_heapbpf_is_killed_during_a_snapshot() {
    let (mut target, mut heapbpf) = large();
    begin(&mut heapbpf, &target).kill();
    wait_until("the release", || tracer(target.pid()).is_none());
    target.run_command("hold global");
    target.run_command("clear global");
    let check = run_check(&target, "", LEAKS);
    assert_eq!(check.leaked.count, 1);
    target.exit(0);
}

#[test]
fn signals_sent_during_a_snapshot_are_delivered() {
    for snapshot in ["read", "fork"] {
        let (mut target, _) = large();
        target.run_command("block");
        signal(&target, Signal::USR1);
        let pid = target.pid().to_string();
        let mut heapbpf = Heapbpf::new(["leaks", "--pid", &pid, "-o", "check.json", "--snapshot", snapshot]);
        let session = heapbpf.spawn();
        let mut sent = 0;
        wait_until("the snapshot", || tracer(target.pid()).is_some());
        while tracer(target.pid()).is_some() && sent < 200 {
            run(Command::new("kill").args(["-34", &pid]));
            sent += 1;
        }
        let _ = session.wait().expect_code(CLEAN);
        assert_eq!(target.query("count"), [format!("1 {sent}")], "{snapshot}");
        target.exit(0);
    }
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut target = Target::start("leaks/holder.c");
    target.run_command("hold tls");
    target.run_command("clear tls");
    signal(&target, Signal::STOP);
    wait_until("the stop", || state(target.pid()) == 'T');
    assert_eq!(run_check(&target, "", LEAKS).leaked, Sum::of(1, 264));
    assert_eq!(state(target.pid()), 'T');
    // It would have to run to fork.
    let pid = target.pid().to_string();
    let text = Heapbpf::new(["leaks", "--pid", &pid, "--snapshot", "fork"]).run().expect_error(FAILED);
    assert!(
        text.contains(&format!("`{pid}`")) && text.contains("stopped") && text.contains("--snapshot read"),
        "{text}"
    );
    assert_eq!(state(target.pid()), 'T');
    signal(&target, Signal::CONT);
    target.run_command("free tls");
    assert_eq!(run_check(&target, "--snapshot fork", CLEAN).leaked, Sum::default());
    target.exit(0);
}

#[test]
fn blocks_allocated_while_recording_have_a_stack() {
    let mut target = Target::start("leaks/holder.c");
    for order in ["hold stack", "clear stack", "hold register", "hold tls"] {
        target.run_command(order);
    }
    let pid = target.pid().to_string();
    let mut heapbpf = Heapbpf::new(["leaks", "--pid", &pid, "--watch", "1h", "-o", "check.json"]);
    let mut session = heapbpf.spawn();
    session.wait_for("heapbpf: recording");
    for order in ["hold global", "clear global", "clear tls", "free register", "hold register"] {
        target.run_command(order);
    }
    let _ = session.interrupt().expect_code(LEAKS);
    let check = heapbpf_tests::unreachable::Check::read(&heapbpf.file("check.json"));
    let leak = check.leak_of("for_global");
    assert_eq!((leak.size_bytes, leak.watched, leak.functions()[0]), (256, true, "for_global"));
    assert!(leak.age_ns.is_some());
    let older: Vec<_> = check
        .leaks
        .iter()
        .filter(|leak| !leak.watched)
        .map(|leak| (leak.size_bytes, leak.age_ns, leak.similar, leak.addresses().len()))
        .collect();
    assert_eq!(older, [(264, None, Sum::of(1, 264), 2)]);
    assert_eq!((check.leak_count, check.leaked), (2, Sum::of(3, 256 + 264 + 264)));
    let [heap] = check.heaps.as_slice() else { panic!("{:?}", check.heaps) };
    assert_eq!((heap.name.as_str(), heap.precision.as_str()), ("libc", "walked"));
    target.run_command("free stack");
    assert_no_probes(target.pid());
    target.exit(0);
}
