//! Tests with real programs that exit in many ways. At the exit, each must still have known data at a known address.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use heapbpf_linux::arch::SLEEPING;
use heapbpf_linux::signals::Inherited;
use heapbpf_tests::kernel::wait_until;
use rustix::process::{Signal, kill_process};

use super::super::*;
use crate::process::launch::shell_code;
use heapbpf_base::testing::Workshop;

/// Address at which the program stores [`MARK`] before it exits.
const MARK_ADDRESS: u64 = 0x1000_0000;
const MARK: [u8; 8] = *b"it is me";

/// A program whose first argument is the way to exit; further ones are a program to execute.
const EXITS: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <pthread.h>
    #include <sched.h>
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/epoll.h>
    #include <sys/mman.h>
    #include <sys/syscall.h>
    #include <sys/wait.h>
    #include <unistd.h>
    static pthread_t first; static char **words; static pthread_barrier_t all;
    static void *waits(void *none) { pthread_barrier_wait(&all); for (;;) pause(); return none; }
    static void *exits(void *none) { usleep(1000); exit(5); return none; }
    static void *outlives(void *none) { pthread_join(first, 0); usleep(1000); return none; }
    static void *outlives_and_exits(void *none) { pthread_join(first, 0); usleep(1000); exit(6); return none; }
    static void *execs(void *none) { execv(words[2], words + 2); return none; }
    static void *ends(void *none) { return none; }
    static void *epolls(void *none) {
        struct epoll_event event;
        int queue = epoll_create1(0);
        int got = epoll_wait(queue, &event, 1, 300);
        exit(got == 0 ? 8 : errno == EINTR ? 9 : 10);
        return none;
    }
    static void make(void *(*body)(void *)) { pthread_t thread; if (pthread_create(&thread, 0, body, 0)) abort(); }
    static int child(void *none) { return none ? 1 : 2; }
    int main(int count, char **arguments) {
        const char *how = arguments[1];
        words = arguments; first = pthread_self();
        char *page = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memcpy(page, "it is me", 8);
        if (!strcmp(how, "returns")) return 3;
        if (!strcmp(how, "segv")) raise(SIGSEGV);
        if (!strcmp(how, "kills")) kill(getpid(), SIGKILL);
        if (!strcmp(how, "thread_exits")) { make(exits); for (;;) pause(); }
        if (!strcmp(how, "thread_segv")) {
            pthread_barrier_init(&all, 0, 2);
            make(waits);
            pthread_barrier_wait(&all);
            raise(SIGSEGV);
        }
        if (!strcmp(how, "first_ends")) { make(outlives); pthread_exit(0); }
        if (!strcmp(how, "first_ends_first")) { make(outlives_and_exits); pthread_exit(0); }
        if (!strcmp(how, "ten")) {
            pthread_barrier_init(&all, 0, 10);
            for (int made = 0; made < 9; made++) make(waits);
            pthread_barrier_wait(&all);
            return 4;
        }
        if (!strcmp(how, "many_end")) {
            for (int made = 0; made < 200; made++) { pthread_t thread; pthread_create(&thread, 0, ends, 0); pthread_join(thread, 0); }
            return 7;
        }
        if (!strcmp(how, "execs")) { make(ends); execs(0); }
        if (!strcmp(how, "thread_execs")) {
            pthread_barrier_init(&all, 0, 4);
            for (int made = 0; made < 3; made++) make(waits);
            pthread_barrier_wait(&all);
            make(execs); for (;;) pause();
        }
        if (!strcmp(how, "epolls")) { make(epolls); for (;;) pause(); }
        if (!strcmp(how, "forks")) {
            static char stack[1 << 16];
            int status;
            if (fork() == 0) _exit(1);
            if (vfork() == 0) _exit(1);
            clone(child, stack + sizeof stack, 0, 0);
            wait(&status); wait(&status); waitpid(-1, &status, __WALL);
            return WEXITSTATUS(status) + 9;
        }
        if (!strcmp(how, "sleeps")) for (;;) pause();
        return 1;
    }"#;

fn program(workshop: &Workshop) -> String {
    let path = workshop.compile("gcc", "exits.c", EXITS, &["-pthread"]);
    path.to_str().expect("UTF-8").to_owned()
}

fn start(command: &[&str]) -> Launch {
    let words: Vec<OsString> = command.iter().map(OsString::from).collect();
    let mut launch = Launch::start(&words, Inherited::now()).expect("started");
    launch.hold_at_exit().expect("held");
    step(&mut launch);
    launch
}

fn step(launch: &mut Launch) {
    launch.step_until_loaded::<LaunchError>(&mut |_| Ok(())).expect("held");
    launch.follow_execs().expect("held");
}

/// Returns the next stop; `None` once the program has ended.
fn next(launch: &mut Launch) -> Option<ProgramStop> {
    let begun = Instant::now();
    loop {
        let stop = launch.next_stop().expect("followed");
        if stop.is_some() || launch.try_reap().is_some() {
            return stop;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "neither held nor exited: {launch:?}");
        std::thread::yield_now();
    }
}

fn end(launch: &mut Launch) -> i32 {
    launch.follow_execs().expect("held");
    assert_eq!(next(launch), None);
    shell_code(launch.try_reap().expect("it has exited"))
}

/// Reads the mark from a held thread's process.
fn mark(tracee: &Tracee) -> [u8; 8] {
    let mut bytes = [0; 8];
    let memory = File::open(format!("/proc/{}/mem", tracee.pid())).expect("it is held");
    memory.read_exact_at(&mut bytes, MARK_ADDRESS).expect("mapped");
    bytes
}

/// Checks that a program is held at its exit, with this many threads, and exits with this code.
fn check(how: &str, threads: usize, code: i32) {
    let workshop = Workshop::new();
    let mut launch = start(&[&program(&workshop), how]);
    assert_eq!(next(&mut launch), Some(ProgramStop::Exiting), "{how}");
    assert_eq!(launch.next_stop().expect("held"), Some(ProgramStop::Exiting), "{how}: reported again");
    assert_eq!(launch.try_reap(), None, "{how}");
    let held = launch.held_threads();
    assert_eq!(held.len(), threads, "{how}: {launch:?}");
    for (tracee, stop) in &held {
        assert_eq!(*stop, Stop::Exiting, "{how}");
        assert_eq!(mark(tracee), MARK, "{how}");
        let registers = tracee.registers().expect("held").expect("it runs");
        assert!(registers.stack_pointer() != 0 && registers.thread_pointer() != 0, "{how}: {registers:?}");
    }
    assert_eq!(end(&mut launch), code, "{how}");
}

#[test]
fn a_program_is_held_at_its_exit() {
    check("returns", 1, 3);
    check("many_end", 1, 7);
}

#[test]
fn a_program_is_held_when_a_signal_kills_it() {
    check("segv", 1, 139);
    check("kills", 1, 137);
}

#[test]
fn all_threads_are_held() {
    check("thread_exits", 2, 5);
    check("ten", 10, 4);
    check("thread_segv", 2, 139);
}

#[test]
fn the_exit_of_the_first_thread_is_not_that_of_the_program() {
    check("first_ends", 1, 0);
    check("first_ends_first", 1, 6);
}

#[test]
fn children_are_not_held() {
    check("forks", 1, 11);
}

#[test]
fn execs_are_distinguished_from_exits() {
    for how in ["execs", "thread_execs"] {
        let workshop = Workshop::new();
        let program = program(&workshop);
        let mut launch = start(&[&program, how, &program, "ten"]);
        assert_eq!(next(&mut launch), Some(ProgramStop::Exec), "{how}");
        step(&mut launch);
        assert_eq!(next(&mut launch), Some(ProgramStop::Exiting), "{how}");
        assert_eq!(launch.held_threads().len(), 10, "{how}");
        assert_eq!(end(&mut launch), 4, "{how}");
    }
}

fn asleep(workshop: &Workshop, how: &str, threads: usize) -> Launch {
    let mut launch = start(&[&program(workshop), how]);
    let waits = |pid: u32, call: libc::c_long| {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
        let calls =
            tasks.flatten().map(|task| std::fs::read_to_string(task.path().join("syscall")).unwrap_or_default());
        calls.filter(|text| text.starts_with(&format!("{call} "))).count()
    };
    let pid = launch.pid().0;
    while SLEEPING.into_iter().map(|call| waits(pid, call)).sum::<usize>() < threads {
        assert_eq!(launch.next_stop().expect("followed"), None);
    }
    launch
}

#[test]
fn a_killed_program_is_held_and_exits() {
    let workshop = Workshop::new();
    for held in [false, true] {
        let mut launch = asleep(&workshop, "sleeps", 1);
        if held {
            assert!(launch.stop().expect("it stops"));
        }
        let pid = heapbpf_linux::pidfd::raw_pid(launch.pid()).expect("a valid PID");
        kill_process(pid, Signal::KILL).expect("it runs");
        if held {
            launch.follow_execs().expect("held");
        }
        // If the kill coincides with the resumption, the stop may be missed, but not the exit.
        let stop = next(&mut launch);
        assert!(matches!(stop, Some(ProgramStop::Exiting) | None) && (held || stop.is_some()), "{stop:?}");
        assert_eq!(end(&mut launch), 137);
    }
}

#[test]
fn a_program_that_has_exited_meanwhile_is_not_stopped() {
    let workshop = Workshop::new();
    let mut launch = start(&[&program(&workshop), "returns"]);
    assert_eq!(next(&mut launch), Some(ProgramStop::Exiting));
    launch.follow_execs().expect("held");
    let stat = format!("/proc/{}/stat", launch.pid());
    wait_until("it has exited", || std::fs::read_to_string(&stat).expect("not reaped").contains(") Z "));
    assert!(!launch.stop().expect("it has exited"));
    assert_eq!(launch.try_reap().map(shell_code), Some(3));
}

#[test]
fn a_stopped_program_continues_undisturbed() {
    let workshop = Workshop::new();
    let mut launch = asleep(&workshop, "epolls", 2);
    for _ in 0..3 {
        assert!(launch.stop().expect("it stops"));
        let held = launch.held_threads();
        assert_eq!(held.len(), 2);
        assert!(held.iter().all(|(tracee, _)| mark(tracee) == MARK));
        launch.follow_execs().expect("held");
        assert_eq!(launch.next_stop().expect("followed"), None);
    }
    assert_eq!(next(&mut launch), Some(ProgramStop::Exiting));
    assert_eq!(end(&mut launch), 8, "no call has failed");
}

#[test]
fn a_detached_program_is_not_held() {
    let workshop = Workshop::new();
    let mut launch = asleep(&workshop, "epolls", 2);
    launch.release().expect("detached");
    let status = std::fs::read_to_string(format!("/proc/{}/status", launch.pid())).expect("it runs");
    assert!(status.contains("TracerPid:\t0"), "{status}");
    assert_eq!(next(&mut launch), None);
    assert_eq!(launch.try_reap().map(shell_code), Some(8));
}

#[test]
fn a_program_in_a_group_stop_stays_stopped() {
    let workshop = Workshop::new();
    let mut launch = asleep(&workshop, "sleeps", 1);
    let pid = heapbpf_linux::pidfd::raw_pid(launch.pid()).expect("a valid PID");
    let state = || std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_pid())).expect("it runs");
    kill_process(pid, Signal::STOP).expect("it runs");
    while !state().contains("State:\tt") {
        assert_eq!(launch.next_stop().expect("followed"), None);
    }
    assert!(launch.stop().expect("it stops"));
    launch.follow_execs().expect("held");
    for _ in 0..100 {
        assert_eq!(launch.next_stop().expect("followed"), None);
    }
    assert!(state().contains("State:\tt"), "{}", state());
    kill_process(pid, Signal::CONT).expect("it runs");
    while !state().contains("State:\tS") {
        assert_eq!(launch.next_stop().expect("followed"), None);
    }
    kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!(next(&mut launch), Some(ProgramStop::Exiting));
    assert_eq!(end(&mut launch), 143);
}
