//! `bench overhead --part targets`: a call of a busy target among idle ones, and of a busy process that is no target.
//! All of them map a copy of the C library, so that no other tool's probes, and few other processes, affect the figures.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use heapbpf_tests::report::{Report, Scope};

use super::figures::{self, Spread, ratios, verdict};
use super::programs::{self, Churn};
use super::tool::{self, Agent, Setup};
use crate::process::{Output, Program, bound, mappings};

const COUNTS: [usize; 4] = [1, 20, 100, 1000];
/// Targets of the measurement of a process that is no target.
const BYSTANDER_COUNT: usize = 100;
/// With this number of targets, probes of single processes are measured in one round only: detaching them takes minutes.
const SLOW_COUNT: usize = 1000;
const RATIO_MAX: f64 = 1.2;
/// After it, replaced probes are detached.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Own,
    Automatic,
    All,
    /// Not limited by the number of targets.
    Shared,
}

const CHOICES: [(Choice, &str); 3] = [
    (Choice::Own, "`--cmdline`, `--scope process`"),
    (Choice::Automatic, "`--cmdline`, automatic"),
    (Choice::All, "`--all`"),
];

struct Crowd<'a> {
    setup: &'a Setup,
    library: PathBuf,
    idle: Vec<Program>,
}

#[derive(Default)]
struct Figures {
    /// By number of targets and choice.
    ns: [[Vec<f64>; CHOICES.len()]; COUNTS.len()],
    alone: Vec<f64>,
    beside: Vec<f64>,
    slow: String,
}

pub(super) fn measure(setup: &Setup) -> Result<String> {
    let mut crowd = Crowd::new(setup)?;
    let mut figures = Figures::default();
    for round in 0..setup.bench.rounds {
        crowd.idle.clear();
        let busy = crowd.churn("crowd-churn")?;
        for (count, of_count) in COUNTS.into_iter().zip(&mut figures.ns) {
            crowd.grow(count - 1)?;
            for ((choice, name), ns) in CHOICES.into_iter().zip(of_count) {
                let is_slow = count == SLOW_COUNT && choice == Choice::Own;
                if is_slow && round > 0 {
                    continue;
                }
                let (cost, scope, took) = crowd.record(choice, &busy, &busy)?;
                eprintln!("{count:>5} targets: {cost:>8.0} ns, {name} ({}), in {took:.1?}", scope.kind);
                ns.push(cost);
                if is_slow {
                    figures.slow = format!("measured once, in {:.0} s", took.as_secs_f64());
                }
            }
            if count == BYSTANDER_COUNT {
                let bystander = crowd.churn("churn")?;
                figures.alone.push(bystander.call_ns(setup.window)?);
                let (cost, scope, _) = crowd.record(Choice::Shared, &busy, &bystander)?;
                ensure!(scope.foreign_calls > 0, "the other process did not meet the shared probes");
                figures.beside.push(cost);
            }
        }
    }
    Ok(figures.text())
}

impl<'a> Crowd<'a> {
    fn new(setup: &'a Setup) -> Result<Self> {
        let folder = &setup.bench.folder;
        let library = folder.join("library");
        fs::create_dir_all(&library)?;
        let libc = mappings(std::process::id())?.into_iter().map(|mapping| mapping.path);
        let libc = libc.into_iter().find(|path| path.ends_with("/libc.so.6")).context("xtask does not map libc")?;
        fs::copy(libc, library.join("libc.so.6"))?;
        fs::copy(programs::build(&setup.bench, "churn")?, folder.join("crowd-churn"))?;
        fs::copy("/usr/bin/sleep", folder.join("crowd-sleep"))?;
        Ok(Self { setup, library, idle: Vec::new() })
    }

    fn command(&self, name: &str) -> Command {
        let mut command = bound(self.setup.bench.folder.join(name));
        command.env("LD_LIBRARY_PATH", &self.library);
        command
    }

    fn churn(&self, name: &str) -> Result<Churn> {
        Churn::run(self.command(name).arg("malloc"))
    }

    fn grow(&mut self, count: usize) -> Result<()> {
        while self.idle.len() < count {
            let idle = Program::start(self.command("crowd-sleep").arg("infinity"), Output::None)?;
            self.idle.push(idle);
        }
        // `setpriv` has executed the last one by then.
        thread::sleep(Duration::from_millis(100));
        Ok(())
    }

    /// Records the crowd and measures a call of one process. Returns the duration of both, with attaching and detaching, too.
    fn record(&self, choice: Choice, busy: &Churn, measured: &Churn) -> Result<(f64, Scope, Duration)> {
        let started = Instant::now();
        let bench = &self.setup.bench;
        let pattern = bench.folder.join("crowd-*").display().to_string();
        let arguments: &[&str] = match choice {
            Choice::Own => &["--cmdline", &pattern, "--scope", "process"],
            Choice::Automatic => &["--cmdline", &pattern],
            Choice::All => &["--all"],
            Choice::Shared => &["--cmdline", &pattern, "--scope", "inode"],
        };
        let report = bench.folder.join("many.json");
        let agent = Agent::start(bench.command(&bench.heapbpf).args(["--interval", "1GiB"]).args(arguments), &report)?;
        thread::sleep(SETTLED_AFTER);
        let cost = measured.call_ns(self.setup.window)?;
        agent.interrupt()?;
        let report = agent.finish()?;
        tool::wait_until_detached(measured.pid())?;
        let is_target = |pid: u32| report.targets.iter().any(|target| target.pid == pid);
        let (found, expected) = (report.targets.len(), self.idle.len() + 1);
        ensure!(found >= expected, "only {found} of {expected} targets");
        ensure!(is_target(busy.pid()), "the busy process was not a target");
        ensure!(is_target(measured.pid()) == (choice != Choice::Shared), "the wrong processes were targets");
        Ok((cost, undisturbed(report, choice)?, started.elapsed()))
    }
}

/// Fails if other tools had probes on the copied library. With `--all`, other files are hooked, too.
fn undisturbed(report: Report, choice: Choice) -> Result<Scope> {
    let scope = report.health.scope.context("the report lacks the scope")?;
    let foreign = scope.foreign_probes.unwrap_or(0);
    ensure!(foreign == 0 || choice == Choice::All, "{foreign} probes of other tools disturb the measurement");
    Ok(scope)
}

impl Figures {
    fn text(&self) -> String {
        let ratio = |row: usize, column: usize| ratios(&self.ns[row][column], &self.ns[0][column]);
        let cell = |row: usize, column: usize| {
            let cost = Spread::of(self.ns[row][column].iter().copied());
            let is_once = if COUNTS[row] == SLOW_COUNT && CHOICES[column].0 == Choice::Own { " (1)" } else { "" };
            format!("{:.0}, {:.2}{is_once}", cost.median(), ratio(row, column).median())
        };
        let mut head = vec!["targets, one of them busy"];
        head.extend(CHOICES.map(|(_, name)| name));
        let row = |row: usize| {
            let cells = (0..CHOICES.len()).map(|column| cell(row, column));
            [COUNTS[row].to_string()].into_iter().chain(cells).collect()
        };
        let rows: Vec<Vec<String>> = (0..COUNTS.len()).map(row).collect();
        let mut text = format!(
            "{}\nCPU ns of a malloc and its free in the busy target, median; ratio to one target. (1) {}.\n\n",
            figures::table(&head, &rows),
            self.slow
        );
        for (column, (_, name)) in CHOICES.iter().enumerate().filter(|(_, (choice, _))| *choice != Choice::Own) {
            let worst = Spread::of((1..COUNTS.len()).map(|row| ratio(row, column).median())).max();
            text.push_str(&format!(
                "- {name}: at most {worst:.2}, limit {RATIO_MAX}: {}.\n",
                verdict(worst, RATIO_MAX)
            ));
        }
        let [alone, beside] = [&self.alone, &self.beside].map(|ns| Spread::of(ns.iter().copied()));
        text.push_str(&format!(
            "- A busy process that is no target: {alone:.0} ns, and {beside:.0} ns while probes are shared.\n\n\
             With `--interval 1GiB`. All of these processes map a private copy of glibc.\n"
        ));
        text
    }
}
