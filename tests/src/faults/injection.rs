//! Performs a kill: starts heapbpf, waits for the point in time, kills the process, and finds harm.

use std::collections::HashMap;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::aftermath::{Harm, Harms, await_processes, examine, files};
use super::agent::{Agent, send};
use super::case::{Backend, Case, KillTime, Mode, Role};
use super::companion::Companion;
use super::kernel_log::KernelLog;
use super::processes::{self, orphans};
use super::random::Random;
use super::subject::Subject;
use crate::heapbpf::binary;

/// Minimum range of kills during start-up, for machines that attach fast.
const START_WITHIN: Duration = Duration::from_millis(300);
/// Maximum delay of kills after attaching, and after SIGINT.
const STEADY_WITHIN: Duration = Duration::from_millis(300);
const DETACH_WITHIN: Duration = Duration::from_millis(150);
/// Maximum delay of kills after the start of the symbolizer; less where it is faster.
const SYMBOLIZER_WITHIN: Duration = Duration::from_millis(20);
/// From attaching to SIGINT.
const RECORDED_FOR: Duration = Duration::from_millis(30);
/// From the kill of symbolizer or target to SIGINT, where heapbpf continues.
const CONTINUES_FOR: Duration = Duration::from_millis(200);
/// Timeout of the exit of heapbpf after a kill of its keeper.
const KEEPER_EXIT_WITHIN: Duration = Duration::from_secs(10);
/// Timeout of other exits of heapbpf, and of the start of a process of a role.
const EXITS_WITHIN: Duration = Duration::from_secs(60);
const POLL_PERIOD: Duration = Duration::from_micros(200);
/// From attaching until a process of a role exists: the symbolizer starts after detaching, which takes seconds with perf events.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// Result of a kill.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) time: KillTime,
    pub(super) harms: Harms,
    /// From the kill to the end of the examination.
    pub(super) settled: Duration,
}

/// Performs kills one after the other, with the same target as long as it is unharmed.
pub(super) struct Injector {
    random: Random,
    log: KernelLog,
    /// Shared by all runs.
    cache: TempDir,
    subject: Option<Subject>,
    /// Estimated run time of the symbolizer.
    symbolizing: Duration,
    /// Measured durations of start-up.
    start_up: HashMap<(Mode, Backend), Duration>,
}

impl Injector {
    /// `seed`: of random points in time.
    pub(super) fn new(seed: u64) -> Self {
        // Orphans of killed processes become children of this process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("Linux 3.4 has it");
        Self {
            random: Random::new(seed ^ 0x5eed),
            log: KernelLog::open(),
            cache: tempfile::tempdir().expect("there is a directory for temporary files"),
            subject: None,
            symbolizing: SYMBOLIZER_WITHIN,
            start_up: HashMap::new(),
        }
    }

    /// Performs a kill, at a random time unless `at` is given; `None` when heapbpf had exited before.
    pub(super) fn inject(&mut self, case: Case, at: Option<KillTime>) -> Option<Outcome> {
        let time = at.unwrap_or_else(|| self.random_time(case));
        let subject = self.subject.take().filter(|_| case.mode != Mode::Launch);
        let start = || if case.mode == Mode::Launch { Subject::prepare() } else { Subject::start() };
        let mut subject = subject.unwrap_or_else(start);
        let arguments = case.arguments(subject.pid(), &subject.command_line());
        let mut agent = Agent::start(case, &arguments, self.cache.path(), subject.progress().duplicate());
        let companion = (case.mode == Mode::Cmdline).then(|| Companion::start(&subject));
        let Some(victim) = self.await_kill_time(case, time, &mut agent, &subject) else {
            return self.missed(case, time, &mut agent, subject);
        };
        if case.role == Role::Symbolizer {
            self.symbolizing = SYMBOLIZER_WITHIN.min(self.symbolizing * 3 / 2);
        }
        let threads = agent.threads();
        let killed = Instant::now();
        send(victim, Signal::KILL);
        if case.role == Role::Both {
            send(agent.pid(), Signal::KILL);
        }
        let mut harms = match case.role {
            Role::Agent | Role::Both => after_agent(&mut agent),
            Role::Keeper => after_keeper(&mut agent, case, time, &subject),
            Role::Symbolizer => after_symbolizer(&mut agent, case, time, &subject),
            Role::Target => after_target(&mut agent, case, time),
        };
        // Processes that were started since are children of these.
        let own = subject.pid().max(subject.progress().announced().unwrap_or(0));
        let known: Vec<u32> = companion.as_ref().map(Companion::pid).into_iter().chain([own]).collect();
        harms.extend(await_processes(&known));
        harms.extend(files(&agent));
        if case.role == Role::Both {
            harms.extend(after_next_session(&subject));
        }
        if case.role != Role::Target {
            harms.extend(examine_subject(&mut subject, case, time));
        }
        harms.extend(companion.map(Companion::finish).unwrap_or_default());
        // A killed keeper leaks the link that it is closing; another keeper removes the breakpoint before heapbpf exits.
        let leaks =
            if matches!(case.role, Role::Keeper | Role::Both) { Vec::new() } else { self.log.leaks_of(&threads) };
        harms.extend(leaks.first().map(|line| (Harm::KernelLog, format!("{} lines: {line}", leaks.len()))));
        if harms.is_empty() && case.mode != Mode::Launch && case.role != Role::Target {
            self.subject = Some(subject);
        }
        Some(Outcome { time, harms, settled: killed.elapsed() })
    }

    /// Stops the last target, which must exit without an error.
    ///
    /// # Panics
    ///
    /// When it exits with an error.
    pub(super) fn finish(&mut self) {
        if let Some(mut subject) = self.subject.take() {
            subject.stop().unwrap_or_else(|error| panic!("after all kills: {error}"));
        }
    }

    /// A random point in time: half of them during start-up and attaching, the others during recording and detaching.
    fn random_time(&mut self, case: Case) -> KillTime {
        let known = self.start_up.get(&(case.mode, case.backend)).copied();
        if case.role == Role::Symbolizer {
            return KillTime::Detach(self.random.duration(self.symbolizing));
        }
        if case.mode.is_one_shot() {
            let life = known.unwrap_or(START_WITHIN);
            // The keeper starts late and exits early.
            return KillTime::Start(self.random.duration(if case.role == Role::Keeper { life / 8 } else { life }));
        }
        match self.random.below(4) {
            0 | 1 => {
                let known = known.or_else(|| self.start_up.values().max().copied()).unwrap_or_default();
                KillTime::Start(self.random.duration(START_WITHIN.max(known + known / 4)))
            }
            2 => KillTime::Steady(self.random.duration(STEADY_WITHIN)),
            _ => KillTime::Detach(self.random.duration(DETACH_WITHIN)),
        }
    }

    /// Waits until the time of the kill, and returns the process.
    fn await_kill_time(&mut self, case: Case, time: KillTime, agent: &mut Agent, subject: &Subject) -> Option<u32> {
        let find = |agent: &Agent| match case.role {
            Role::Target if case.mode == Mode::Launch => launched(agent, subject),
            Role::Target => Some(subject.pid()),
            role => agent.process(role),
        };
        match time {
            KillTime::Start(after) => {
                let from = if find(agent).is_some() { agent.started() } else { appearance(agent, &find)? };
                sleep_until(from + after);
            }
            KillTime::Steady(after) | KillTime::Detach(after) => {
                let start_up = agent.wait_until_ready()?;
                self.start_up.insert((case.mode, case.backend), start_up);
                if matches!(time, KillTime::Detach(_)) {
                    thread::sleep(RECORDED_FOR);
                    end_recording(agent, case, subject);
                }
                if case.role == Role::Symbolizer {
                    appearance(agent, &find)?;
                }
                sleep_until(Instant::now() + after);
            }
        }
        if agent.ended().is_some() { None } else { find(agent) }
    }

    /// Cleans up after a run without a process to kill. That is a fault if the role should exist.
    fn missed(&mut self, case: Case, time: KillTime, agent: &mut Agent, mut subject: Subject) -> Option<Outcome> {
        let lived = agent.started().elapsed();
        if case.role == Role::Symbolizer {
            self.symbolizing = (self.symbolizing / 2).max(SYMBOLIZER_WITHIN / 100);
        }
        if case.mode.is_one_shot() {
            self.start_up.insert((case.mode, case.backend), lived);
        }
        // It may have exited while heapbpf detached.
        let lacks_role = matches!(case.role, Role::Keeper | Role::Symbolizer)
            && !matches!(time, KillTime::Detach(_))
            && agent.ended().is_none();
        let is_late = agent.ended().is_none() && !agent.is_ready();
        end_recording(agent, case, &subject);
        let status = agent.wait(EXITS_WITHIN);
        if case.mode == Mode::Launch {
            // Its exit is not checked.
            subject.progress().announced().into_iter().for_each(|pid| subject.adopt(pid));
        } else {
            self.subject = Some(subject);
        }
        let fault = match status {
            None => format!("heapbpf does not exit: {}", agent.stderr()),
            Some(_) if is_late => format!("no probes after {} s: {}", lived.as_secs(), agent.stderr()),
            Some(_) if lacks_role => format!("heapbpf has no process of the role {}", case.role),
            Some(status) if is_failure(status) => format!("heapbpf exited: {status}: {}", agent.stderr()),
            Some(_) => return None,
        };
        Some(Outcome { time, harms: vec![(Harm::Ending, fault)], settled: Duration::ZERO })
    }
}

/// Whether heapbpf failed without having been killed.
fn is_failure(status: ExitStatus) -> bool {
    !matches!(status.code(), Some(0 | 3 | 4 | 130))
}

/// Waits until a process exists, for a limited time after attaching.
fn appearance(agent: &mut Agent, find: &impl Fn(&Agent) -> Option<u32>) -> Option<Instant> {
    let mut deadline = Instant::now() + EXITS_WITHIN;
    let mut was_ready = false;
    while Instant::now() < deadline {
        if agent.ended().is_some() {
            return None;
        }
        if find(agent).is_some() {
            return Some(Instant::now());
        }
        if !was_ready && agent.is_ready() {
            was_ready = true;
            deadline = Instant::now() + APPEARS_WITHIN;
        }
        thread::sleep(POLL_PERIOD);
    }
    None
}

/// The process that heapbpf has started.
fn launched(agent: &Agent, subject: &Subject) -> Option<u32> {
    subject
        .progress()
        .announced()
        .or_else(|| processes::family(agent.pid()).into_iter().find(|&pid| subject.is_process(pid)))
}

/// Sends Ctrl-C, except in launch mode, where the command would receive it, too: there the command exits.
fn end_recording(agent: &mut Agent, case: Case, subject: &Subject) {
    if case.mode == Mode::Launch {
        subject.request_stop();
    } else {
        agent.signal(Signal::INT);
    }
}

/// Sleeps, and spins for the last 150 µs: the scheduler is not precise enough.
fn sleep_until(time: Instant) {
    let left = time.saturating_duration_since(Instant::now());
    thread::sleep(left.saturating_sub(Duration::from_micros(150)));
    while Instant::now() < time {
        std::hint::spin_loop();
    }
}

fn after_agent(agent: &mut Agent) -> Harms {
    if agent.wait(EXITS_WITHIN).is_some() {
        return Vec::new();
    }
    vec![(Harm::Ending, "heapbpf does not exit after SIGKILL".to_owned())]
}

/// heapbpf must report the exit of the keeper, and write its output.
fn after_keeper(agent: &mut Agent, case: Case, time: KillTime, subject: &Subject) -> Harms {
    let was_ready = agent.is_ready();
    // The keeper may have completed its work.
    let is_late = matches!(time, KillTime::Detach(_)) || case.mode.is_one_shot();
    if case.mode == Mode::Launch {
        // heapbpf waits for its command, whose exit code it returns.
        thread::sleep(CONTINUES_FOR);
        subject.request_stop();
    }
    let Some(status) = agent.wait(KEEPER_EXIT_WITHIN) else {
        return vec![(Harm::Ending, "heapbpf continues without its keeper".to_owned())];
    };
    let stderr = agent.stderr();
    let is_named = stderr.contains("keeper");
    let fault = match status.code() {
        Some(0) if is_late => agent.output_fault(),
        Some(4) if is_late && case.mode.is_leaks() => agent.output_fault(),
        Some(0) if case.mode == Mode::Launch && is_named => agent.output_fault(),
        Some(3) if !is_named && !is_late => Some(format!("no message about it: {stderr}")),
        Some(3) => agent.output_fault(),
        // Without a keeper no process can be stopped for a heap snapshot.
        Some(1) if (!was_ready || case.mode.is_leaks()) && is_named => None,
        _ => Some(format!("{status}: {stderr}")),
    };
    fault.map(|fault| (Harm::Ending, fault)).into_iter().collect()
}

/// The next session must remove what the killed one left.
fn after_next_session(subject: &Subject) -> Harms {
    let room = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut command = Command::new(binary());
    command.args(["--pid", &subject.pid().to_string(), "--duration", "100ms", "-o", "out.json"]);
    let output = command.current_dir(room.path()).stdin(Stdio::null()).output().expect("heapbpf is built");
    if matches!(output.status.code(), Some(0 | 3)) {
        return Vec::new();
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    vec![(Harm::Ending, format!("the next session: {}: {stderr}", output.status))]
}

/// heapbpf must continue, and write its report when it is interrupted.
fn after_symbolizer(agent: &mut Agent, case: Case, time: KillTime, subject: &Subject) -> Harms {
    if !case.mode.is_one_shot() && !matches!(time, KillTime::Detach(_)) {
        // SIGINT before probes are attached stops heapbpf without a report.
        if agent.wait_until_ready().is_none() {
            return vec![(Harm::Ending, format!("heapbpf exited without its symbolizer: {}", agent.stderr()))];
        }
        thread::sleep(CONTINUES_FOR);
        if let Some(status) = agent.ended() {
            return vec![(
                Harm::Ending,
                format!("heapbpf exited without its symbolizer: {status}: {}", agent.stderr()),
            )];
        }
        end_recording(agent, case, subject);
    }
    let fault = match agent.wait(EXITS_WITHIN) {
        None => Some("heapbpf does not exit".to_owned()),
        Some(status) if matches!(status.code(), Some(0 | 3)) => agent.output_fault(),
        Some(status) if status.code() == Some(4) && case.mode.is_leaks() => agent.output_fault(),
        Some(status) => Some(format!("{status}: {}", agent.stderr())),
    };
    fault.map(|fault| (Harm::Ending, fault)).into_iter().collect()
}

/// heapbpf must write its report, or print the reason for not writing one.
fn after_target(agent: &mut Agent, case: Case, time: KillTime) -> Harms {
    let was_ready = agent.is_ready();
    if case.mode == Mode::Cmdline {
        // heapbpf waits for other programs of that name.
        if agent.wait_until_ready().is_some() {
            thread::sleep(CONTINUES_FOR);
        }
        agent.signal(Signal::INT);
    }
    let status = agent.wait(EXITS_WITHIN);
    let stderr = agent.stderr();
    let is_explained = stderr.contains("error: ");
    let fault = match status.and_then(|status| status.code()) {
        None => Some(format!("heapbpf does not exit, or by a signal ({status:?}): {stderr}")),
        // Like a shell, for a killed program.
        Some(137) if case.mode == Mode::Launch => None,
        // The target may have exited on request before the kill.
        Some(0) if case.mode == Mode::Launch && matches!(time, KillTime::Detach(_)) => agent.output_fault(),
        Some(0 | 3) if case.mode != Mode::Launch => agent.output_fault(),
        Some(4) if case.mode.is_leaks() => agent.output_fault(),
        Some(130) if case.mode == Mode::Cmdline && !was_ready => None,
        Some(1) if (!was_ready || case.mode.is_leaks()) && is_explained => None,
        Some(code) => Some(format!("exit code {code}: {stderr}")),
    };
    fault.map(|fault| (Harm::Ending, fault)).into_iter().collect()
}

/// Examines the target.
fn examine_subject(subject: &mut Subject, case: Case, time: KillTime) -> Harms {
    if case.mode == Mode::Launch {
        match await_launched(subject) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(error) => return vec![(Harm::Held, error)],
        }
    }
    let was_stopped = case.mode == Mode::Launch && (matches!(time, KillTime::Detach(_)) || case.role != Role::Agent);
    if !was_stopped {
        let harms = examine(subject);
        if case.mode != Mode::Launch || !harms.is_empty() {
            return harms;
        }
    }
    // heapbpf has reaped it, if it exited before heapbpf did.
    if subject.progress().announced().is_some_and(|pid| !processes::is_alive(pid)) && subject.ended().is_none() {
        return Vec::new();
    }
    subject.stop().err().map(|error| (Harm::Died, error)).into_iter().collect()
}

/// Whether the launched command runs. It need not when it was killed before its first instruction.
fn await_launched(subject: &mut Subject) -> Result<bool, String> {
    let deadline = Instant::now() + EXITS_WITHIN / 3;
    loop {
        if let Some(pid) = subject.progress().announced() {
            subject.adopt(pid);
            return Ok(true);
        }
        let starting = orphans(&[]).into_iter().find(|&pid| subject.is_process(pid));
        let Some(pid) = starting else {
            // It may have started in between, and exited since.
            return Ok(subject.progress().announced().is_some_and(processes::is_alive));
        };
        if Instant::now() > deadline {
            let held = processes::held_threads(pid);
            subject.adopt(pid);
            return Err(format!("the command does not start: {}", held.join(", ")));
        }
        thread::sleep(POLL_PERIOD);
    }
}
