//! Kills heapbpf's processes while the inline engine records: programs must work on.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use heapbpf_tests::kernel;
use rustix::process::Signal;

use super::attack::{Attack, ROLES};
use super::profiler::{Profiler, send, slots_left};
use super::programs::Program;
use super::subject::Subject;
use super::tally::{Killed, Tally};

/// Timeout of the restoration by the process that was not killed.
const RESTORED_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Agent,
    Keeper,
    Both,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Keeper => "keeper",
            Self::Both => "agent and keeper",
        }
    }
}

/// Kills as often, in turn by role, and shared between the programs.
pub(super) fn run(attack: &mut Attack, programs: &[&Program], kills: usize, tally: &mut Tally) -> Result<()> {
    let not_run = tally.not_run();
    let programs: Vec<&&Program> = programs.iter().filter(|program| !not_run.contains(&program.name)).collect();
    for (number, program) in programs.iter().enumerate() {
        let share = |number: usize| kills * number / programs.len();
        let (mut running, mut expected) = (None, None);
        for kill in share(number)..share(number + 1) {
            let role = ROLES[kill % ROLES.len()];
            let mut subject = match running.take() {
                Some(subject) => subject,
                None => attack.start(program)?.1,
            };
            let killed = tally.killed.entry(role.name()).or_default();
            match kill_once(attack, role, &mut *subject, killed) {
                Ok(()) => running = Some(subject),
                Err(error) => {
                    killed.harmed += 1;
                    eprintln!("faults: {}, kill {kill} of {}: {error:#}", program.name, role.name());
                }
            }
        }
        if let Some(mut subject) = running {
            let result = subject.finish();
            let other = attack.start(program).and_then(|(_, mut plain)| plain.finish());
            expected.get_or_insert(other.ok());
            if result.as_ref().ok() != expected.as_ref().and_then(Option::as_ref) {
                tally.killed.entry("result").or_default().harmed += 1;
                eprintln!("faults: {} after its kills: {result:?} instead of {expected:?}", program.name);
            }
        }
    }
    Ok(())
}

/// Fails when the program has been harmed.
fn kill_once(attack: &mut Attack, role: Role, subject: &mut dyn Subject, killed: &mut Killed) -> Result<()> {
    let pids = subject.pids();
    let arguments = attack.arguments(pids[0]);
    let mut profiler = Profiler::spawn(&attack.binary, &arguments, attack.workshop.folder())?;
    if attack.random.below(2) == 0 {
        profiler.wait_until_ready()?;
        if attack.random.below(2) == 0 {
            profiler.signal(Signal::INT);
        }
    }
    thread::sleep(attack.random.duration(Duration::from_millis(200)));
    let keeper = if profiler.exists() { kernel::keeper(profiler.pid()) } else { None };
    killed.kills += 1;
    if role != Role::Agent {
        keeper.into_iter().for_each(|keeper| send(keeper, Signal::KILL));
    }
    if role != Role::Keeper || keeper.is_none() {
        profiler.signal(Signal::KILL);
    }
    profiler.wait()?;
    let mut left = slots_left(&pids);
    let deadline = Instant::now() + RESTORED_WITHIN;
    while left > 0 && role != Role::Both && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
        left = slots_left(&pids);
    }
    killed.slots += left;
    killed.with_slots += usize::from(left > 0);
    subject.check()?;
    if role == Role::Both || left > 0 {
        let arguments = attack.arguments(pids[0]);
        let mut next = Profiler::spawn(&attack.binary, &arguments, attack.workshop.folder())?;
        next.wait_until_ready()?;
        next.end()?;
        let left = slots_left(&pids);
        killed.after_next += left;
        if left > 0 {
            bail!("{left} slots lead to stubs after the next session");
        }
    }
    subject.check()
}
