//! Processes that heapbpf has stopped when SIGSTOP stops heapbpf itself: they go on.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use heapbpf_tests::heapbpf::{Heapbpf, Session};
use heapbpf_tests::kernel::{self, wait_until};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::Target;

/// Attempts to stop heapbpf while it has stopped a process.
const TRIES: usize = 50;

fn is_traced(pid: u32) -> bool {
    // It may have exited.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('t'))
}

/// Stops heapbpf when it has stopped a process, if it still holds the process then. Returns whether it did.
fn halt_when_it_holds(session: &mut Session, mut held: impl FnMut() -> Option<u32>) -> bool {
    let mut pid = None;
    wait_until("heapbpf holds a process", || {
        // The stop takes milliseconds, and the caller's period is longer.
        pid = (0..10_000).find_map(|_| held());
        pid.is_some()
    });
    session.halt();
    pid.is_some_and(is_traced)
}

#[test]
fn the_inventory_of_a_suspended_heapbpf_lets_the_process_go() {
    for _ in 0..TRIES {
        let mut command = Command::new(Recipe::of("aged.c").build());
        let mut target = Target::spawn(command.args(["200000", "2000", "1"]));
        let pid = target.pid();
        let mut heapbpf = Heapbpf::with_inventory(pid, "--inventory-stop-max 100s -o out.json");
        let mut session = heapbpf.spawn();
        let is_held = halt_when_it_holds(&mut session, || is_traced(pid).then_some(pid));
        wait_until("the process goes on", || !is_traced(pid));
        target.run_command("new 10 1000");
        session.resume();
        session.wait_for("heapbpf: recording");
        let _ = session.interrupt().expect_code(0);
        target.assert_running();
        let error =
            heapbpf.report("out.json").process(pid).inventory.as_ref().and_then(|inventory| inventory.error.clone());
        // It may have been copied before heapbpf stopped.
        if is_held && error.is_some() {
            let error = error.unwrap_or_default();
            assert!(error.contains("suspended (by SIGSTOP)"), "{error}");
            return;
        }
    }
    panic!("heapbpf was not stopped in time in {TRIES} attempts");
}

/// A shell that starts programs and prints a line after each. Killed when dropped, with its children.
struct Starter(Child);

impl Drop for Starter {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        // It may have exited.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_a_suspended_heapbpf_holds_at_its_start_goes_on() {
    for hold in ["execs", "forks"] {
        let is_shown = (0..TRIES).any(|_| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "while :; do /bin/true; echo line; done"]).stdout(Stdio::piped()).process_group(0);
            let mut starter = Starter(command.spawn().expect("there is a shell"));
            let mut lines = BufReader::new(starter.0.stdout.take().expect("it is piped")).lines();
            let pid = starter.0.id();
            let mut heapbpf = Heapbpf::of(pid, &format!("--hold {hold} -o out.json"));
            let mut session = heapbpf.spawn();
            // Nothing blocks it: another thread reads its lines.
            let (sender, count) = std::sync::mpsc::channel();
            let reader =
                std::thread::spawn(
                    move || while lines.next().is_some_and(|line| line.is_ok()) && sender.send(()).is_ok() {},
                );
            session.wait_for("heapbpf: recording");
            let is_held =
                halt_when_it_holds(&mut session, || kernel::children(pid).into_iter().find(|&child| is_traced(child)));
            count.try_iter().for_each(drop);
            for _ in 0..20 {
                count.recv_timeout(std::time::Duration::from_secs(120)).expect("programs go on");
            }
            session.resume();
            let outcome = session.interrupt();
            assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
            drop(starter);
            drop(count);
            reader.join().expect("it does not panic");
            is_held
        });
        assert!(is_shown, "{hold}: heapbpf was not stopped in time in {TRIES} attempts");
    }
}

/// The kernel gives up the verification of a program when a signal is pending.
#[test]
fn stops_while_programs_are_verified_do_not_fail_the_recording() {
    let mut target = Target::start("slots.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let mut session = heapbpf.spawn();
    // Fewer than the attempts at each program, so that the last of them is not interrupted.
    for _ in 0..60 {
        session.halt();
        session.resume();
        thread::sleep(Duration::from_millis(10));
    }
    session.wait_for("heapbpf: recording");
    target.work("+1:1000");
    let _ = session.interrupt().expect_counted();
    assert_eq!(heapbpf.report("out.json").targets.len(), 1);
}
