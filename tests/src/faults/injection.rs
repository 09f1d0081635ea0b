//! One kill: heapbpf is started, the point in time awaited, the process killed, and the aftermath examined.

use std::collections::HashMap;
use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::aftermath::{Harm, Harms, await_processes, examine, files};
use super::agent::{Agent, send};
use super::case::{Backend, Case, Mode, Moment, Role};
use super::companion::Companion;
use super::kernel_log::KernelLog;
use super::plan::Plan;
use super::processes::{self, orphans};
use super::random::Random;
use super::subject::Subject;

/// Start-up kills come this early at least, however fast a machine attaches.
const START_WITHIN: Duration = Duration::from_millis(300);
/// Steady-state kills come this long after attaching at most, and detach kills after SIGINT.
const STEADY_WITHIN: Duration = Duration::from_millis(300);
const DETACH_WITHIN: Duration = Duration::from_millis(150);
/// The symbolizer starts when names are needed; kills come this long after that at most, and less where it is faster.
const NAMED_WITHIN: Duration = Duration::from_millis(20);
/// From attaching to SIGINT.
const RECORDED_FOR: Duration = Duration::from_millis(30);
/// From the symbolizer's or target's death to SIGINT, where heapbpf goes on.
const GOES_ON_FOR: Duration = Duration::from_millis(200);
/// Until heapbpf ends by itself when its keeper has died.
const KEEPER_ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Until heapbpf has ended otherwise, and until a process of a role exists. Only a hang takes this long.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
const POLL_PERIOD: Duration = Duration::from_micros(200);
/// From attaching until a process of a role exists: the symbolizer starts after detaching, which takes seconds with perf events.
const APPEARS_WITHIN: Duration = Duration::from_secs(10);

/// What a kill did.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) moment: Moment,
    pub(super) harms: Harms,
    /// From the kill until everything was examined.
    pub(super) settled: Duration,
}

/// Makes kills, one after the other, and keeps the target from one to the next.
pub(super) struct Injector {
    random: Random,
    at: Option<Moment>,
    log: KernelLog,
    /// Shared by all runs.
    cache: TempDir,
    subject: Option<Subject>,
    /// How long the symbolizer takes, as far as it was seen.
    naming: Duration,
    /// How long start-up takes, as far as it was seen.
    start_up: HashMap<(Mode, Backend), Duration>,
}

impl Injector {
    pub(super) fn new(plan: &Plan) -> Self {
        // Children of processes that are killed become ours, where they can be found and waited for.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("Linux 3.4 has it");
        Self {
            random: Random::new(plan.seed() ^ 0x5eed),
            at: plan.at(),
            log: KernelLog::open(),
            cache: tempfile::tempdir().expect("there is a directory for temporary files"),
            subject: None,
            naming: NAMED_WITHIN,
            start_up: HashMap::new(),
        }
    }

    /// Makes one kill; `None` when heapbpf had ended by itself before it.
    pub(super) fn inject(&mut self, case: Case) -> Option<Outcome> {
        let moment = self.at.unwrap_or_else(|| self.draw(case));
        let subject = self.subject.take().filter(|_| case.mode != Mode::Launch);
        let start = || if case.mode == Mode::Launch { Subject::prepare() } else { Subject::start() };
        let mut subject = subject.unwrap_or_else(start);
        let arguments = case.arguments(subject.pid(), &subject.command_line());
        let mut agent = Agent::start(case, &arguments, self.cache.path(), subject.progress().duplicate());
        let companion = (case.mode == Mode::Cmdline).then(|| Companion::start(&subject));
        let Some(victim) = self.await_moment(case, moment, &mut agent, &subject) else {
            return self.missed(case, moment, &mut agent, subject);
        };
        if case.role == Role::Symbolizer {
            self.naming = NAMED_WITHIN.min(self.naming * 3 / 2);
        }
        let threads = agent.threads();
        let killed = Instant::now();
        send(victim, Signal::KILL);
        let mut harms = match case.role {
            Role::Agent => after_agent(&mut agent),
            Role::Keeper => after_keeper(&mut agent, case, moment, &subject),
            Role::Symbolizer => after_symbolizer(&mut agent, case, moment, &subject),
            Role::Target => after_target(&mut agent, case, moment),
        };
        // Processes started since are children of those.
        let own = subject.pid().max(subject.progress().announced().unwrap_or(0));
        let known: Vec<u32> = companion.as_ref().map(Companion::pid).into_iter().chain([own]).collect();
        harms.extend(await_processes(&known));
        harms.extend(files(&agent));
        if case.role != Role::Target {
            harms.extend(examine_subject(&mut subject, case, moment));
        }
        harms.extend(companion.map(Companion::finish).unwrap_or_default());
        // A keeper that is killed leaks what it is closing; another one removes that before heapbpf ends.
        let leaks = if case.role == Role::Keeper { Vec::new() } else { self.log.leaks_of(&threads) };
        harms.extend(leaks.first().map(|line| (Harm::KernelLog, format!("{} lines: {line}", leaks.len()))));
        if harms.is_empty() && case.mode != Mode::Launch && case.role != Role::Target {
            self.subject = Some(subject);
        }
        Some(Outcome { moment, harms, settled: killed.elapsed() })
    }

    /// Ends the last target, which must have worked without a fault to its end.
    ///
    /// # Panics
    ///
    /// When it ends in another way.
    pub(super) fn finish(&mut self) {
        if let Some(mut subject) = self.subject.take() {
            subject.stop().unwrap_or_else(|error| panic!("after all kills: {error}"));
        }
    }

    /// A point in time: half of them while heapbpf starts and attaches, the others while it records and detaches.
    fn draw(&mut self, case: Case) -> Moment {
        let known = self.start_up.get(&(case.mode, case.backend)).copied();
        if case.role == Role::Symbolizer {
            return Moment::Detach(self.random.duration(self.naming));
        }
        if case.mode.is_one_shot() {
            let life = known.unwrap_or(START_WITHIN);
            // The keeper appears late and ends early.
            return Moment::Start(self.random.duration(if case.role == Role::Keeper { life / 8 } else { life }));
        }
        match self.random.below(4) {
            0 | 1 => {
                let known = known.or_else(|| self.start_up.values().max().copied()).unwrap_or_default();
                Moment::Start(self.random.duration(START_WITHIN.max(known + known / 4)))
            }
            2 => Moment::Steady(self.random.duration(STEADY_WITHIN)),
            _ => Moment::Detach(self.random.duration(DETACH_WITHIN)),
        }
    }

    /// Waits until it is time, and returns the process to be killed.
    fn await_moment(&mut self, case: Case, moment: Moment, agent: &mut Agent, subject: &Subject) -> Option<u32> {
        let find = |agent: &Agent| match case.role {
            Role::Target if case.mode == Mode::Launch => launched(agent, subject),
            Role::Target => Some(subject.pid()),
            role => agent.process(role),
        };
        match moment {
            Moment::Start(after) => {
                let from = if find(agent).is_some() { agent.started() } else { appearance(agent, &find)? };
                sleep_until(from + after);
            }
            Moment::Steady(after) | Moment::Detach(after) => {
                let start_up = agent.wait_until_ready()?;
                self.start_up.insert((case.mode, case.backend), start_up);
                if matches!(moment, Moment::Detach(_)) {
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

    /// Cleans up after a run in which there was nothing to kill. That is a fault where the role should exist.
    fn missed(&mut self, case: Case, moment: Moment, agent: &mut Agent, mut subject: Subject) -> Option<Outcome> {
        let lived = agent.started().elapsed();
        if case.role == Role::Symbolizer {
            self.naming = (self.naming / 2).max(NAMED_WITHIN / 100);
        }
        if case.mode.is_one_shot() {
            self.start_up.insert((case.mode, case.backend), lived);
        }
        // While heapbpf detaches it may have ended.
        let lacks_role = matches!(case.role, Role::Keeper | Role::Symbolizer)
            && !matches!(moment, Moment::Detach(_))
            && agent.ended().is_none();
        let is_late = agent.ended().is_none() && !agent.is_ready();
        end_recording(agent, case, &subject);
        let status = agent.wait(ENDS_WITHIN);
        if case.mode == Mode::Launch {
            // Whatever it is, its end is no matter of this run.
            subject.progress().announced().into_iter().for_each(|pid| subject.adopt(pid));
        } else {
            self.subject = Some(subject);
        }
        let fault = match status {
            None => format!("heapbpf does not end: {}", agent.stderr()),
            Some(_) if is_late => format!("no probes after {} s: {}", lived.as_secs(), agent.stderr()),
            Some(_) if lacks_role => format!("heapbpf has no process that is the {}", case.role),
            Some(status) if is_failure(status) => format!("heapbpf ended: {status}: {}", agent.stderr()),
            Some(_) => return None,
        };
        Some(Outcome { moment, harms: vec![(Harm::Ending, fault)], settled: Duration::ZERO })
    }
}

/// Nothing killed it, and yet it did not end with a result.
fn is_failure(status: ExitStatus) -> bool {
    !matches!(status.code(), Some(0 | 3 | 4 | 130))
}

/// Waits until a process exists, at most for some time after attaching.
fn appearance(agent: &mut Agent, find: &impl Fn(&Agent) -> Option<u32>) -> Option<Instant> {
    let mut deadline = Instant::now() + ENDS_WITHIN;
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

/// Ctrl-C, except where that would reach the command too: then the command ends.
fn end_recording(agent: &mut Agent, case: Case, subject: &Subject) {
    if case.mode == Mode::Launch {
        subject.request_stop();
    } else {
        agent.signal(Signal::INT);
    }
}

/// Sleeps, except for the last moment: the scheduler is not that exact.
fn sleep_until(time: Instant) {
    let left = time.saturating_duration_since(Instant::now());
    thread::sleep(left.saturating_sub(Duration::from_micros(150)));
    while Instant::now() < time {
        std::hint::spin_loop();
    }
}

fn after_agent(agent: &mut Agent) -> Harms {
    if agent.wait(ENDS_WITHIN).is_some() {
        return Vec::new();
    }
    vec![(Harm::Ending, "heapbpf does not end after SIGKILL".to_owned())]
}

/// It must notice, report it, and write what it has.
fn after_keeper(agent: &mut Agent, case: Case, moment: Moment, subject: &Subject) -> Harms {
    let was_ready = agent.is_ready();
    // It may have done all that it is for.
    let is_late = matches!(moment, Moment::Detach(_)) || case.mode.is_one_shot();
    if case.mode == Mode::Launch {
        // It still waits for its command, whose exit code it passes on.
        thread::sleep(GOES_ON_FOR);
        subject.request_stop();
    }
    let Some(status) = agent.wait(KEEPER_ENDS_WITHIN) else {
        return vec![(Harm::Ending, "heapbpf goes on without its keeper".to_owned())];
    };
    let stderr = agent.stderr();
    let is_named = stderr.contains("keeper");
    let fault = match status.code() {
        Some(0) if is_late => agent.output_fault(),
        Some(4) if is_late && case.mode.is_leaks() => agent.output_fault(),
        Some(0) if case.mode == Mode::Launch && is_named => agent.output_fault(),
        Some(3) if !is_named && !is_late => Some(format!("no word about it: {stderr}")),
        Some(3) => agent.output_fault(),
        // Without a keeper nothing can be stopped to be looked at.
        Some(1) if (!was_ready || case.mode.is_leaks()) && is_named => None,
        _ => Some(format!("{status}: {stderr}")),
    };
    fault.map(|fault| (Harm::Ending, fault)).into_iter().collect()
}

/// It must go on, and write its report when it is ended.
fn after_symbolizer(agent: &mut Agent, case: Case, moment: Moment, subject: &Subject) -> Harms {
    if !case.mode.is_one_shot() && !matches!(moment, Moment::Detach(_)) {
        // SIGINT before probes are in place would end it without a report.
        if agent.wait_until_ready().is_none() {
            return vec![(Harm::Ending, format!("heapbpf ended without its symbolizer: {}", agent.stderr()))];
        }
        thread::sleep(GOES_ON_FOR);
        if let Some(status) = agent.ended() {
            return vec![(Harm::Ending, format!("heapbpf ended without its symbolizer: {status}: {}", agent.stderr()))];
        }
        end_recording(agent, case, subject);
    }
    let fault = match agent.wait(ENDS_WITHIN) {
        None => Some("heapbpf does not end".to_owned()),
        Some(status) if matches!(status.code(), Some(0 | 3)) => agent.output_fault(),
        Some(status) if status.code() == Some(4) && case.mode.is_leaks() => agent.output_fault(),
        Some(status) => Some(format!("{status}: {}", agent.stderr())),
    };
    fault.map(|fault| (Harm::Ending, fault)).into_iter().collect()
}

/// It must write its report, or name the reason why there is none.
fn after_target(agent: &mut Agent, case: Case, moment: Moment) -> Harms {
    let was_ready = agent.is_ready();
    if case.mode == Mode::Cmdline {
        // It waits for other programs of that name.
        if agent.wait_until_ready().is_some() {
            thread::sleep(GOES_ON_FOR);
        }
        agent.signal(Signal::INT);
    }
    let status = agent.wait(ENDS_WITHIN);
    let stderr = agent.stderr();
    let is_explained = stderr.contains("error: ");
    let fault = match status.and_then(|status| status.code()) {
        None => Some(format!("heapbpf does not end, or by a signal ({status:?}): {stderr}")),
        // As a shell reports a program that was killed.
        Some(137) if case.mode == Mode::Launch => None,
        // It was asked to end, and may have before it was killed.
        Some(0) if case.mode == Mode::Launch && matches!(moment, Moment::Detach(_)) => agent.output_fault(),
        Some(0 | 3) if case.mode != Mode::Launch => agent.output_fault(),
        Some(4) if case.mode.is_leaks() => agent.output_fault(),
        Some(130) if case.mode == Mode::Cmdline && !was_ready => None,
        Some(1) if (!was_ready || case.mode.is_leaks()) && is_explained => None,
        Some(code) => Some(format!("exit code {code}: {stderr}")),
    };
    fault.map(|fault| (Harm::Ending, fault)).into_iter().collect()
}

/// Examines the target, wherever heapbpf has left it.
fn examine_subject(subject: &mut Subject, case: Case, moment: Moment) -> Harms {
    if case.mode == Mode::Launch {
        match await_launched(subject) {
            Ok(true) => {}
            Ok(false) => return Vec::new(),
            Err(error) => return vec![(Harm::Held, error)],
        }
    }
    let was_stopped = case.mode == Mode::Launch && (matches!(moment, Moment::Detach(_)) || case.role != Role::Agent);
    if !was_stopped {
        let harms = examine(subject);
        if case.mode != Mode::Launch || !harms.is_empty() {
            return harms;
        }
    }
    // heapbpf has waited for it, where it has ended before heapbpf did.
    if subject.progress().announced().is_some_and(|pid| !processes::is_alive(pid)) && subject.ended().is_none() {
        return Vec::new();
    }
    subject.stop().err().map(|error| (Harm::Died, error)).into_iter().collect()
}

/// Whether a command that heapbpf was to launch runs. One that was killed before its first instruction need not.
fn await_launched(subject: &mut Subject) -> Result<bool, String> {
    let deadline = Instant::now() + ENDS_WITHIN / 3;
    loop {
        if let Some(pid) = subject.progress().announced() {
            subject.adopt(pid);
            return Ok(true);
        }
        let starting = orphans(&[]).into_iter().find(|&pid| subject.is_process(pid));
        let Some(pid) = starting else {
            // It may have announced itself in between, and ended since.
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
