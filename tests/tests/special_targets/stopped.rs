//! Targets that are traced, stopped or frozen by others.

use std::fs;
use std::process::{Child, Command, Stdio};

use heapbpf_tests::cgroup::Group;
use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::{state, tracer, wait_until};
use heapbpf_tests::report::Counts;
use heapbpf_tests::target::Target;
use rustix::process::{Pid, Signal, kill_process};

use super::{FAILED, assert_unharmed, leaks, record_exactly};

/// Another tracer of a process. Detaches when dropped.
struct Tracer(Child);

impl Tracer {
    #[track_caller]
    fn attach(command: &mut Command, pid: u32) -> Self {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        wait_until("it traces", || tracer(pid).is_some());
        Self(child)
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        // gdb exits at the end of its input, strace at SIGTERM.
        drop(self.0.stdin.take());
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Fails unless a check for leaks is rejected with these words.
#[track_caller]
fn assert_rejected(pid: u32, arguments: &str, words: &[&str]) {
    let text = leaks(pid, arguments).expect_error(FAILED);
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn a_target_traced_by_strace_is_recorded_and_cannot_be_stopped_by_leaks() {
    let mut target = Target::start("service.c");
    let pid = target.pid();
    let strace = Tracer::attach(Command::new("strace").args(["-f", "-o", "/dev/null", "-p", &pid.to_string()]), pid);
    record_exactly(&mut target);
    assert_rejected(pid, "", &["traced", "`strace`"]);
    assert_rejected(pid, "--snapshot fork", &["traced", "`strace`"]);
    drop(strace);
    wait_until("strace has detached", || tracer(pid).is_none());
    assert_unharmed(&mut target);
}

#[test]
fn a_target_stopped_by_gdb() {
    let mut target = Target::start("service.c");
    let pid = target.pid();
    let gdb = Tracer::attach(Command::new("gdb").args(["-q", "-nx", "-p", &pid.to_string()]), pid);
    wait_until("gdb has stopped it", || state(pid) == 't');
    record_nothing(pid);
    assert_rejected(pid, "", &["traced", "`gdb`"]);
    assert_eq!(state(pid), 't', "it is gdb's to let it run");
    drop(gdb);
    wait_until("gdb has detached", || tracer(pid).is_none());
    assert_unharmed(&mut target);
}

/// Records a stopped target.
#[track_caller]
fn record_nothing(pid: u32) {
    let mut heapbpf = Heapbpf::of(pid, "--interval 1 --duration 1s -o out.json");
    let _ = heapbpf.run().expect_code(0);
    assert_eq!(heapbpf.report("out.json").process(pid).totals.exact(), Counts::default());
}

#[test]
fn a_target_stopped_by_job_control_stays_stopped() {
    let mut target = Target::start("service.c");
    let pid = target.pid();
    target.work("keep 1000 25");
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("pids are positive");
    kill_process(raw, Signal::STOP).expect("it runs");
    wait_until("it has stopped", || state(pid) == 'T');
    record_nothing(pid);
    let found = leaks(pid, "").expect_code(0);
    assert!(found.stdout.contains("25 allocations"), "{}", found.stdout);
    assert_rejected(pid, "--snapshot fork", &["stopped", "--snapshot read"]);
    assert_eq!(state(pid), 'T', "nobody has sent SIGCONT");
    kill_process(raw, Signal::CONT).expect("it is there");
    assert_unharmed(&mut target);
}

/// Records and checks a target in a frozen control group. It must stay frozen, and work after it is thawed.
#[track_caller]
fn check_frozen(group: &Group, file: &str, frozen: &str, thawed: &str, is_frozen: impl Fn(u32) -> bool) {
    let mut target = Target::start("service.c");
    let pid = target.pid();
    target.work("keep 1000 25");
    group.add(pid);
    let control = group.directory().join(file);
    let write =
        |text: &str| fs::write(&control, text).unwrap_or_else(|error| panic!("`{}`: {error}", control.display()));
    write(frozen);
    wait_until("it is frozen", || is_frozen(pid));
    record_nothing(pid);
    // Whether a frozen process can be stopped depends on the hierarchy's version.
    for arguments in ["", "--snapshot fork"] {
        let outcome = leaks(pid, arguments);
        let explained = outcome.stderr.contains("error: ") && outcome.stderr.contains(&format!("`{pid}`"));
        let code = outcome.status.code();
        assert!(code == Some(0) || code == Some(FAILED) && explained, "{outcome:?}");
    }
    wait_until("it is frozen again", || is_frozen(pid));
    write(thawed);
    assert_unharmed(&mut target);
}

#[test]
fn a_frozen_target() {
    let group = Group::unified(&format!("heapbpf-frozen-{}", std::process::id()));
    let events = group.directory().join("cgroup.events");
    let is_frozen = |_| fs::read_to_string(&events).is_ok_and(|events| events.contains("frozen 1"));
    check_frozen(&group, "cgroup.freeze", "1", "0", is_frozen);
}

#[test]
fn a_target_frozen_by_cgroup_v1() {
    // On a machine with version 2 only, the test above covers everything.
    let Some(group) = Group::of_hierarchy("freezer", &format!("heapbpf-frozen-{}", std::process::id())) else { return };
    check_frozen(&group, "freezer.state", "FROZEN", "THAWED", |pid| state(pid) == 'D');
}
