//! Tracing threads of the keeper: one of them stops a process, makes it fork, or steps a launched program, on behalf of
//! the agent. Critical sequences do not wait for the agent half-way. When the agent exits at any point, the thread
//! completes the current command, ends copies and resumes the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::protocol::{
    Answer, COMMAND_BYTES_MAX, CodeRange, Command, LaunchCommand, LaunchFailure, Outcome, ProgramState,
};
use crate::collect::CollectError;
use crate::collect::fork::ForkCopy;
use crate::collect::stop::{Release, Stopped, StoppedThread};
use crate::ids::Pid;
use crate::linux::channel::{Channel, Message};
use crate::linux::pidfd::PidFd;
use crate::linux::signals::ChildSignal;
use crate::process::launch::{Launch, LaunchError, retry_releases};

/// Interval of further attempts to detach from a process, in nanoseconds.
const RELEASE_PERIOD_NS: i64 = 10_000_000;

#[derive(Debug)]
pub(super) struct Tracers {
    /// `None` if it had exited already.
    agent: Arc<Option<PidFd>>,
    threads: Vec<JoinHandle<()>>,
}

impl Tracers {
    pub(super) fn new(agent: Arc<Option<PidFd>>) -> Self {
        Self { agent, threads: Vec::new() }
    }

    /// Starts a thread that serves a channel.
    pub(super) fn start(&mut self, channel: Channel) -> io::Result<()> {
        self.threads.retain(|thread| !thread.is_finished());
        let agent = Agent { channel, process: Arc::clone(&self.agent) };
        let work = move || Worker { agent, copies: Vec::new(), stopped: None, program: None }.work();
        self.threads.push(thread::Builder::new().name("heapbpf-tracer".to_owned()).spawn(work)?);
        Ok(())
    }

    /// Waits until all threads have completed their current command and resumed their tracees.
    pub(super) fn finish(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread that panicked traces nothing.
            let _ = thread.join();
        }
    }
}

/// A copy that the agent reads until it closes the other end of the pipe.
#[derive(Debug)]
struct LentCopy {
    pipe: OwnedFd,
    _copy: ForkCopy,
}

/// A tracing thread. Copies exit before the process resumes.
#[derive(Debug)]
struct Worker {
    agent: Agent,
    copies: Vec<LentCopy>,
    stopped: Option<Stopped>,
    program: Option<TracedProgram>,
}

impl Worker {
    fn work(mut self) {
        while self.wait_for_command() {
            let Some((command, descriptors)) = self.agent.receive() else { break };
            let answer = self.execute(command, descriptors);
            if !self.agent.send(&answer) {
                break;
            }
        }
        if self.agent.has_exited() {
            self.copies.clear();
        }
        (self.stopped, self.program) = (None, None);
        // The agent still reads the copies. When this thread exits, the kernel detaches the remaining processes.
        while (!self.copies.is_empty() || retry_releases() > 0) && !self.agent.has_exited() {
            self.wait(false);
        }
    }

    /// Returns whether there is a command, or the channel was closed; false if the agent has exited.
    fn wait_for_command(&mut self) -> bool {
        while !self.wait(true) {
            if self.agent.has_exited() {
                return false;
            }
        }
        true
    }

    /// Waits until the agent exits, closes a pipe, or the traced program may have stopped; with `with_channel` also
    /// until the channel is readable, and returns whether it is. Ends the copies that the agent has released.
    fn wait(&mut self, with_channel: bool) -> bool {
        let limit = (retry_releases() > 0).then_some(Timespec { tv_sec: 0, tv_nsec: RELEASE_PERIOD_NS });
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let channel = with_channel.then_some(self.agent.channel.as_fd());
        let changes = self.program.as_ref().and_then(TracedProgram::changes);
        let agent = (*self.agent.process).as_ref().map(AsFd::as_fd);
        let pipes = self.copies.iter().map(|lent| lent.pipe.as_fd());
        let all = pipes.chain(changes).chain(channel).chain(agent);
        let mut polled: Vec<PollFd<'_>> = all.map(readable).collect();
        if retry_on_intr(|| poll(&mut polled, limit.as_ref())).is_err() {
            // Out of memory.
            thread::sleep(Duration::from_millis(1));
            return false;
        }
        let mut is_ready = polled.iter().map(|it| !it.revents().is_empty()).collect::<Vec<bool>>().into_iter();
        let has_changes = changes.is_some();
        self.copies.retain(|_| !is_ready.next().unwrap_or(false));
        if has_changes
            && is_ready.next().unwrap_or(false)
            && let Some(program) = &mut self.program
        {
            program.handle_changes();
        }
        if self.agent.has_exited() {
            self.copies.clear();
            return false;
        }
        with_channel && is_ready.next().unwrap_or(false)
    }

    fn execute(&mut self, command: Command, descriptors: Vec<OwnedFd>) -> Answer {
        let answer = match command {
            Command::Stop(pid) => self.stop(pid),
            Command::Fork(code) => self.fork(&code, descriptors),
            Command::Resume => Ok(Answer::Resumed(self.stopped.take().map_or(Duration::ZERO, Stopped::release))),
            Command::Launch(command) => Ok(self.execute_launch(&command, descriptors)),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    fn stop(&mut self, pid: Pid) -> Result<Answer, CollectError> {
        self.stopped = None;
        let threads = self.program.as_ref().map(TracedProgram::threads);
        let held = threads.filter(|(held, _)| *held == pid).map(|(_, threads)| threads).unwrap_or_default();
        let stopped = Stopped::new_while(pid, held, &|| self.agent.is_connected())?;
        let answer = Answer::Stopped { living: stopped.living_thread(), threads: stopped.states()? };
        self.stopped = Some(stopped);
        Ok(answer)
    }

    fn fork(&mut self, code: &[CodeRange], descriptors: Vec<OwnedFd>) -> Result<Answer, CollectError> {
        let (Some(stopped), Some(pipe)) = (&self.stopped, descriptors.into_iter().next()) else {
            return Err(CollectError::Keeper("internal error: no process is stopped; please report it".to_owned()));
        };
        let mapped: Vec<_> = code.iter().map(|code| code.region()).collect();
        let copy = stopped.fork(&mapped)?;
        let answer = Answer::Forked(copy.pid());
        self.copies.push(LentCopy { pipe, _copy: copy });
        Ok(answer)
    }

    fn execute_launch(&mut self, command: &LaunchCommand, descriptors: Vec<OwnedFd>) -> Answer {
        match TracedProgram::begin(command, descriptors.into_iter().next(), &self.agent) {
            Some(Ok(program)) => self.program = Some(program),
            Some(Err(error)) => {
                return Answer::Launch { state: ProgramState::Free, outcome: Outcome::Failed(failure(error)) };
            }
            None => {}
        }
        match &mut self.program {
            Some(program) => program.execute(command, &self.agent),
            None => Answer::Launch { state: ProgramState::Free, outcome: Outcome::Done },
        }
    }
}

/// A traced program. Dropping it resumes and detaches it.
#[derive(Debug)]
struct TracedProgram {
    launch: Launch,
    /// Eventfd for notifications; `None` for processes that are detached after their start-up.
    events: Option<OwnedFd>,
    changes: Option<ChildSignal>,
    /// All threads are stopped until the agent resumes them.
    is_stopped: bool,
}

impl TracedProgram {
    /// Carries out commands that begin tracing; `None` for other commands.
    fn begin(command: &LaunchCommand, events: Option<OwnedFd>, agent: &Agent) -> Option<Result<Self, LaunchError>> {
        match command {
            LaunchCommand::Start { pid, program } => Some(Self::start(*pid, program.clone(), events, agent)),
            LaunchCommand::Hold(pid) => {
                Some(Launch::hold(*pid).map(|launch| Self { launch, events: None, changes: None, is_stopped: false }))
            }
            _ => None,
        }
    }

    fn start(pid: Pid, program: String, events: Option<OwnedFd>, agent: &Agent) -> Result<Self, LaunchError> {
        let changes = ChildSignal::listen().map_err(|error| LaunchError::Trace(program.clone(), error))?;
        let mut launch = Launch::seize(pid, program)?;
        // The child waits until it is traced.
        if agent.send(&Answer::Launch { state: ProgramState::Traced, outcome: Outcome::Done }) {
            launch.run_to_exec(None, &|| agent.is_connected())?;
        }
        Ok(Self { launch, events, changes: Some(changes), is_stopped: false })
    }

    fn execute(&mut self, command: &LaunchCommand, agent: &Agent) -> Answer {
        let outcome = self.try_execute(command, agent).unwrap_or_else(|error| Outcome::Failed(failure(error)));
        Answer::Launch { state: self.state(), outcome }
    }

    fn try_execute(&mut self, command: &LaunchCommand, agent: &Agent) -> Result<Outcome, LaunchError> {
        let launch = &mut self.launch;
        match command {
            LaunchCommand::HoldAtExit => launch.hold_at_exit()?,
            LaunchCommand::Step => {
                let start_up = launch.step_until_loaded(&mut |at_exec| request_attach(at_exec, agent))?;
                return Ok(Outcome::StartUp(start_up));
            }
            LaunchCommand::FollowExecs => {
                self.is_stopped = false;
                launch.follow_execs()?;
            }
            LaunchCommand::NextStop => return Ok(Outcome::Stop(launch.next_stop()?)),
            LaunchCommand::StopAll => {
                self.is_stopped = launch.stop()?;
                return Ok(Outcome::AllStopped(self.is_stopped));
            }
            LaunchCommand::Release => {
                self.is_stopped = false;
                launch.release()?;
            }
            LaunchCommand::Reap => drop(launch.try_reap()),
            // Executed before, or an unexpected reply.
            LaunchCommand::Start { .. } | LaunchCommand::Hold(_) | LaunchCommand::Continue | LaunchCommand::Abandon => {
            }
        }
        Ok(Outcome::Done)
    }

    fn state(&mut self) -> ProgramState {
        use std::os::unix::process::ExitStatusExt;
        match self.launch.ended() {
            Some(status) => ProgramState::Ended(status.into_raw()),
            None if self.launch.is_free() => ProgramState::Free,
            None => ProgramState::Traced,
        }
    }

    /// Becomes readable when the program may have stopped or exited.
    fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// Handles stops: passes signals on and traces new threads. Notifies the agent when the program is held or has
    /// exited.
    fn handle_changes(&mut self) {
        if let Some(changes) = &self.changes {
            changes.clear();
        }
        if self.is_stopped || !self.launch.is_followed() {
            return;
        }
        let stop = self.launch.next_stop();
        if (!matches!(stop, Ok(None)) || !self.launch.is_followed())
            && let Some(events) = &self.events
        {
            // `EAGAIN` means that it is readable already.
            let _ = rustix::io::write(events, &1_u64.to_ne_bytes());
        }
    }

    /// The program's PID and its threads, if all are held.
    fn threads(&self) -> (Pid, Vec<StoppedThread>) {
        // Later commands decide whether they resume.
        let held = |(tracee, stop)| StoppedThread { tracee, stop, release: Release::Keep };
        (self.launch.pid(), self.launch.held_threads().into_iter().map(held).collect())
    }
}

/// Makes the agent attach probes to a program that is stopped.
fn request_attach(at_exec: bool, agent: &Agent) -> Result<(), LaunchError> {
    let answered = agent.send(&Answer::NewCode { at_exec }).then(|| agent.receive()).flatten();
    match answered {
        Some((Command::Launch(LaunchCommand::Continue), _)) => Ok(()),
        _ => Err(LaunchError::Trace("the program".to_owned(), io::ErrorKind::BrokenPipe.into())),
    }
}

fn failure(error: LaunchError) -> LaunchFailure {
    match error {
        LaunchError::Unstoppable(pid) => LaunchFailure::Unstoppable(pid),
        error => LaunchFailure::Other(error.to_string()),
    }
}

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) channel: Channel,
    /// `None` if it had exited already.
    pub(super) process: Arc<Option<PidFd>>,
}

impl Agent {
    /// Whether the agent is running and has not closed the channel.
    fn is_connected(&self) -> bool {
        let mut channel = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_open = retry_on_intr(|| poll(&mut channel, Some(&now))).is_ok_and(|ready| ready == 0);
        is_open && !self.has_exited()
    }

    fn has_exited(&self) -> bool {
        (*self.process).as_ref().is_none_or(|process| process.has_ended().unwrap_or(true))
    }

    /// Returns whether the answer was sent.
    fn send(&self, answer: &Answer) -> bool {
        postcard::to_stdvec(answer).is_ok_and(|bytes| self.channel.send(&bytes, &[]).is_ok())
    }

    /// Waits for the next command, with its descriptors; `None` when there are no more. An incomplete command of a
    /// killed agent is ignored.
    fn receive(&self) -> Option<(Command, Vec<OwnedFd>)> {
        let message = self.receive_message(COMMAND_BYTES_MAX)?;
        Some((postcard::from_bytes(&message.bytes).ok()?, message.descriptors))
    }

    /// Waits for the next message; `None` when there are no more. Ends with the agent even if another process has
    /// inherited a descriptor of the channel.
    pub(super) fn receive_message(&self, bytes_max: usize) -> Option<Message> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let process = (*self.process).as_ref().map(AsFd::as_fd);
        let mut polled: Vec<PollFd<'_>> = std::iter::once(self.channel.as_fd()).chain(process).map(readable).collect();
        retry_on_intr(|| poll(&mut polled, None)).ok()?;
        if polled[0].revents().is_empty() {
            return None;
        }
        self.channel.receive(bytes_max).ok().flatten()
    }
}
