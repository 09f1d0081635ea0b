//! What a look does to the process that is looked at: nothing that it could tell, however the look ends.

use std::process::Command;
use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::{assert_no_probes, state, tracer};
use heapbpf_tests::target::{Target, run};
use heapbpf_tests::unreachable::Sum;
use rustix::process::{Pid, Signal, kill_process};

use crate::looks::look;
use crate::{CLEAN, FAILED, LEAKS};

/// Only a hang takes this long.
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

/// A process with so much memory that a look at it takes long, and a look that has begun.
#[track_caller]
fn begin(heapbpf: &mut Heapbpf, target: &Target) -> Session {
    let session = heapbpf.spawn();
    wait_until("the look", || tracer(target.pid()).is_some());
    session
}

fn large() -> (Target, Heapbpf) {
    let mut target = Target::start("leaks/holder.c");
    target.order("fill 512");
    let pid = target.pid().to_string();
    (target, Heapbpf::new(["leaks", "--pid", &pid, "-o", "check.json"]))
}

#[test]
fn a_process_that_is_killed_while_it_is_looked_at() {
    let (mut target, mut heapbpf) = large();
    let session = begin(&mut heapbpf, &target);
    target.kill();
    let text = session.wait().expect_error(FAILED);
    assert!(text.contains(&format!("`{}`", target.pid())) && text.contains("ended"), "{text}");
}

#[test]
fn a_process_runs_on_when_the_look_is_killed() {
    let (mut target, mut heapbpf) = large();
    begin(&mut heapbpf, &target).kill();
    wait_until("the release", || tracer(target.pid()).is_none());
    target.order("hold global");
    target.order("clear global");
    let check = look(&target, "", LEAKS);
    assert_eq!(check.leaked.count, 1);
    target.exit(0);
}

#[test]
fn signals_that_come_meanwhile_and_that_wait_are_delivered() {
    for snapshot in ["read", "fork"] {
        let (mut target, _) = large();
        target.order("block");
        signal(&target, Signal::USR1);
        let pid = target.pid().to_string();
        let mut heapbpf = Heapbpf::new(["leaks", "--pid", &pid, "-o", "check.json", "--snapshot", snapshot]);
        let session = heapbpf.spawn();
        let mut sent = 0;
        wait_until("the look", || tracer(target.pid()).is_some());
        while tracer(target.pid()).is_some() && sent < 200 {
            run(Command::new("kill").args(["-34", &pid]));
            sent += 1;
        }
        let _ = session.wait().expect_code(CLEAN);
        assert_eq!(target.ask("count"), [format!("1 {sent}")], "{snapshot}");
        target.exit(0);
    }
}

#[test]
fn a_stopped_process_stays_stopped() {
    let mut target = Target::start("leaks/holder.c");
    target.order("hold tls");
    target.order("clear tls");
    signal(&target, Signal::STOP);
    wait_until("the stop", || state(target.pid()) == 'T');
    assert_eq!(look(&target, "", LEAKS).leaked, Sum::of(1, 264));
    assert_eq!(state(target.pid()), 'T');
    // It would have to run to be copied.
    let pid = target.pid().to_string();
    let text = Heapbpf::new(["leaks", "--pid", &pid, "--snapshot", "fork"]).run().expect_error(FAILED);
    assert!(
        text.contains(&format!("`{pid}`")) && text.contains("stopped") && text.contains("--snapshot read"),
        "{text}"
    );
    assert_eq!(state(target.pid()), 'T');
    signal(&target, Signal::CONT);
    target.order("free tls");
    assert_eq!(look(&target, "--snapshot fork", CLEAN).leaked, Sum::default());
    target.exit(0);
}

#[test]
fn what_is_made_while_it_is_watched_has_a_stack() {
    let mut target = Target::start("leaks/holder.c");
    for order in ["hold stack", "clear stack", "hold register", "hold tls"] {
        target.order(order);
    }
    let pid = target.pid().to_string();
    let mut heapbpf = Heapbpf::new(["leaks", "--pid", &pid, "--watch", "1h", "-o", "check.json"]);
    let mut session = heapbpf.spawn();
    session.wait_for("heapbpf: watching");
    for order in ["hold global", "clear global", "clear tls", "free register", "hold register"] {
        target.order(order);
    }
    let _ = session.interrupt().expect_code(LEAKS);
    let check = heapbpf_tests::unreachable::Check::read(&heapbpf.file("check.json"));
    let leak = check.leak_of("for_global");
    assert_eq!((leak.size_bytes, leak.watched, leak.functions()[0]), (256, true, "for_global"));
    assert!(leak.age_ns.is_some());
    let older: Vec<_> =
        check.leaks.iter().filter(|leak| !leak.watched).map(|leak| (leak.size_bytes, leak.age_ns)).collect();
    assert_eq!(older, [(264, None), (264, None)]);
    assert_eq!((check.leak_count, check.leaked), (3, Sum::of(3, 256 + 264 + 264)));
    let [heap] = check.heaps.as_slice() else { panic!("{:?}", check.heaps) };
    assert_eq!((heap.name.as_str(), heap.precision.as_str()), ("libc", "walked"));
    target.order("free stack");
    assert_no_probes(target.pid());
    target.exit(0);
}
