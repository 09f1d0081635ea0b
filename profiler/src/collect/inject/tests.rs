//! Tests with programs that wait in a system call when they are copied.

use rustix::process::Signal;

use crate::collect::stop::Stopped;
use crate::collect::tests::fixture::Subject;
use crate::linux::proc::maps::regions;

/// Makes a call that waits. Writes its result, whether it was interrupted, and whether the handler of SIGUSR1 has run.
const WAITS: &str = r#"
#include <sys/epoll.h>
#include <time.h>
static volatile int handled;
static void handle(int signal) { handled = 1; }
int main(int count, char **arguments) {
    struct sigaction action = { .sa_handler = handle, .sa_flags = count > 2 ? SA_RESTART : 0 };
    struct epoll_event event;
    struct timespec time = { 1000, 0 };
    int result = 0, queue = epoll_create1(0);
    char byte;
    sigaction(SIGUSR1, &action, NULL);
    say("ready");
    switch (*arguments[1]) {
    case 'p': result = pause(); break;
    case 'e': result = epoll_wait(queue, &event, 1, -1); break;
    case 'r': result = read(0, &byte, 1); break;
    case 's': result = nanosleep(&time, NULL); break;
    }
    say("%d %d %d", result, errno == EINTR, handled);
}
"#;

/// A program that waits.
fn waiting(arguments: &[&str]) -> Subject {
    let mut subject = Subject::start_with(WAITS, arguments, "gcc");
    assert_eq!(subject.line(), "ready");
    subject.wait_for("State", "S");
    subject
}

/// Copies the program, calling `meanwhile` before it continues.
fn copy(subject: &Subject, meanwhile: impl FnOnce()) {
    let stopped = Stopped::new(subject.pid(), Vec::new()).unwrap_or_else(|error| panic!("{error}"));
    let copy = stopped.fork(&regions(subject.pid()).expect("readable")).unwrap_or_else(|error| panic!("{error}"));
    meanwhile();
    drop(copy);
    stopped.release();
}

#[test]
fn a_signal_that_arrives_during_a_copy_interrupts_the_call_as_always() {
    for call in ["pause", "epoll_wait", "read", "sleep"] {
        for _ in 0..3 {
            let mut subject = waiting(&[call]);
            copy(&subject, || subject.send(Signal::USR1));
            assert_eq!(subject.line(), "-1 1 1", "{call}");
        }
    }
}

#[test]
fn a_call_restarts_after_a_handler_that_asks_for_it() {
    let mut subject = waiting(&["read", "restart"]);
    copy(&subject, || subject.send(Signal::USR1));
    subject.say();
    assert_eq!(subject.line(), "1 0 1");
}

#[test]
fn a_call_with_a_timeout_continues_with_the_time_that_is_left() {
    let subject = waiting(&["sleep"]);
    for _ in 0..3 {
        copy(&subject, || ());
        subject.wait_for("State", "S");
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", subject.pid())).expect("it lives");
        assert!(call.starts_with(&format!("{} ", libc::SYS_restart_syscall)), "{call}");
    }
}
