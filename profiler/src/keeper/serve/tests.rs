//! A tracing thread whose agent is suspended in a message.

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command as Program, Stdio};
use std::thread::{self, JoinHandle};

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Signal, WaitOptions, kill_process, waitpid};

use super::super::protocol::ANSWER_BYTES_MAX;
use super::*;
use crate::linux::proc::stat;

/// A process that is killed when dropped.
struct Process(Child);

impl Process {
    /// A program with a number of threads that wait.
    fn with_threads(number: usize) -> Self {
        let script = "import sys, threading\n\
                      wait = threading.Event()\n\
                      for _ in range(int(sys.argv[1]) - 1): threading.Thread(target=wait.wait, daemon=True).start()\n\
                      print(flush=True); wait.wait()";
        let mut program = Program::new("/usr/bin/python3");
        program.args(["-c", script, &number.to_string()]).stdout(Stdio::piped());
        let mut process = Self(program.spawn().expect("python3 starts"));
        let output = process.0.stdout.take().expect("it is piped");
        assert_eq!(BufReader::new(output).read_line(&mut String::new()).expect("it runs"), 1);
        process
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    fn suspend(&self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        kill_process(pid, Signal::STOP).expect("it runs");
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).expect("a child").expect("its state has changed");
        assert!(status.stopped());
    }

    fn resume(&self) {
        kill_process(rustix::process::Pid::from_child(&self.0), Signal::CONT).expect("it exists");
    }

    fn traced_threads(&self) -> usize {
        let tids = stat::threads(self.pid()).expect("it runs");
        tids.into_iter()
            .filter(|&tid| stat::status(self.pid(), tid).is_some_and(|status| status.tracer.is_some()))
            .count()
    }

    /// Waits until none of its threads is traced. A test that fails here does not end.
    fn wait_until_free(&self) {
        while self.traced_threads() > 0 {
            thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A tracing thread, and an agent that does nothing but can be suspended.
struct Setup {
    agent: Process,
    channel: Channel,
    worker: JoinHandle<()>,
}

impl Setup {
    fn new() -> Self {
        let agent = Process::with_threads(1);
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        // The kernel raises it to its minimum of some kilobytes.
        set_socket_send_buffer_size(&theirs, 1).expect("a socket");
        let theirs = Agent::new(Channel::from(OwnedFd::from(theirs)), agent.pid());
        let worker = thread::spawn(|| Worker::new(theirs).work());
        Self { agent, channel: Channel::from(OwnedFd::from(ours)), worker }
    }

    fn send(&self, command: &Command) {
        self.channel.send_value(command, &[]).expect("the thread receives");
    }

    fn answer(&self) -> Answer {
        self.channel.receive_value(ANSWER_BYTES_MAX).expect("the thread answers").expect("it goes on").0
    }

    fn check_was_suspended(&self) {
        let Answer::Failed(reason) = self.answer() else { panic!("the process has not waited") };
        assert!(reason.contains("suspended (by SIGSTOP)"), "{reason}");
    }

    fn end(self) {
        let Self { agent, channel, worker } = self;
        drop(channel);
        worker.join().expect("it does not panic");
        drop(agent);
    }
}

#[test]
fn a_process_does_not_wait_for_the_rest_of_a_command() {
    let (setup, target) = (Setup::new(), Process::with_threads(3));
    setup.send(&Command::Stop(target.pid(), None));
    assert!(matches!(setup.answer(), Answer::Stopped { threads, .. } if threads.len() == 3));
    assert_eq!(target.traced_threads(), 3);
    setup.agent.suspend();
    let command = companion::encode(&Command::Resume).expect("it is encoded");
    let message = [&companion::header(command.len(), 0).expect("short")[..], &command].concat();
    let (first, rest) = message.split_at(message.len() / 2);
    rustix::io::write(&setup.channel, first).expect("the thread receives");
    target.wait_until_free();
    setup.agent.resume();
    rustix::io::write(&setup.channel, rest).expect("the thread receives");
    setup.check_was_suspended();
    setup.end();
}

#[test]
fn a_process_does_not_wait_until_an_answer_is_read() {
    let (setup, target) = (Setup::new(), Process::with_threads(100));
    setup.agent.suspend();
    setup.send(&Command::Stop(target.pid(), None));
    // Readable: the process has been stopped.
    assert!(setup.channel.readable(Duration::from_secs(600)).expect("it is polled"));
    target.wait_until_free();
    setup.agent.resume();
    assert!(matches!(setup.answer(), Answer::Stopped { threads, .. } if threads.len() == 100));
    setup.send(&Command::Resume);
    setup.check_was_suspended();
    setup.end();
}
