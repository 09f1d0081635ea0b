//! The keeper process and its tracing threads. When the agent exits at any point, a thread completes the current
//! command, ends copies and resumes the process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::agent::Agent;
use super::exec_stops::ExecStops;
use super::links::Links;
use super::protocol::{Answer, COMMAND_BYTES_MAX, Command, Outcome, REQUEST_BYTES_MAX, Reply, Request};
use super::stubs::{self, Stubs};
use crate::collect::fork::ForkCopy;
use crate::collect::process::{Release, StoppedThread};
use crate::collect::stop::{Released, Stopped};
use crate::collect::{CollectError, StopLimit};
use crate::ids::Pid;
use crate::linux::companion::{self, Channel};
use crate::linux::exec_stop::StopNote;
use crate::linux::proc::maps::Region;
use crate::linux::signals::{self, ChildSignal};
use crate::process::launch::{Launch, LaunchError, retry_releases};

const NAME: &str = "heapbpf-keeper";

/// Runs until the agent, its parent, exits or closes the channel. Fails when standard input is not the channel.
pub fn serve() -> io::Result<()> {
    let channel = Channel::of_standard_input()?;
    companion::set_name(NAME);
    // Tracing threads receive the signal.
    signals::block_child_signal();
    // If the agent has exited already, the channel is closed.
    let (mut links, mut stubs, mut tracers) = (Links::default(), Stubs::default(), Vec::new());
    let mut exec_stops = ExecStops::default();
    let agent = Agent::new(channel, Pid(std::os::unix::process::parent_id()));
    while let Some((request, descriptors)) = agent.receive(REQUEST_BYTES_MAX) {
        let reply = match request {
            Request::Attach { kind, sites, pid } => links.attach(kind, &sites, pid, &descriptors).map(Reply::Attached),
            Request::Detach(id) => {
                links.detach(id);
                continue;
            }
            Request::Install(plan) => match stubs.install(plan, &descriptors) {
                Ok(installed) => Ok(Reply::Installed(installed)),
                Err(error) if error.is_occupied() => Ok(Reply::Occupied),
                Err(error) => Err(io::Error::other(error.of_engine())),
            },
            Request::Adopt(plan) => {
                stubs.adopt(plan);
                continue;
            }
            Request::FindRseq(pid) => stubs::rseq_offset(pid).map(Reply::Rseq),
            Request::RemoveLeft(plan) => stubs::remove_left(&plan).map(|()| Reply::Done).map_err(io::Error::other),
            Request::HandBack(pid) => stubs.hand_back(pid).map(|()| Reply::Done).map_err(io::Error::other),
            Request::Remove(pid) => {
                stubs.remove(pid);
                continue;
            }
            Request::FinishClosing => {
                links.finish_closing();
                Ok(Reply::Done)
            }
            Request::Trace => start_tracer(&agent, &mut tracers, descriptors).map(|()| Reply::Done),
            Request::StopAtExecs(pid) => exec_stops.add(pid, descriptors).map(|()| Reply::Done),
            Request::RunAtExecs(pid) => {
                exec_stops.remove(pid);
                Ok(Reply::Done)
            }
        };
        if !agent.send(&reply.unwrap_or_else(|error| Reply::Refused(error.to_string()))) {
            break;
        }
    }
    drop(exec_stops);
    // Tracing threads complete their current commands and resume their tracees. A thread that panicked traces nothing.
    tracers.into_iter().for_each(|tracer| drop(tracer.join()));
    stubs.remove_all();
    links.detach_all();
    Ok(())
}

fn start_tracer(agent: &Agent, tracers: &mut Vec<JoinHandle<()>>, descriptors: Vec<OwnedFd>) -> io::Result<()> {
    tracers.retain(|tracer| !tracer.is_finished());
    let channel = descriptors.into_iter().next().map(Channel::from).ok_or(io::ErrorKind::InvalidInput)?;
    let agent = agent.through(channel);
    let work = move || Worker::new(agent).work();
    tracers.push(thread::Builder::new().name("heapbpf-tracer".to_owned()).spawn(work)?);
    Ok(())
}

const RELEASE_PERIOD_NS: i64 = 10_000_000;
/// Period of checking that the agent is not suspended while a process waits for it.
const SUSPENSION_PERIOD_NS: i64 = 50_000_000;

/// A copy that the agent reads until it closes the other end of the pipe.
#[derive(Debug)]
struct LentCopy {
    pipe: OwnedFd,
    _copy: ForkCopy,
}

/// A tracing thread. Its copies exit before the process resumes.
#[derive(Debug)]
struct Worker {
    agent: Arc<Agent>,
    copies: Vec<LentCopy>,
    stopped: Option<Stopped>,
    /// The process that was stopped last, if it was resumed because the agent was suspended.
    let_go: Option<Pid>,
    program: Option<TracedProgram>,
}

impl Worker {
    fn new(agent: Agent) -> Self {
        Self { agent: Arc::new(agent), copies: Vec::new(), stopped: None, let_go: None, program: None }
    }

    fn work(mut self) {
        while self.wait_for_command() {
            let Some((command, descriptors)) = self.receive() else { break };
            let answer = self.execute(command, descriptors);
            if !self.send(&answer) {
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

    /// Waits for a command. Returns whether there is a command or the channel was closed; false if the agent has exited.
    fn wait_for_command(&mut self) -> bool {
        while !self.wait(true) {
            if self.agent.has_exited() {
                return false;
            }
        }
        true
    }

    /// Receives a command. The agent may be suspended between the parts of a command that is larger than the channel's buffer.
    fn receive(&mut self) -> Option<(Command, Vec<OwnedFd>)> {
        let agent = Arc::clone(&self.agent);
        agent.receive_while(COMMAND_BYTES_MAX, || self.wait_in_message(PollFlags::IN))
    }

    /// Sends an answer. The agent may be suspended between the parts of an answer that is larger than the channel's buffer.
    fn send(&mut self, answer: &Answer) -> bool {
        let agent = Arc::clone(&self.agent);
        agent.send_while(answer, || self.wait_in_message(PollFlags::OUT))
    }

    /// Waits until the channel is ready for more of a message. Meanwhile, a process that waits for a suspended agent is resumed.
    fn wait_in_message(&mut self, ready: PollFlags) -> io::Result<()> {
        loop {
            let limit = Timespec { tv_sec: 0, tv_nsec: SUSPENSION_PERIOD_NS };
            match self.agent.wait(ready, self.is_waited_for().then_some(&limit))? {
                Some(true) => return Ok(()),
                Some(false) => return Err(io::ErrorKind::BrokenPipe.into()),
                None if self.is_waited_for() && self.agent.is_suspended() => self.let_go(),
                None => {}
            }
        }
    }

    /// Waits until the agent exits, closes a pipe, or the traced program may have stopped; with `with_channel` also
    /// until the channel is readable, and returns whether it is. Ends the copies that the agent has released.
    fn wait(&mut self, with_channel: bool) -> bool {
        let period = match (retry_releases(), self.is_waited_for()) {
            (0, false) => None,
            (0, true) => Some(SUSPENSION_PERIOD_NS),
            _ => Some(RELEASE_PERIOD_NS),
        };
        let limit = period.map(|tv_nsec| Timespec { tv_sec: 0, tv_nsec });
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let channel = with_channel.then_some(self.agent.as_fd());
        let changes = self.program.as_ref().and_then(|program| program.changes.as_ref()).map(AsFd::as_fd);
        let agent = self.agent.process();
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
        if self.is_waited_for() && self.agent.is_suspended() {
            self.let_go();
        }
        with_channel && is_ready.next().unwrap_or(false)
    }

    /// Whether a process that heapbpf has not started waits for the agent.
    fn is_waited_for(&self) -> bool {
        match &self.program {
            Some(program) => program.waits_for_agent(),
            None => self.stopped.is_some(),
        }
    }

    /// Resumes the process that waits for a suspended agent. The agent's next request fails for this reason.
    fn let_go(&mut self) {
        self.let_go = self.stopped.take().map(|stopped| stopped.living_thread()).or(self.let_go);
        if let Some(program) = &mut self.program {
            program.let_go();
        }
    }

    fn execute(&mut self, command: Command, descriptors: Vec<OwnedFd>) -> Answer {
        let answer = match command {
            Command::Stop(pid, limit) => self.stop(pid, limit.map(StopLimit::begin)),
            Command::Fork(code) => self.fork(&code, descriptors),
            Command::Resume => self.resume(),
            command => Ok(self.execute_launch(&command, descriptors)),
        };
        answer.unwrap_or_else(|error| match error {
            CollectError::StoppedForLong(..) => Answer::StoppedForLong,
            error => Answer::Failed(error.to_string()),
        })
    }

    fn stop(&mut self, pid: Pid, limit: Option<StopLimit>) -> Result<Answer, CollectError> {
        (self.stopped, self.let_go) = (None, None);
        let stopped = self.stop_others(pid, limit)?;
        let answer = Answer::Stopped { living: stopped.living_thread(), threads: stopped.states()? };
        self.stopped = Some(stopped);
        Ok(answer)
    }

    fn resume(&mut self) -> Result<Answer, CollectError> {
        match (self.stopped.take(), self.let_go) {
            (None, Some(pid)) => Err(CollectError::Suspended(pid)),
            (stopped, _) => {
                let released = stopped.map_or_else(Released::default, Stopped::release_all);
                let has_more = !self.copies.is_empty() || self.program.is_some() || retry_releases() > 0;
                Ok(Answer::Resumed { pause: released.pause, is_idle: released.is_complete && !has_more })
            }
        }
    }

    /// Stops all threads that are not held already. All threads of a held program are.
    fn stop_others(&self, pid: Pid, limit: Option<StopLimit>) -> Result<Stopped, CollectError> {
        Stopped::new_within(pid, self.held(pid), limit, &|| self.agent.is_connected())
    }

    fn held(&self, pid: Pid) -> Vec<StoppedThread> {
        let threads = self.program.as_ref().map(TracedProgram::threads);
        threads.filter(|(held, _)| *held == pid).map(|(_, threads)| threads).unwrap_or_default()
    }

    fn fork(&mut self, code: &[Region], descriptors: Vec<OwnedFd>) -> Result<Answer, CollectError> {
        if let (None, Some(pid)) = (&self.stopped, self.let_go) {
            return Err(CollectError::Suspended(pid));
        }
        let (Some(stopped), Some(pipe)) = (&self.stopped, descriptors.into_iter().next()) else {
            return Err(CollectError::Keeper("internal error: no process is stopped; please report it".to_owned()));
        };
        let copy = stopped.fork(code)?;
        let answer = Answer::Forked(copy.pid());
        self.copies.push(LentCopy { pipe, _copy: copy });
        Ok(answer)
    }

    fn execute_launch(&mut self, command: &Command, descriptors: Vec<OwnedFd>) -> Answer {
        let outcome = self.try_execute_launch(command, descriptors).unwrap_or_else(|error| match error {
            LaunchError::Unstoppable(pid) => Outcome::Unstoppable(pid),
            LaunchError::Suspended(pid) => Outcome::Suspended(pid),
            error => Outcome::Failed(error.to_string()),
        });
        let launch = self.program.as_ref().map(|program| &program.launch);
        let status = launch.and_then(Launch::ended).map(ExitStatusExt::into_raw);
        Answer::Launch { is_traced: launch.is_some_and(Launch::is_traced), status, outcome }
    }

    fn try_execute_launch(&mut self, command: &Command, descriptors: Vec<OwnedFd>) -> Result<Outcome, LaunchError> {
        match command {
            Command::Start(pid, program) => {
                let events = descriptors.into_iter().next();
                self.program = Some(TracedProgram::start(*pid, program.clone(), events, &self.agent)?);
            }
            Command::Hold(pid) => self.program = Some(TracedProgram::hold(*pid, descriptors.into_iter().next())?),
            Command::HoldAtExec(pid) => self.program = Some(TracedProgram::hold_at_exec(*pid, descriptors)?),
            _ => {
                if let Some(program) = &mut self.program {
                    return program.execute(command, &self.agent);
                }
            }
        }
        Ok(Outcome::Done)
    }
}

#[derive(Debug)]
struct TracedProgram {
    launch: Launch,
    /// Eventfd for notifications; `None` for processes that are detached after their start-up.
    events: Option<OwnedFd>,
    changes: Option<ChildSignal>,
    /// Whether all threads are stopped until the agent resumes them.
    is_stopped: bool,
    /// Whether heapbpf has started the program.
    is_own: bool,
    /// Whether the program was resumed because the agent was suspended.
    was_let_go: bool,
}

impl TracedProgram {
    fn hold(pid: Pid, events: Option<OwnedFd>) -> Result<Self, LaunchError> {
        let changes = events.as_ref().map(|_| ChildSignal::listen()).transpose();
        let changes = changes.map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let launch = if events.is_some() { Launch::hold_child(pid)? } else { Launch::hold(pid)? };
        Ok(Self { launch, events, changes, is_stopped: false, is_own: false, was_let_go: false })
    }

    /// Holds a process that heapbpf has started, and that has executed another program since.
    fn hold_at_exec(pid: Pid, descriptors: Vec<OwnedFd>) -> Result<Self, LaunchError> {
        let word = descriptors.into_iter().next().ok_or(io::Error::from(io::ErrorKind::InvalidInput));
        let note = word.and_then(|word| StopNote::new(pid, word));
        let note = note.map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let launch = Launch::hold_at_exec(pid, &note)?;
        Ok(Self { launch, events: None, changes: None, is_stopped: false, is_own: true, was_let_go: false })
    }

    fn start(pid: Pid, program: String, events: Option<OwnedFd>, agent: &Agent) -> Result<Self, LaunchError> {
        let changes = ChildSignal::listen().map_err(|error| LaunchError::Trace(program.clone(), error))?;
        let mut launch = Launch::seize(pid, program)?;
        // The child waits until it is traced.
        if agent.send(&Answer::Launch { is_traced: true, status: None, outcome: Outcome::Done }) {
            launch.run_to_exec(&|| agent.is_connected())?;
        }
        Ok(Self { launch, events, changes: Some(changes), is_stopped: false, is_own: true, was_let_go: false })
    }

    fn execute(&mut self, command: &Command, agent: &Agent) -> Result<Outcome, LaunchError> {
        if std::mem::take(&mut self.was_let_go) {
            return Err(LaunchError::Suspended(self.launch.pid()));
        }
        let launch = &mut self.launch;
        match command {
            Command::HoldAtExit => launch.hold_at_exit()?,
            Command::Step => return self.step(agent),
            Command::FollowExecs => {
                self.is_stopped = false;
                launch.follow_execs()?;
            }
            Command::NextStop => return Ok(Outcome::Stop(launch.next_stop()?)),
            Command::StopAll => {
                self.is_stopped = launch.stop()?;
                return Ok(Outcome::AllStopped(self.is_stopped));
            }
            Command::Release => {
                self.is_stopped = false;
                launch.release()?;
            }
            Command::Reap => drop(launch.try_reap()),
            // These commands were executed before, or are unexpected.
            _ => {}
        }
        Ok(Outcome::Done)
    }

    fn step(&mut self, agent: &Agent) -> Result<Outcome, LaunchError> {
        let other = (!self.is_own).then_some(self.launch.pid());
        let stepped = self.launch.step_until_loaded(&mut |at_exec| request_attach(at_exec, other, agent));
        if let Err(LaunchError::Suspended(_)) = stepped {
            self.let_go();
            self.was_let_go = false;
            // When the agent goes on, it sends the answer to the last request.
            agent.receive::<Command>(COMMAND_BYTES_MAX);
            return Err(LaunchError::Suspended(self.launch.pid()));
        }
        stepped.map(Outcome::StartUp)
    }

    /// Whether heapbpf has not started the program, and the program is held, or may stop without the tracing thread noticing it
    /// before the agent's next request.
    fn waits_for_agent(&self) -> bool {
        let is_noticed = self.launch.is_followed() && self.changes.is_some();
        !self.is_own && self.launch.is_traced() && !is_noticed
    }

    /// Resumes the program as if it had never been traced, without the agent.
    fn let_go(&mut self) {
        (self.is_stopped, self.was_let_go) = (false, true);
        // Threads that do not stop yet are detached when they do.
        let _ = self.launch.release();
        self.notify();
    }

    /// Passes signals on and traces new threads. Notifies the agent when the program is held or has exited.
    fn handle_changes(&mut self) {
        if let Some(changes) = &self.changes {
            changes.clear();
        }
        if self.is_stopped || !self.launch.is_followed() {
            return;
        }
        let stop = self.launch.next_stop();
        if !matches!(stop, Ok(None)) || !self.launch.is_followed() {
            self.notify();
        }
    }

    fn notify(&self) {
        if let Some(events) = &self.events {
            // `EAGAIN` means that the eventfd is readable already.
            let _ = rustix::io::write(events, &1_u64.to_ne_bytes());
        }
    }

    /// PID of the program, and its threads if all are held.
    fn threads(&self) -> (Pid, Vec<StoppedThread>) {
        // Later commands decide whether the threads resume.
        let held = |(tracee, stop)| StoppedThread { tracee, stop, release: Release::Keep };
        (self.launch.pid(), self.launch.held_threads().into_iter().map(held).collect())
    }
}

/// Requests that the agent attaches to new code. `other` is a process that heapbpf has not started: it does not wait for a
/// suspended agent.
fn request_attach(at_exec: bool, other: Option<Pid>, agent: &Agent) -> Result<(), LaunchError> {
    let is_sent = agent.send(&Answer::NewCode { at_exec });
    if let Some(pid) = other {
        while !agent.has_answer(SUSPENSION_PERIOD_NS) {
            if agent.is_suspended() {
                return Err(LaunchError::Suspended(pid));
            }
        }
    }
    match is_sent.then(|| agent.receive(COMMAND_BYTES_MAX)).flatten() {
        Some((Command::Continue, _)) => Ok(()),
        _ => Err(LaunchError::Trace("the program".to_owned(), io::ErrorKind::BrokenPipe.into())),
    }
}

#[cfg(test)]
mod tests;
