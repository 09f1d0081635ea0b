//! Test programs to be stopped, compiled by the tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use heapbpf_base::ids::Pid;
use rustix::process::{Signal, kill_process};

use crate::collect::stop::Stopped;
use crate::collect::{CollectError, Collected, Method, ThreadState, collect};
use heapbpf_base::testing::Workshop;

/// Start of every program: `say` prints a line, `wait_for_word` returns when the test writes a line.
const PROLOGUE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define say(...) (printf(__VA_ARGS__), putchar('\n'), fflush(stdout))
static void wait_for_word(void) { char c; do { if (read(0, &c, 1) == 0) _exit(3); } while (c != '\n'); }
"#;

/// A program with a given number of threads, including the first; all of them wait.
const THREADS: &str = r#"
static void *run(void *unused) { for (;;) pause(); return unused; }
int main(int argc, char **argv) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 1 << 16);
    for (int i = 1; i < atoi(argv[1]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, run, NULL)) return 1;
    }
    say("ready");
    for (;;) { wait_for_word(); say("on"); }
}
"#;

/// Collects a process from the calling thread.
pub(in crate::collect) fn collect_here(
    pid: Pid,
    method: Method,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<Collected, CollectError> {
    collect(pid, method, || Ok(Box::new(Stopped::new(pid, Vec::new())?)), while_stopped)
}

/// A running test program.
pub(crate) struct Subject {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _workshop: Workshop,
}

impl Subject {
    /// Starts a program with a number of threads, including the first, which answers.
    pub(crate) fn with_threads(count: usize) -> Self {
        let mut subject = Self::start_with(THREADS, &[&count.to_string()], "gcc");
        assert_eq!(subject.line(), "ready");
        subject
    }

    pub(in crate::collect) fn start(text: &str) -> Self {
        Self::start_with(text, &[], "gcc")
    }

    /// Starts a program with arguments and a compiler.
    pub(in crate::collect) fn start_with(text: &str, arguments: &[&str], compiler: &str) -> Self {
        let workshop = Workshop::new();
        let program = workshop.compile(compiler, "subject.c", &format!("{PROLOGUE}{text}"), &["-O1", "-pthread"]);
        let mut command = Command::new(program);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output, _workshop: workshop }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Reads the next line of the program's output.
    pub(in crate::collect) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        assert!(line.ends_with('\n'), "it exited: {line:?}");
        line.trim_end().to_owned()
    }

    /// Reads a line of hexadecimal numbers.
    pub(in crate::collect) fn numbers(&mut self) -> Vec<u64> {
        let line = self.line();
        let numbers = line.split_ascii_whitespace().map(|word| {
            u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("no number: {line}"))
        });
        numbers.collect()
    }

    /// Makes the program continue.
    pub(in crate::collect) fn say(&mut self) {
        self.input.write_all(b"\n").expect("it reads");
    }

    /// Checks that the program runs.
    pub(in crate::collect) fn check_answers(&mut self) {
        self.say();
        assert_eq!(self.line(), "on");
    }

    pub(crate) fn send(&self, signal: Signal) {
        kill_process(heapbpf_linux::pidfd::raw_pid(self.pid()).expect("a process"), signal).expect("it lives");
    }

    /// Waits for the program's exit and returns its exit code.
    pub(in crate::collect) fn end(&mut self) -> Option<i32> {
        self.child.wait().expect("not reaped elsewhere").code()
    }

    /// Returns a field of `/proc/PID/status`.
    pub(in crate::collect) fn status(&self, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
        line.expect("a field").to_owned()
    }

    /// Waits until a field of the program's status begins with `start`.
    pub(crate) fn wait_for(&self, field: &str, start: &str) {
        while !self.status(field).starts_with(start) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // The program may have exited already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
