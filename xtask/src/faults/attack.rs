//! A differential attack on the inline engine: programs whose result is known work while heapbpf attaches and detaches at random.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use heapbpf_tests::faults::random::Random;

use super::kills::{self, Role};
use super::memory::Memory;
use super::profiler::{Profiler, slots_left};
use super::programs::{Line, PROGRAMS, Program, Workshop};
use super::subject::{Died, Subject, Worker};
use super::tally::{Row, Tally};

const INTERVALS: [&str; 3] = ["1", "4KiB", "512KiB"];
/// Of each program's cycles, the share that starts it through heapbpf, and by its name while heapbpf waits for it.
const LAUNCHED: usize = 20;
/// Every so many of the other cycles compare memory.
const COMPARED: usize = 8;
/// Faults after which a program is given up.
const FAULTS_MAX: usize = 10;

/// Configuration of a run.
pub(super) struct Plan {
    pub(super) binary: PathBuf,
    pub(super) sources: PathBuf,
    pub(super) cycles: usize,
    pub(super) kills: usize,
    pub(super) seed: u64,
    /// Names; all programs if empty.
    pub(super) programs: Vec<String>,
}

/// State of a run.
pub(super) struct Attack {
    pub(super) binary: PathBuf,
    pub(super) random: Random,
    pub(super) workshop: Workshop,
    launched: usize,
}

/// Runs a plan, and returns the counts.
pub(super) fn run(plan: &Plan) -> Result<Tally> {
    let folder = tempfile::tempdir()?;
    let workshop = Workshop::new(plan.sources.clone(), folder.path())?;
    let mut attack = Attack { binary: plan.binary.clone(), random: Random::new(plan.seed), workshop, launched: 0 };
    let programs = selected(&plan.programs)?;
    let mut tally = Tally::default();
    for (number, program) in programs.iter().enumerate() {
        // The sum is that of the plan.
        let share = |number: usize| plan.cycles * number / programs.len();
        let row = attack.attack(program, share(number + 1) - share(number));
        eprintln!("{row}");
        tally.rows.push(row);
    }
    kills::run(&mut attack, &programs, plan.kills, &mut tally)?;
    Ok(tally)
}

fn selected(names: &[String]) -> Result<Vec<&'static Program>> {
    let all = || PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
    if let Some(unknown) = names.iter().find(|name| !PROGRAMS.iter().any(|program| program.name == **name)) {
        bail!("unknown program `{unknown}`; known are {}", all());
    }
    let is_wanted = |program: &&Program| names.is_empty() || names.iter().any(|name| name == program.name);
    Ok(PROGRAMS.iter().filter(is_wanted).collect())
}

impl Attack {
    fn attack(&mut self, program: &Program, cycles: usize) -> Row {
        let mut row = Row::new(program.name);
        let built = self.workshop.build(program).and_then(|line| {
            let mut subject = self.workshop.start(program, line.as_ref())?;
            thread::sleep(Duration::from_millis(50));
            Ok((line, subject.finish()?))
        });
        let (line, expected) = match built {
            Ok(built) => built,
            Err(error) => {
                row.not_run = Some(format!("{error:#}"));
                return row;
            }
        };
        let started = line.as_ref().map_or(0, |_| (cycles / LAUNCHED).max(1).min(cycles / 3));
        if let Some(line) = &line {
            for number in 0..2 * started {
                let outcome =
                    if number % 2 == 0 { self.launch(line, &mut row) } else { self.await_start(line, &mut row) };
                row.note(outcome.and_then(|result| same(&result, &expected)));
            }
        }
        self.attach_often(program, line.as_ref(), &expected, cycles - 2 * started, &mut row);
        row
    }

    /// Cycles of one process, which is started anew after a fault.
    fn attach_often(&mut self, program: &Program, line: Option<&Line>, expected: &str, cycles: usize, row: &mut Row) {
        let mut running: Option<Box<dyn Subject>> = None;
        for number in 0..cycles {
            if row.faults() >= FAULTS_MAX {
                row.given_up = true;
                break;
            }
            let subject = match running.take() {
                Some(subject) => Ok(subject),
                None => self.workshop.start(program, line),
            };
            let mut subject = match subject {
                Ok(subject) => subject,
                Err(error) => {
                    row.note(Err(error));
                    continue;
                }
            };
            let compares = program.idles && number % COMPARED == 0;
            let outcome = if compares { self.compare(&mut *subject, row) } else { self.attach(&subject.pids(), row) };
            let outcome = outcome.and_then(|()| subject.check());
            if outcome.is_ok() {
                running = Some(subject);
            }
            row.note(outcome);
        }
        if let Some(mut subject) = running {
            let last = subject.finish().and_then(|result| same(&result, expected));
            row.note_end(last);
        }
    }

    fn interval(&mut self) -> &'static str {
        self.random.one_of(&INTERVALS).copied().unwrap_or(INTERVALS[0])
    }

    /// Arguments for a process, with an inventory of its blocks or without.
    pub(super) fn arguments(&mut self, pid: u32) -> Vec<OsString> {
        let (pid, interval) = (pid.to_string(), self.interval());
        let mut words = vec!["--pid", &pid, "--engine", "inline", "--interval", interval, "-o", "out.json"];
        if self.random.below(2) == 0 {
            words.push("--no-inventory");
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// Attaches to one of the processes, and detaches: mostly after attaching has succeeded, else at any time.
    fn attach(&mut self, pids: &[u32], row: &mut Row) -> Result<()> {
        thread::sleep(self.random.duration(Duration::from_millis(30)));
        let pid = self.random.one_of(pids).copied().context("it has a process")?;
        let arguments = self.arguments(pid);
        let mut profiler = Profiler::spawn(&self.binary, &arguments, self.workshop.folder())?;
        if self.random.below(4) == 0 {
            thread::sleep(self.random.duration(Duration::from_millis(600)));
        } else if profiler.wait_until_ready()? {
            thread::sleep(self.random.duration(Duration::from_millis(150)));
        }
        row.count(profiler.end()?);
        let left = slots_left(pids);
        row.slots += left;
        if left > 0 { bail!("{left} slots lead to stubs") } else { Ok(()) }
    }

    /// Attaches while the process does nothing, and compares its memory.
    fn compare(&mut self, subject: &mut dyn Subject, row: &mut Row) -> Result<()> {
        subject.pause()?;
        let pids = subject.pids();
        let before = Memory::read_when_still(pids[0])?;
        let outcome = self.attach(&pids, row);
        subject.check()?;
        let (changed, places) = before.changed(&Memory::read(pids[0])?);
        subject.resume()?;
        row.compared += 1;
        row.changed_bytes += changed;
        outcome?;
        if changed > 0 { bail!("memory has changed: {}", places.join(", ")) } else { Ok(()) }
    }

    /// Starts the program through heapbpf.
    fn launch(&mut self, line: &Line, row: &mut Row) -> Result<String> {
        let words = ["--engine", "inline", "--interval", self.interval(), "-o", "out.json", "--"];
        let mut before = vec![self.binary.clone().into_os_string()];
        before.extend(words.map(OsString::from));
        let mut command = line.command(&before);
        command.current_dir(self.workshop.folder()).env("NO_COLOR", "1").env("HEAPBPF_CONFIG", "");
        row.launched += 1;
        let mut worker = Worker::spawn(&mut command)?;
        thread::sleep(self.random.duration(Duration::from_millis(1500)));
        worker.finish_launched()
    }

    /// Starts a program with a name that heapbpf waits for.
    fn await_start(&mut self, line: &Line, row: &mut Row) -> Result<String> {
        self.launched += 1;
        let name = format!("at{}-{}", self.launched, std::process::id());
        let path = self.workshop.folder().join(&name);
        let original = Path::new(&line.words[0]);
        let original = if original.is_absolute() {
            original.to_owned()
        } else {
            crate::command::find(&line.words[0].to_string_lossy()).context("it was started before")?
        };
        // A program finds libraries by the place that the link leads to.
        symlink(original.canonicalize()?, &path)?;
        let words = ["--engine", "inline", "--interval", self.interval(), "-o", "out.json", "--cmdline", &name];
        let words = words.map(OsString::from);
        let mut profiler = Profiler::spawn(&self.binary, &words, self.workshop.folder())?;
        row.named += 1;
        profiler.wait_until_ready()?;
        let outcome = Worker::spawn(&mut line.renamed(&path).command(&[])).and_then(|mut worker| {
            thread::sleep(self.random.duration(Duration::from_millis(1000)));
            profiler.end()?;
            let left = slots_left(&worker.pids());
            row.slots += left;
            let result = worker.finish()?;
            if left > 0 { bail!("{left} slots lead to stubs") } else { Ok(result) }
        });
        let _ = fs::remove_file(&path);
        outcome
    }

    /// For one of the programs: starts it, and returns its line.
    pub(super) fn start(&mut self, program: &Program) -> Result<(Option<Line>, Box<dyn Subject>)> {
        let line = self.workshop.build(program)?;
        let subject = self.workshop.start(program, line.as_ref())?;
        Ok((line, subject))
    }
}

fn same(result: &str, expected: &str) -> Result<()> {
    if result == expected { Ok(()) } else { bail!("result {result}, without heapbpf {expected}") }
}

/// Whether an error reports the exit of the program.
pub(super) fn is_death(error: &anyhow::Error) -> bool {
    error.is::<Died>()
}

/// Roles, in the order of the table.
pub(super) const ROLES: [Role; 3] = [Role::Agent, Role::Keeper, Role::Both];
