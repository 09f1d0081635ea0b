//! Tests with real processes.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use heapbpf_tests::kernel::wait_until;
use rustix::process::Signal;

use super::super::Method;
use super::*;
use crate::collect::tests::fixture::{Subject, collect_here};
use crate::collect::{ProcessCopy, StoppedProcess};

impl StoppedProcess for Stopped {
    fn living_thread(&self) -> Pid {
        self.living_thread()
    }

    fn states(&self) -> Result<Vec<ThreadState>, CollectError> {
        self.states()
    }

    fn fork(&mut self, mapped: &[Region]) -> Result<Box<dyn ProcessCopy>, CollectError> {
        let copy: Result<ForkCopy, ForkError> = Self::fork(self, mapped);
        Ok(Box::new(copy?))
    }

    fn release(self: Box<Self>) -> Result<Duration, CollectError> {
        Ok((*self).release())
    }
}

/// If no time is left, all threads resume, whether they had stopped or not.
#[test]
fn a_stop_that_takes_too_long_is_abandoned() {
    let mut subject = Subject::with_threads(100);
    let limit = StopLimit::begin(Duration::ZERO);
    let error = Stopped::new_within(subject.pid(), Vec::new(), Some(limit), &|| true).expect_err("no time").to_string();
    assert!(error.contains("was stopped for 0ns and continues to run"), "{error}");
    let tracers = |tid| stat::status(subject.pid(), tid).and_then(|status| status.tracer);
    let listed = stat::threads(subject.pid()).expect("it runs");
    assert_eq!((listed.len(), listed.into_iter().find_map(tracers)), (100, None));
    assert!(!states_of_all(subject.pid()).contains(&'t'));
    subject.check_answers();
}

fn stopped(subject: &Subject) -> Stopped {
    Stopped::new(subject.pid(), Vec::new()).unwrap_or_else(|error| panic!("{error}"))
}

fn states_of_all(pid: Pid) -> Vec<char> {
    let tids = stat::threads(pid).expect("it runs");
    tids.into_iter().filter_map(|tid| Some(stat::status(pid, tid)?.state)).collect()
}

/// Checks that every thread is stopped, has registers, and resumes.
fn check_capture(count: usize) {
    let mut subject = Subject::with_threads(count);
    let listed: BTreeSet<Tid> = stat::threads(subject.pid()).expect("it runs").into_iter().collect();
    assert_eq!(listed.len(), count);
    let stopped = stopped(&subject);
    let captured: BTreeSet<Tid> = stopped.held().iter().map(|held| held.tracee.tid()).collect();
    assert_eq!(captured, listed);
    assert_eq!(states_of_all(subject.pid()), vec!['t'; count]);
    let states = stopped.states().expect("it runs");
    assert!(states.iter().all(|state| state.stack_pointer.0 != 0 && state.thread_pointer.0 != 0));
    let ends: BTreeSet<TargetAddr> = states.iter().map(|state| state.stack_pointer).collect();
    assert_eq!(ends.len(), count, "each has a stack");
    let released = stopped.release_all();
    assert!(released.pause > Duration::ZERO && released.is_complete);
    assert!(!states_of_all(subject.pid()).contains(&'t'));
    subject.check_answers();
}

#[test]
fn one_two_ten_and_1024_threads_are_captured() {
    for count in [1, 2, 10, 1024] {
        check_capture(count);
    }
}

#[test]
fn killing_a_stopped_process_is_an_error() {
    let mut subject = Subject::with_threads(10);
    let stopped = stopped(&subject);
    subject.send(Signal::KILL);
    subject.wait_for("State", "Z");
    assert!(matches!(stopped.states(), Err(CollectError::Ended(pid)) if pid == subject.pid()));
    drop(stopped);
    assert_eq!(subject.end(), None, "killed, and left to be reaped by its parent");
}

#[test]
fn signals_during_a_stop_are_delivered_once_each() {
    const COUNTS: &str = r#"
        static volatile int counts[3], order[200], next;
        static void count(int signal, siginfo_t *info, void *unused) {
            if (signal == SIGRTMIN) order[next++] = info->si_value.sival_int;
            counts[signal == SIGUSR1 ? 0 : signal == SIGUSR2 ? 1 : 2]++;
        }
        int main(void) {
            struct sigaction action = { .sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART };
            sigaction(SIGUSR1, &action, NULL); sigaction(SIGUSR2, &action, NULL); sigaction(SIGRTMIN, &action, NULL);
            say("ready");
            for (;;) {
                wait_for_word();
                int sorted = 1;
                for (int i = 0; i < next; i++) sorted &= order[i] == i;
                say("%x %x %x %x", counts[0], counts[1], counts[2], sorted);
            }
        }"#;
    let mut subject = Subject::start(COUNTS);
    assert_eq!(subject.line(), "ready");
    for round in 1..=20_u64 {
        // One signal is pending when the process is stopped, the others arrive afterwards.
        subject.send(Signal::USR1);
        let stopped = stopped(&subject);
        assert!(
            stopped.held().iter().all(|held| !matches!(held.stop, Stop::Signal(_))),
            "it would be lost with heapbpf"
        );
        subject.send(Signal::USR2);
        for value in 0..5 {
            let arguments = ["-q", &((round - 1) * 5 + value).to_string(), "-s", "RTMIN", &subject.pid().to_string()];
            let sent = std::process::Command::new("/usr/bin/kill").args(arguments).status().expect("kill is there");
            assert!(sent.success());
        }
        drop(stopped);
        subject.say();
        assert_eq!(subject.numbers(), [round, round, 5 * round, 1]);
    }
}

#[test]
fn a_group_stop_persists() {
    let mut subject = Subject::with_threads(1);
    subject.send(Signal::STOP);
    subject.wait_for("State", "T (stopped)");
    for _ in 0..3 {
        let stopped = stopped(&subject);
        assert_eq!(stopped.held().len(), 1);
        assert!(stopped.states().is_ok());
        drop(stopped);
        subject.wait_for("State", "T (stopped)");
    }
    // A SIGSTOP that arrives during the ptrace stop also takes effect.
    subject.send(Signal::CONT);
    subject.check_answers();
    let stopped = stopped(&subject);
    subject.send(Signal::STOP);
    drop(stopped);
    subject.wait_for("State", "T (stopped)");
    subject.send(Signal::CONT);
    subject.check_answers();
}

#[test]
fn a_panic_resumes_the_process() {
    let mut subject = Subject::with_threads(1);
    let pid = subject.pid();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _stopped = stopped(&subject);
        assert_eq!(states_of_all(pid), ['t']);
        std::panic::resume_unwind(Box::new("midway"));
    }));
    assert!(caught.is_err());
    subject.check_answers();
}

#[test]
fn a_process_whose_first_thread_has_exited_is_stopped_and_survives() {
    const LEADERLESS: &str = r#"
        static void *run(void *unused) { say("ready"); for (;;) { wait_for_word(); say("on"); } return unused; }
        int main(void) {
            pthread_t thread;
            pthread_create(&thread, NULL, run, NULL);
            pthread_exit(NULL);
        }"#;
    let mut subject = Subject::start(LEADERLESS);
    assert_eq!(subject.line(), "ready");
    subject.wait_for("State", "Z");
    for _ in 0..3 {
        let stopped = stopped(&subject);
        assert_eq!(stopped.held().len(), 1);
        assert!(!stopped.release_all().is_complete, "the first thread, when it exited, may have been traced");
        subject.check_answers();
    }
    let collected = collect_here(subject.pid(), Method::Read, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let stack = collected.threads[0].stack_pointer;
    assert!(collected.memory.word(stack).is_some(), "its memory is found without the first thread");
}

#[test]
fn short_lived_threads_are_stopped_and_continue() {
    const CHURN: &str = r#"
        static void *end(void *unused) { return unused; }
        static void *churn(void *unused) {
            for (;;) {
                pthread_t threads[8];
                for (int i = 0; i < 8; i++) if (pthread_create(&threads[i], NULL, end, NULL)) abort();
                for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
            }
            return unused;
        }
        int main(void) {
            pthread_t thread;
            pthread_create(&thread, NULL, churn, NULL);
            pthread_create(&thread, NULL, churn, NULL);
            say("ready");
            for (;;) { wait_for_word(); say("on"); }
        }"#;
    let mut subject = Subject::start(CHURN);
    assert_eq!(subject.line(), "ready");
    for _ in 0..200 {
        let stopped = stopped(&subject);
        assert!(stopped.held().len() >= 3);
        let states = states_of_all(subject.pid());
        assert!(states.iter().all(|state| matches!(state, 't' | 'Z' | 'X')), "{states:?}");
        drop(stopped);
        subject.check_answers();
    }
}

#[test]
fn a_process_that_exits_while_it_is_stopped_does_not_hang() {
    const ENDS: &str = r#"
        static void *wait(void *unused) { for (;;) pause(); return unused; }
        int main(void) {
            for (int i = 0; i < 30; i++) { pthread_t thread; pthread_create(&thread, NULL, wait, NULL); }
            say("ready");
            wait_for_word();
            _exit(7);
        }"#;
    for _ in 0..20 {
        let mut subject = Subject::start(ENDS);
        assert_eq!(subject.line(), "ready");
        subject.say();
        match Stopped::new(subject.pid(), Vec::new()) {
            Ok(stopped) => drop(stopped),
            Err(CollectError::Ended(_) | CollectError::Proc(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(subject.end(), Some(7));
    }
}

#[test]
fn an_existing_tracer_is_named() {
    let mut subject = Subject::with_threads(1);
    let pid = subject.pid();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            let tracee = Tracee::seize(pid).expect("it is not traced");
            sender.send(Tid(rustix::thread::gettid().as_raw_pid().unsigned_abs())).expect("awaited");
            let _ = ended.recv();
            let _ = tracee;
        });
        let tracer = receiver.recv().expect("it traces");
        let error = Stopped::new(pid, Vec::new()).expect_err("it is traced");
        assert!(matches!(error, CollectError::Traced { tracer: named, .. } if named == tracer), "{error}");
        drop(end);
    });
    // The exit of the tracer detaches its tracee.
    subject.wait_for("TracerPid", "0");
    assert_eq!(stopped(&subject).held().len(), 1);
    subject.check_answers();
}

#[test]
fn a_thread_in_an_uninterruptible_wait_is_named() {
    const WAITS: &str = r#"
        int main(void) {
            if (vfork() == 0) {
                static const char text[] = "ready\n";
                if (write(1, text, sizeof text - 1) > 0) wait_for_word();
                _exit(0);
            }
            say("on");
            wait_for_word();
            say("on");
        }"#;
    let mut subject = Subject::start(WAITS);
    assert_eq!(subject.line(), "ready");
    let pid = subject.pid();
    // The process is stopped by a separate thread, whose exit detaches its tracees.
    let error = std::thread::spawn(move || Stopped::new(pid, Vec::new()).map(drop)).join().expect("no panic");
    let error = error.expect_err("it waits in the kernel");
    assert!(matches!(error, CollectError::Stuck { tid, .. } if tid.0 == pid.0), "{error}");
    subject.check_answers();
    subject.check_answers();
}

#[test]
fn processes_that_cannot_be_stopped_are_reported() {
    let stop = |pid| Stopped::new(Pid(pid), Vec::new()).map(drop).expect_err("refused").to_string();
    assert!(stop(std::process::id()).contains("heapbpf itself"));
    assert!(stop(2).contains("kernel thread"), "{}", stop(2));
    assert!(stop(1 << 22).contains("no process `4194304`"));
}

#[test]
fn an_exec_that_waits_for_stopped_threads_does_not_hang() {
    const EXECS: &str = r#"
        static void *wait(void *unused) { say("%x", gettid()); for (;;) pause(); return unused; }
        static void *exec(void *unused) {
            char *const arguments[] = { "sh", "-c", "read word; echo on", NULL };
            wait_for_word();
            execv("/bin/sh", arguments);
            return unused;
        }
        int main(void) {
            pthread_t thread;
            pthread_create(&thread, NULL, wait, NULL);
            pthread_create(&thread, NULL, exec, NULL);
            for (;;) pause();
        }"#;
    let mut subject = Subject::start(EXECS);
    let tid = Tid(u32::try_from(subject.numbers()[0]).expect("a thread"));
    let tracee = Tracee::seize_thread(tid, Options::default()).expect("not traced");
    tracee.interrupt().expect("seized");
    let stop = tracee.wait(Duration::from_secs(10)).expect("seized").expect("it stops");
    subject.say();
    let has_exited = || stat::status(subject.pid(), tid).is_none_or(|status| status.state == 'Z');
    wait_until("the thread has exited", has_exited);
    let held = vec![StoppedThread { tracee, stop, release: Release::Detach }];
    let stopped = Stopped::new(subject.pid(), held).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(stopped.held().iter().map(|held| held.tracee.tid().0).collect::<Vec<_>>(), [subject.pid().0]);
    assert_eq!(stopped.states().expect("it runs").len(), 1);
    drop(stopped);
    subject.check_answers();
    assert_eq!(subject.end(), Some(0));
}
