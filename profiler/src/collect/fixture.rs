//! Programs to be stopped, compiled on the spot. They say when they are ready, and end with the test.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::process::{Signal, kill_process};

use super::stop::Stopped;
use super::{CollectError, Collected, Method, ThreadState, collect};
use crate::ids::Pid;
use crate::object::fixture::Workshop;

/// What every program begins with: `say` prints a line at once, `wait_for_word` returns when the test says something.
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

/// Collects a process by the calling thread.
pub(super) fn collect_here(
    pid: Pid,
    method: Method,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<Collected, CollectError> {
    collect(pid, method, || Ok(Box::new(Stopped::new(pid, Vec::new())?)), while_stopped)
}

/// A program that runs.
pub(super) struct Subject {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _workshop: Workshop,
}

impl Subject {
    /// Starts a program of this text.
    pub(super) fn start(text: &str) -> Self {
        Self::start_with(text, &[], "gcc")
    }

    /// The same, with arguments and a compiler.
    pub(super) fn start_with(text: &str, arguments: &[&str], compiler: &str) -> Self {
        let workshop = Workshop::new();
        let program = workshop.compile(compiler, "subject.c", &format!("{PROLOGUE}{text}"), &["-O1", "-pthread"]);
        let mut command = Command::new(program);
        let mut child =
            command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output, _workshop: workshop }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// What it says next.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it speaks");
        assert!(line.ends_with('\n'), "it ended: {line:?}");
        line.trim_end().to_owned()
    }

    /// The hexadecimal numbers that it says next.
    pub(super) fn numbers(&mut self) -> Vec<u64> {
        let line = self.line();
        let numbers = line.split_ascii_whitespace().map(|word| {
            u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("no number: {line}"))
        });
        numbers.collect()
    }

    /// Lets it go on.
    pub(super) fn say(&mut self) {
        self.input.write_all(b"\n").expect("it listens");
    }

    /// That it runs: it answers.
    pub(super) fn check_answers(&mut self) {
        self.say();
        assert_eq!(self.line(), "on");
    }

    pub(super) fn send(&self, signal: Signal) {
        kill_process(crate::linux::pid::raw(self.pid()).expect("a process"), signal).expect("it lives");
    }

    /// Its exit code.
    pub(super) fn end(&mut self) -> Option<i32> {
        self.child.wait().expect("its end is left to be seen").code()
    }

    /// A line of its status.
    pub(super) fn status(&self, field: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t"));
        line.expect("a field").to_owned()
    }

    /// Waits until its status is so.
    pub(super) fn wait_for(&self, field: &str, start: &str) {
        while !self.status(field).starts_with(start) {
            std::thread::yield_now();
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
