//! Tests of a tracing thread whose agent is suspended in a message.

use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use heapbpf_tests::kernel::wait_until;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::Signal;

use super::super::protocol::{ANSWER_BYTES_MAX, code_regions};
use super::*;
use crate::collect::tests::fixture::Subject;
use crate::linux::proc::maps::regions;
use crate::linux::proc::stat;

fn suspend(agent: &Subject) {
    agent.send(Signal::STOP);
    agent.wait_for("State", "T");
}

fn traced_threads(target: &Subject) -> usize {
    let tids = stat::threads(target.pid()).expect("it runs");
    tids.into_iter()
        .filter(|&tid| stat::status(target.pid(), tid).is_some_and(|status| status.tracer.is_some()))
        .count()
}

fn wait_until_free(target: &Subject) {
    wait_until("no thread is traced", || traced_threads(target) == 0);
}

/// A tracing thread, and an agent that does nothing but can be suspended.
struct Setup {
    agent: Subject,
    channel: Channel,
    worker: JoinHandle<()>,
}

impl Setup {
    fn new() -> Self {
        let agent = Subject::with_threads(1);
        let (ours, theirs) = UnixStream::pair().expect("descriptors");
        // The kernel raises the size to its minimum of some kilobytes.
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
    let (setup, target) = (Setup::new(), Subject::with_threads(3));
    setup.send(&Command::Stop(target.pid(), None));
    assert!(matches!(setup.answer(), Answer::Stopped { threads, .. } if threads.len() == 3));
    assert_eq!(traced_threads(&target), 3);
    suspend(&setup.agent);
    let command = companion::encode(&Command::Resume).expect("it is encoded");
    let message = [&companion::header(command.len(), 0).expect("short")[..], &command].concat();
    let (first, rest) = message.split_at(message.len() / 2);
    rustix::io::write(&setup.channel, first).expect("the thread receives");
    wait_until_free(&target);
    setup.agent.send(Signal::CONT);
    rustix::io::write(&setup.channel, rest).expect("the thread receives");
    setup.check_was_suspended();
    setup.end();
}

#[test]
fn a_process_does_not_wait_until_an_answer_is_read() {
    let (setup, target) = (Setup::new(), Subject::with_threads(100));
    suspend(&setup.agent);
    setup.send(&Command::Stop(target.pid(), None));
    // An answer is readable once the process has been stopped.
    assert!(setup.channel.readable(Duration::from_secs(600)).expect("it is polled"));
    wait_until_free(&target);
    setup.agent.send(Signal::CONT);
    assert!(matches!(setup.answer(), Answer::Stopped { threads, .. } if threads.len() == 100));
    setup.send(&Command::Resume);
    setup.check_was_suspended();
    setup.end();
}

#[test]
fn a_thread_that_traces_nothing_any_more_stops_another_process() {
    let setup = Setup::new();
    for count in [1, 3] {
        let target = Subject::with_threads(count);
        setup.send(&Command::Stop(target.pid(), None));
        assert!(matches!(setup.answer(), Answer::Stopped { threads, .. } if threads.len() == count));
        setup.send(&Command::Resume);
        assert!(matches!(setup.answer(), Answer::Resumed { is_idle: true, .. }));
        assert_eq!(traced_threads(&target), 0);
    }
    setup.end();
}

/// The copy ends with the thread.
#[test]
fn a_thread_with_a_copy_is_not_idle() {
    let (setup, target) = (Setup::new(), Subject::with_threads(1));
    let (line, lent) = io::pipe().expect("descriptors");
    setup.send(&Command::Stop(target.pid(), None));
    assert!(matches!(setup.answer(), Answer::Stopped { .. }));
    let code = code_regions(&regions(target.pid()).expect("it runs"));
    setup.channel.send_value(&Command::Fork(code), &[line.as_fd()]).expect("the thread receives");
    assert!(matches!(setup.answer(), Answer::Forked(_)));
    setup.send(&Command::Resume);
    assert!(matches!(setup.answer(), Answer::Resumed { is_idle: false, .. }));
    drop(lent);
    setup.end();
}
