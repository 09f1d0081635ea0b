//! Tests with real programs that notice children, signals and interrupted calls.

use std::fs::read_to_string;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Memory, Span};
use heapbpf_linux::arch::Registers;
use heapbpf_linux::proc::maps::regions;
use heapbpf_linux::proc::stat;
use heapbpf_tests::kernel::wait_until;

use super::*;
use crate::collect::inject::{ALL_SIGNALS, WayBack, place};
use crate::collect::memory::{ForkMemory, left_out};
use crate::collect::process::Release;
use crate::collect::tests::fixture::collect_here;
use crate::collect::{Method, ProcessCopy};
use heapbpf_base::testing::Workshop;

impl ProcessCopy for ForkCopy {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn has_ended(&self) -> bool {
        self.pidfd.has_ended().unwrap_or(true)
    }
}

/// Environment variable with the pid of the process that another process of this test is to copy.
const PID: &str = "HEAPBPF_TEST_PID";
/// Address of the counters.
const COUNTS: TargetAddr = TargetAddr(0x1000_0000);
/// Addresses of pages that a fork does not copy, and of pages that it empties.
const NOT_COPIED: TargetAddr = TargetAddr(0x2000_0000);
const EMPTIED: TargetAddr = TargetAddr(0x3000_0000);
/// Address of memory of a given size that the program fills.
const FILLED: TargetAddr = TargetAddr(0x10_0000_0000);

const NOTICES: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <linux/filter.h>
    #include <linux/futex.h>
    #include <linux/seccomp.h>
    #include <pthread.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/epoll.h>
    #include <sys/mman.h>
    #include <sys/prctl.h>
    #include <sys/resource.h>
    #include <sys/syscall.h>
    #include <sys/wait.h>
    #include <time.h>
    #include <unistd.h>
    static void is(int right, int code) { if (!right) _exit(code); }
    static void child_ended(int signal) { _exit(20); }
    static void *sleeps(void *none) {
        for (;;) { struct timespec time = { 0, 50000000 }; is(nanosleep(&time, 0) == 0, 21); }
    }
    static void *reads(void *none) {
        int ends[2]; char byte;
        pipe(ends);
        read(ends[0], &byte, 1);
        _exit(22);
    }
    static void *waits(void *none) {
        static int word;
        for (;;) {
            struct timespec time = { 0, 50000000 };
            is(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &time, 0, 0) == -1 && errno == ETIMEDOUT, 23);
        }
    }
    static void *polls(void *none) {
        struct epoll_event event;
        int queue = epoll_create1(0);
        for (;;) is(epoll_wait(queue, &event, 1, 50) == 0, 24);
    }
    static void *polls_on(void *none) {
        struct epoll_event event;
        epoll_wait(epoll_create1(0), &event, 1, -1);
        _exit(25);
    }
    static void *counts(void *at) { for (volatile uint64_t *count = at;;) ++*count; }
    static double sum(void) { double sum = 0; for (int at = 1; at < 100000; at++) sum += 1.0 / at; return sum; }
    static void *adds(void *none) { for (double first = sum();;) is(sum() == first, 38); }
    static void *waits_for_children(void *none) {
        for (int status;;) is(waitpid(-1, &status, __WALL) == -1 && errno == ECHILD, 26);
    }
    static void *forks(void *none) {
        for (int status;;) {
            pid_t child = fork();
            if (child == 0) _exit(7);
            is(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, 27);
        }
    }
    static void make(void *(*body)(void *), void *what) { pthread_t thread; is(pthread_create(&thread, 0, body, what) == 0, 28); }
    static void *map(uintptr_t at, size_t size) {
        void *page = mmap((void *)at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        is(page != MAP_FAILED, 29);
        return page;
    }
    int main(int count, char **arguments) {
        const char *how = arguments[1];
        uint64_t *page = map(0x10000000, 4096);
        page[511] = 0x1234567890abcdef;
        if (!strcmp(how, "all")) {
            signal(SIGCHLD, child_ended);
            make(sleeps, 0); make(reads, 0); make(waits, 0); make(polls, 0); make(polls_on, 0); make(waits_for_children, 0);
            make(counts, page); make(counts, page + 1); make(counts, page + 2);
            make(adds, 0);
        }
        if (!strcmp(how, "counts")) { make(counts, page + 1); make(counts, page + 2); }
        if (!strcmp(how, "forks")) { make(forks, 0); make(counts, page); }
        if (!strcmp(how, "keeps")) {
            strcpy(map(0x20000000, 4096), "not copied");
            strcpy(map(0x30000000, 4096), "emptied");
            is(madvise((void *)0x20000000, 4096, MADV_DONTFORK) == 0, 30);
            is(madvise((void *)0x30000000, 4096, MADV_WIPEONFORK) == 0, 31);
        }
        if (!strcmp(how, "filters")) {
            struct sock_filter rule = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
            struct sock_fprog filter = { 1, &rule };
            is(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, 32);
        }
        if (!strcmp(how, "limited")) {
            struct rlimit limit = { 1, 1 };
            is(setrlimit(RLIMIT_NPROC, &limit) == 0 && setuid(65534) == 0, 33);
        }
        if (!strcmp(how, "fills")) {
            size_t size = (size_t)atoi(arguments[2]) << 20;
            char *filled = map(0x1000000000, size);
            madvise(filled, size, MADV_NOHUGEPAGE);
            for (size_t at = 0; at < size; at += 4096) *(size_t *)(filled + at) = at;
        }
        if (!strcmp(how, "adopts")) {
            is(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, 35);
            make(waits_for_children, 0);
        }
        if (!strcmp(how, "reaps")) {
            is(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, 36);
            pid_t child = fork();
            if (child != 0) {
                int status;
                pid_t ended;
                while ((ended = wait(&status)) != child) is(ended > 0 && status == 0, 37);
                return WEXITSTATUS(status);
            }
        }
        if (!strcmp(how, "runs")) { puts("ready"); fflush(stdout); counts(page); }
        puts("ready"); fflush(stdout);
        char byte;
        is(read(0, &byte, 1) == 0, 34);
        return 6;
    }"#;

/// A running program, which exits at the end of its input.
struct Noticing {
    child: Child,
    input: Option<ChildStdin>,
    _output: BufReader<ChildStdout>,
    _workshop: Workshop,
}

impl Noticing {
    fn start(arguments: &[&str]) -> Self {
        let workshop = Workshop::new();
        let program = workshop.compile("gcc", "notices.c", NOTICES, &["-pthread", "-O1"]);
        let mut command = Command::new(program);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("it writes");
        assert_eq!(line, "ready\n", "{:?}", child.wait());
        Self { input: child.stdin.take(), child, _output: output, _workshop: workshop }
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Checks that the program has noticed nothing.
    fn check_end(mut self) {
        drop(self.input.take());
        assert_eq!(self.child.wait().expect("a child").code(), Some(6));
    }

    fn children(&self) -> String {
        let tasks = stat::threads(self.pid()).expect("it runs").into_iter();
        let entry = |tid: Tid| format!("/proc/{}/task/{}/children", self.pid(), tid.0);
        tasks.map(|tid| read_to_string(entry(tid)).expect("it runs")).collect()
    }
}

impl Drop for Noticing {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// All threads of a process, held by ptrace.
struct All(Vec<StoppedThread>);

impl All {
    fn hold(pid: Pid) -> Self {
        let threads = stat::threads(pid).expect("it runs");
        let seize = |tid| Tracee::seize_thread(tid, Options::default()).expect("permitted");
        let tracees: Vec<Tracee> = threads.into_iter().map(seize).collect();
        tracees.iter().for_each(|tracee| tracee.interrupt().expect("held"));
        let wait = |tracee: Tracee| {
            let stop = tracee.wait(Duration::from_secs(10)).expect("held").expect("it stops");
            StoppedThread { tracee, stop, release: Release::Detach }
        };
        Self(tracees.into_iter().map(wait).collect())
    }

    fn detach(self) {
        for StoppedThread { tracee, stop, .. } in self.0 {
            tracee.restart_syscall(stop).expect("held");
            tracee.detach(stop).expect("held");
        }
    }

    /// Returns the registers and the signal mask of each thread.
    fn states(&self) -> Vec<(Registers, u64)> {
        let state = |thread: &StoppedThread| {
            let (registers, blocked) = (thread.tracee.registers(), thread.tracee.blocked_signals());
            (registers.expect("held").expect("it runs"), blocked.expect("held").expect("it runs"))
        };
        self.0.iter().map(state).collect()
    }
}

fn fork(pid: Pid) -> Result<(ForkCopy, Duration), ForkError> {
    let all = All::hold(pid);
    let seen = all.states();
    let mapped = regions(pid).expect("it runs");
    let begun = Instant::now();
    let forked = ForkCopy::make(pid, &all.0, &mapped);
    let took = begun.elapsed();
    assert_eq!(all.states(), seen);
    assert_eq!(regions(pid).expect("it runs"), mapped);
    all.detach();
    Ok((forked?, took))
}

fn page(start: TargetAddr) -> Span {
    start..TargetAddr(start.0 + 4096)
}

/// Returns whether a process runs. A zombie does not: its new parent may reap it later.
fn is_running(pid: Pid) -> bool {
    read_to_string(format!("/proc/{pid}/status"))
        .is_ok_and(|status| !status.contains("State:\tZ") && !status.contains("State:\tX"))
}

/// Reads a counter of the process, not of its copy.
fn count(pid: Pid, index: u64) -> u64 {
    let mut bytes = [0; 8];
    heapbpf_linux::process_memory::read(pid, &[(COUNTS.0 + 8 * index, 8)], &mut bytes).expect("it runs");
    u64::from_le_bytes(bytes)
}

#[test]
fn a_copy_preserves_memory() {
    let program = Noticing::start(&["counts"]);
    let (forked, _) = fork(program.pid()).expect("copied");
    let copy = forked.pid();
    let memory = ForkMemory::new(Box::new(forked), vec![page(COUNTS)]);
    let word = |index: u64| memory.word(TargetAddr(COUNTS.0 + 8 * index)).expect("there");
    let before = [word(1), word(2)];
    wait_until("both threads count", || count(program.pid(), 1) != before[0] && count(program.pid(), 2) != before[1]);
    assert_eq!([word(1), word(2), word(511)], [before[0], before[1], 0x1234_5678_90ab_cdef]);
    // A thread with an empty cache reads the same values.
    let other = std::thread::scope(|scope| scope.spawn(|| [word(1), word(2)]).join().expect("no panic"));
    assert_eq!(other, before);
    assert_eq!(
        memory.present(TargetAddr(COUNTS.0 + 8)..TargetAddr(u64::MAX)),
        [TargetAddr(COUNTS.0 + 8)..page(COUNTS).end]
    );
    let mut bytes = vec![1; 8192];
    assert_eq!(memory.read(TargetAddr(COUNTS.0 + 8), &mut bytes), 4088);
    assert_eq!(memory.read(page(COUNTS).end, &mut bytes), 0);
    assert_eq!(memory.word(TargetAddr(COUNTS.0 + 4092)), None);
    drop(memory);
    assert!(!is_running(copy));
    program.check_end();
}

#[test]
fn a_process_is_collected_from_a_copy() {
    let program = Noticing::start(&["counts"]);
    let mut stopped_threads = 0;
    let collected = collect_here(program.pid(), Method::Fork, &mut |threads| stopped_threads = threads.len());
    let collected = collected.expect("it can be stopped");
    let word = |index: u64| collected.memory.word(TargetAddr(COUNTS.0 + 8 * index));
    let before = word(1).expect("there");
    wait_until("a thread counts", || count(program.pid(), 1) != before);
    // Another thread, which has an empty cache, reads the same words.
    let other = std::thread::scope(|scope| scope.spawn(|| word(1)).join().expect("no panic"));
    assert_eq!((other, word(511)), (Some(before), Some(0x1234_5678_90ab_cdef)));
    assert_eq!((stopped_threads, collected.threads.len(), collected.unread_bytes), (3, 3, 0));
    // Another thread may just have begun, and not have touched its stack.
    let first = collected.threads.iter().find(|thread| thread.tid.0 == program.pid().0).expect("it is stopped");
    assert!(collected.memory.word(first.stack_pointer).is_some(), "{:?}", collected.threads);
    drop(collected);
    program.check_end();
}

#[test]
fn a_process_notices_nothing() {
    let program = Noticing::start(&["all"]);
    let mut copies = Vec::new();
    for _ in 0..30 {
        let (forked, _) = fork(program.pid()).expect("copied");
        assert_eq!(program.children(), "");
        let status = read_to_string(format!("/proc/{}/status", forked.pid())).expect("it is held");
        assert!(!status.contains(&format!("PPid:\t{}\n", program.pid())) && status.contains("State:\tt"), "{status}");
        copies.push(forked);
    }
    let pids: Vec<Pid> = copies.iter().flat_map(ForkCopy::pids).collect();
    drop(copies);
    assert!(!pids.into_iter().any(is_running));
    assert_eq!(program.children(), "");
    program.check_end();
}

/// Returns the signal masks of all threads.
fn masks(pid: Pid) -> Vec<String> {
    let mask = |tid: Tid| {
        let status = read_to_string(format!("/proc/{pid}/task/{}/status", tid.0)).expect("it runs");
        status.lines().find(|line| line.starts_with("SigBlk")).expect("a line").to_owned()
    };
    stat::threads(pid).expect("it runs").into_iter().map(mask).collect()
}

/// Makes each thread of the process begin or make a system call. Then the tracing thread ends, so that the kernel detaches from
/// the threads.
fn abandon(pid: Pid, round: u32) {
    let all = All::hold(pid);
    let mapped = regions(pid).expect("it runs");
    let first = usize::try_from(round).expect("small") % all.0.len();
    // The frame of the thread that goes last stays where the frames of the others have been.
    let mut order: Vec<&StoppedThread> = all.0.iter().collect();
    order.swap(first, all.0.len() - 1);
    for (index, held) in order.into_iter().enumerate() {
        let tracee = &held.tracee;
        let way_back = WayBack::find(pid, tracee, &mapped).expect("readable").expect("glibc has this code");
        let taken = InjectedThread::take(pid, tracee, way_back.instruction);
        let mut thread = taken.expect("held").expect("it runs");
        let find = |size_bytes: u64| place::find(held, &all.0, &mapped, size_bytes);
        if index + 1 == all.0.len() {
            thread.prepare_way_back(&way_back, &find).expect("there is room");
        } else {
            thread.enter(Some(&way_back), &find).expect("held");
        }
        match round % 3 {
            0 => thread.prepare(libc::SYS_getppid, [0; 6]).expect("held"),
            1 => {
                thread.prepare(libc::SYS_getppid, [0; 6]).expect("held");
                tracee.block_signals(ALL_SIGNALS).expect("held");
            }
            _ => assert!(thread.checked(libc::SYS_getppid, [0; 6]).expect("held") > 0),
        }
    }
}

#[test]
fn threads_restore_themselves_if_their_tracer_is_killed() {
    let program = Noticing::start(&["all"]);
    let pid = program.pid();
    // Each of up to four threads goes first in each kind of round, twice.
    for round in 0..24 {
        std::thread::spawn(move || abandon(pid, round)).join().expect("no panic");
        let counts = [0, 1, 2].map(|index| count(pid, index));
        let has_counted = |index| count(pid, index) != counts[usize::try_from(index).expect("small")];
        wait_until("all threads count", || (0..3).all(has_counted));
        let deadline = Instant::now() + Duration::from_secs(60);
        wait_until("no thread blocks signals", || {
            assert!(Instant::now() < deadline, "{:?}", masks(pid));
            masks(pid).iter().all(|mask| mask == "SigBlk:\t0000000000000000")
        });
    }
    program.check_end();
}

#[test]
fn the_process_that_adopts_a_copy_sees_no_crash() {
    let program = Noticing::start(&["reaps"]);
    let child = Pid(program.children().trim().parse().expect("one child"));
    for _ in 0..3 {
        drop(fork(child).expect("copied"));
        drop(collect_here(child, Method::Fork, &mut |_| {}).expect("copied"));
    }
    program.check_end();
}

#[test]
fn a_process_that_runs_and_one_that_forks_are_copied() {
    for how in ["runs", "forks"] {
        let program = Noticing::start(&[how]);
        for _ in 0..30 {
            let before = count(program.pid(), 0);
            drop(fork(program.pid()).expect("copied"));
            wait_until("the process counts", || count(program.pid(), 0) != before);
        }
        if how == "forks" {
            program.check_end();
        }
    }
}

#[test]
fn pages_that_are_not_copied_are_reported() {
    let program = Noticing::start(&["keeps"]);
    let mapped = regions(program.pid()).expect("it runs");
    let (forked, _) = fork(program.pid()).expect("copied");
    assert_eq!(left_out(forked.pid(), &mapped).expect("it is held"), [page(NOT_COPIED), page(EMPTIED)]);
    program.check_end();
}

#[test]
fn the_error_where_a_fork_is_impossible_suggests_reading() {
    let check = |how: &str, words: &str| {
        let program = Noticing::start(&[how]);
        let error = fork(program.pid()).expect_err("no copy").to_string();
        assert!(error.contains(words) && error.contains("`--snapshot read`"), "{error}");
        assert_eq!(program.children(), "");
        program.check_end();
    };
    check("filters", "a seccomp filter restricts");
    check("adopts", "it adopts orphans");
    check("limited", "Resource temporarily unavailable");
    let program = Noticing::start(&["counts"]);
    let error = ForkCopy::make(program.pid(), &[], &[]).expect_err("no thread").to_string();
    assert!(error.contains("none of its threads"), "{error}");
}

#[test]
fn a_stopped_process_stays_stopped() {
    let program = Noticing::start(&["counts"]);
    let raw = heapbpf_linux::pidfd::raw_pid(program.pid()).expect("a process");
    rustix::process::kill_process(raw, rustix::process::Signal::STOP).expect("it runs");
    let state = || read_to_string(format!("/proc/{}/status", program.pid())).expect("it runs");
    wait_until("it is stopped", || state().contains("State:\tT (stopped)"));
    let error = fork(program.pid()).expect_err("stopped").to_string();
    assert!(error.contains("the process is stopped"), "{error}");
    wait_until("it is stopped", || state().contains("State:\tT (stopped)"));
    rustix::process::kill_process(raw, rustix::process::Signal::CONT).expect("it runs");
    program.check_end();
}

#[test]
#[ignore = "part of other tests"]
fn holds_a_copy() {
    let pid = Pid(std::env::var(PID).expect("set").parse().expect("a number"));
    let (forked, _) = fork(pid).expect("copied");
    std::io::stdout().write_all(format!("\ncopy {}\n", forked.pid()).as_bytes()).expect("the parent reads");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_copy_exits_with_heapbpf() {
    let program = Noticing::start(&["all"]);
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command.args(["--ignored", "--exact", "--nocapture", "collect::fork::tests::holds_a_copy"]);
    let mut reader = command.env(PID, program.pid().to_string()).stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(reader.stdout.take().expect("piped")).lines();
    let copy = lines.map(|line| line.expect("text")).find_map(|line| line.strip_prefix("copy ")?.parse().ok());
    let copy = Pid(copy.expect("a number"));
    assert!(is_running(copy));
    reader.kill().expect("it runs");
    reader.wait().expect("a child");
    wait_until("the copy has exited", || !is_running(copy));
    program.check_end();
}

#[test]
#[ignore = "a measurement: takes a GiB"]
#[expect(clippy::print_stdout, reason = "prints measurements")]
fn pauses() {
    for mebibytes in ["64", "256", "1024"] {
        let program = Noticing::start(&["fills", mebibytes]);
        let mut times: Vec<Duration> = (0..9).map(|_| fork(program.pid()).expect("copied").1).collect();
        times.sort_unstable();
        let (forked, _) = fork(program.pid()).expect("copied");
        let bytes: u64 = mebibytes.parse::<u64>().expect("a number") << 20;
        let memory = ForkMemory::new(Box::new(forked), vec![FILLED..TargetAddr(FILLED.0 + bytes)]);
        let begun = Instant::now();
        let mut buffer = vec![0; 1 << 20];
        let parts = (0..bytes >> 20).map(|part| memory.read(TargetAddr(FILLED.0 + (part << 20)), &mut buffer) as u64);
        assert_eq!(parts.sum::<u64>(), bytes);
        let read = begun.elapsed();
        let begun = Instant::now();
        for at in (0..bytes).step_by(65_536) {
            assert_eq!(memory.word(TargetAddr(FILLED.0 + at)), Some(at));
        }
        let words = begun.elapsed() / u32::try_from(bytes / 65_536).expect("few");
        println!("{mebibytes} MiB: {times:?}, all read in {read:?}, a word apart in {words:?}");
        program.check_end();
    }
}
