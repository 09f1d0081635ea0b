//! Tests with programs that wait in a system call when they are copied.

use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::maps::{RegionKind, regions};
use rustix::process::Signal;

use crate::collect::stop::Stopped;
use crate::collect::tests::fixture::Subject;

/// A program that makes a call that waits. It writes the call's result, whether it was interrupted, and whether the handler of
/// SIGUSR1 has run.
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

/// Starts a program and waits until it waits in its call.
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

/// A program that goes deep into its stack and returns, so that all of the stack's lowest pages have been used.
const DEEP: &str = r#"
static volatile char *lowest;
__attribute__((noinline)) static int deepens(int left) {
    volatile char frame[4096];
    memset((void *)frame, 1, sizeof frame);
    if (left == 0) lowest = (volatile char *)(((unsigned long)frame - 256) & ~4095ul);
    return left == 0 ? 0 : deepens(left - 1) + frame[left];
}
int main(void) {
    int sum = deepens(100);
    for (int i = 0; i < 8192; i++) lowest[i] = 1;
    say("%d", sum);
    wait_for_word();
    say("on");
}
"#;

/// Returns the start and the contents of the first thread's stack.
fn stack(pid: Pid) -> (u64, Vec<u8>) {
    let mapped = regions(pid).expect("it lives");
    let stack = mapped.iter().find(|region| region.kind == RegionKind::Stack).expect("it has one");
    (stack.start.0, super::read(pid, stack.start.0, stack.size_bytes()))
}

#[test]
fn a_stack_without_unused_memory_is_extended_once() {
    let mut subject = Subject::start_with(DEEP, &[], "gcc");
    assert_eq!(subject.line(), "100");
    subject.wait_for("State", "S");
    let (start, bytes) = stack(subject.pid());
    copy(&subject, || ());
    let extended = stack(subject.pid());
    let added = usize::try_from(start - extended.0).expect("it is lower");
    assert!(added > 0 && added < 65_536, "{added}");
    assert_eq!((extended.1[..added].iter().all(|&byte| byte == 0), &extended.1[added..]), (true, &bytes[..]));
    for _ in 0..3 {
        copy(&subject, || ());
        assert_eq!(stack(subject.pid()), extended);
    }
    subject.check_answers();
}

#[test]
fn a_copy_changes_no_mapping() {
    let subject = waiting(&["pause"]);
    let (mapped, before) = (regions(subject.pid()).expect("it lives"), stack(subject.pid()));
    copy(&subject, || ());
    assert_eq!((regions(subject.pid()).expect("it lives"), stack(subject.pid())), (mapped, before));
}
