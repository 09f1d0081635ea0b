//! `bench agent`: `heapbpf agent` beside 200 processes, of which some are under load and others are spawned all the time.
//! All work at a constant rate, so that the CPU time that they take more while they are recorded is the cost of that.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::figures::{self, Spread, mib, verdict};
use super::{Bench, Measured, Page, all_met, programs};
use crate::packages;
use crate::process::{Output, Program, bound, command_line, cpu_seconds, descendants, thread_cpu_ms};

/// Measures `heapbpf agent` beside 200 processes under load. The page is docs/agent.md.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Duration of the measurement.
    #[arg(long, default_value_t = 30, value_name = "MINUTES")]
    minutes: u64,
    /// Number of processes, besides those that are spawned.
    #[arg(long, default_value_t = 200, value_name = "COUNT")]
    processes: usize,
    /// Further lines of the agent's configuration.
    #[arg(long, default_value = "", value_name = "TOML")]
    config: String,
    /// Write the table into docs/agent.md.
    #[arg(long)]
    write: bool,
}

// Limits of the agent and its helpers, and of each process.
const CPU_PERCENT_MAX: f64 = 1.0;
const MEMORY_MIB_MAX: f64 = 150.0;
const OVERHEAD_PERCENT_MAX: f64 = 1.0;
/// The last third may need this much more memory than the middle one.
const GROWTH_MAX: f64 = 0.02;

const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
const SPAWN_PERIOD: Duration = Duration::from_millis(200);
/// Processes that use less than this part of a core are idle: their CPU time cannot be compared.
const BUSY_SHARE_MIN: f64 = 0.002;
const WARM_UP: Duration = Duration::from_secs(8);

const PYTHON: &str = "import json, time\nrows = [{'key': i, 'text': str(i)} for i in range(20)]\nkept = []\nwhile True:\n \
    kept = kept[-50:] + [json.dumps(rows), bytearray(2000)]\n json.loads(kept[-2])\n time.sleep(0.05)\n";
const PERL: &str =
    "my @kept; while (1) { push @kept, 'x' x 3000; shift @kept if @kept > 100; select(undef, undef, undef, 0.05); }";
const REDIS: &str = "while :; do redis-benchmark -p 17001 -q -n 1000 -c 5 -d 200 -t set >/dev/null; sleep 1; done";

/// A process, and what it does.
struct Subject {
    kind: &'static str,
    program: Program,
}

/// CPU time and memory at one point in time.
struct Sample {
    /// Of all processes of the agent.
    resident: u64,
    proportional: u64,
    is_recording: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_AGENT, 1)?;
    let outcome = measure(arguments, &bench)?;
    let page = Page::new(&bench.repository, "docs/agent.md", arguments.write);
    all_met(&page.publish("agent", outcome)?)
}

fn subjects(bench: &Bench, count: usize) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for port in ["17001", "17002", "17003"] {
        let mut command = bound("redis-server");
        let program = Program::start(command.args(["--port", port, "--save", ""]), Output::None)?;
        subjects.push(Subject { kind: "redis", program });
    }
    subjects.push(Subject { kind: "load", program: Program::start(bound("sh").args(["-c", REDIS]), Output::None)? });
    let turnover = programs::build(bench, "turnover")?;
    for (kind, rate) in
        [("50,000 allocations/s", "50000"), ("5,000 allocations/s", "5000"), ("500 allocations/s", "500")]
    {
        let mut command = bound(&turnover);
        let (program, _) = Program::ready(command.args(["20000", rate]))?;
        subjects.push(Subject { kind, program });
    }
    for subject in subjects.iter_mut().filter(|subject| subject.kind.contains("allocations")) {
        subject.program.send("")?;
    }
    let kinds: [(&str, &str, &[&str]); 4] = [
        ("python", "python3", &["-c", PYTHON]),
        ("perl", "perl", &["-e", PERL]),
        ("idle", "sleep", &["infinity"]),
        ("idle", "bash", &["-c", "while :; do sleep 5; done"]),
    ];
    for (kind, program, arguments) in kinds.into_iter().cycle().take(count.saturating_sub(subjects.len())) {
        let mut command = bound(program);
        subjects.push(Subject { kind, program: Program::start(command.args(arguments), Output::None)? });
    }
    Ok(subjects)
}

/// Starts short-lived processes until `stop` is set. Returns their number.
fn spawn(stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let script = "ls /usr/bin >/dev/null; perl -e 'my @x = map { \"y\" x $_ } 1 .. 2000'";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        count += u64::from(command.status().is_ok());
        thread::sleep(SPAWN_PERIOD);
    }
    count
}

fn measure(arguments: &Arguments, bench: &Bench) -> Result<Measured> {
    let subjects = subjects(bench, arguments.processes)?;
    let stop = Arc::new(AtomicBool::new(false));
    let spawner = thread::spawn({
        let stop = Arc::clone(&stop);
        move || spawn(&stop)
    });
    thread::sleep(WARM_UP);
    let config = bench.folder.join("agent.toml");
    fs::write(&config, format!("stop-file = \"/nowhere/agent.stop\"\n{}\n", arguments.config))?;
    let mut command = bench.command(&bench.heapbpf);
    let agent = Program::start(command.args(["agent", "--config"]).arg(&config), Output::Errors)?;
    agent.line_after("heapbpf: info: recording ")?;
    let mut log = Vec::new();
    let mut samples = Vec::new();
    let mut costs = Costs::default();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60 * arguments.minutes) {
        thread::sleep(SAMPLE_PERIOD);
        let sample = sample(agent.pid())?;
        costs.add(&subjects, sample.is_recording, started);
        samples.push(sample);
        log.extend(agent.lines_so_far());
    }
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(agent.pid().cast_signed()).context("a PID is positive")?,
        Signal::TERM,
    )?;
    agent.until_exited()?;
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), cpu_with_children(agent.pid())?);
    log.extend(agent.lines_so_far());
    stop.store(true, Ordering::Relaxed);
    let spawned = spawner.join().map_err(|_| anyhow::anyhow!("the thread that spawns processes panicked"))?;
    ensure!(samples.iter().any(|sample| sample.is_recording), "nothing was recorded:\n{}", log.join("\n"));
    Ok(Outcome { processes: subjects.len(), spawned, seconds, cpu, samples, log, costs }.text())
}

fn sample(agent: u32) -> Result<Sample> {
    let helpers = descendants(agent);
    let mut sample = Sample {
        resident: 0,
        proportional: 0,
        is_recording: helpers.iter().any(|&pid| command_line(pid).contains(" keeper")),
    };
    for pid in std::iter::once(agent).chain(helpers) {
        // A helper may have exited meanwhile.
        let Ok(rollup) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
        let kib = |name: &str| -> u64 {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
        };
        sample.resident += kib("Rss:") << 10;
        sample.proportional += kib("Pss:") << 10;
    }
    ensure!(sample.resident > 0, "the agent has exited");
    Ok(sample)
}

/// CPU seconds of a process that has exited and of its reaped children.
fn cpu_with_children(pid: u32) -> Result<f64> {
    let stat = procfs::process::Process::new(pid.cast_signed())?.stat()?;
    let children = u64::try_from(stat.cutime + stat.cstime)?;
    Ok(cpu_seconds(pid)? + children as f64 / procfs::ticks_per_second() as f64)
}

/// CPU time of each process while it is recorded and otherwise, in seconds, with the times.
#[derive(Default)]
struct Costs {
    before: BTreeMap<u32, (f64, f64)>,
    by_process: BTreeMap<u32, (&'static str, Phases)>,
}

/// CPU seconds and seconds without, and with a recording.
type Phases = [(f64, f64); 2];

impl Costs {
    fn add(&mut self, subjects: &[Subject], is_recording: bool, started: Instant) {
        for Subject { kind, program } in subjects {
            let pid = program.pid();
            let (Ok(cpu), now) = (thread_cpu_ms(pid), started.elapsed().as_secs_f64()) else { continue };
            if let Some((cpu_before, then)) = self.before.insert(pid, (cpu / 1e3, now)) {
                let (_, phases) = self.by_process.entry(pid).or_insert((kind, [(0.0, 0.0); 2]));
                let phase = &mut phases[usize::from(is_recording)];
                phase.0 += cpu / 1e3 - cpu_before;
                phase.1 += now - then;
            }
        }
    }

    /// By kind, for each process that is not idle: additional CPU time in percent, while it was recorded, and on average.
    fn overheads(&self) -> BTreeMap<&'static str, Vec<(f64, f64)>> {
        let mut overheads: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for (kind, [(off_cpu, off), (on_cpu, on)]) in self.by_process.values() {
            let rate = off_cpu / off;
            if *off > 0.0 && *on > 0.0 && rate >= BUSY_SHARE_MIN {
                let during = 100.0 * (on_cpu / on / rate - 1.0);
                overheads.entry(kind).or_default().push((during, during * on / (on + off)));
            }
        }
        overheads
    }
}

struct Outcome {
    processes: usize,
    spawned: u64,
    seconds: f64,
    cpu: f64,
    samples: Vec<Sample>,
    log: Vec<String>,
    costs: Costs,
}

impl Outcome {
    fn text(&self) -> Measured {
        let recorded: Vec<&String> = self.log.iter().filter(|line| line.contains("info: recorded ")).collect();
        let number = |line: &str, before: &str| -> u64 {
            let word = line.split(before).next().and_then(|text| text.rsplit(' ').next());
            word.and_then(|word| word.parse().ok()).unwrap_or(0)
        };
        let sum = |before: &str| recorded.iter().map(|line| number(line, before)).sum::<u64>();
        let recording = self.samples.iter().filter(|sample| sample.is_recording).count() as f64;
        let third = |from: usize, to: usize, memory: fn(&Sample) -> u64| {
            let count = self.samples.len();
            Spread::of(self.samples[from * count / 3..to * count / 3].iter().map(|sample| mib(memory(sample))))
        };
        let resident = Spread::of(self.samples.iter().map(|sample| mib(sample.resident)));
        let proportional = Spread::of(self.samples.iter().map(|sample| mib(sample.proportional)));
        let growth = third(2, 3, |sample| sample.resident).max() / third(1, 2, |sample| sample.resident).max() - 1.0;
        let cpu = 100.0 * self.cpu / self.seconds;
        let overheads = self.costs.overheads();
        let medians =
            overheads.iter().map(|(kind, all)| (*kind, Spread::of(all.iter().map(|(_, whole)| *whole)).median()));
        let worst = medians.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("none", 0.0));
        let rows = [
            ("processes; spawned beside", format!("{}; {}", self.processes, self.spawned)),
            ("recordings", recorded.len().to_string()),
            ("part of the time that was recorded", format!("{:.1} %", 100.0 * recording / self.samples.len() as f64)),
            ("samples; events dropped", format!("{}; {}", sum(" samples"), sum(" dropped"))),
            ("detached; skipped, over all recordings", format!("{}; {}", sum(" detached"), sum(" skipped"))),
            ("CPU time of agent, keeper and symbolizer, of one core", format!("{cpu:.2} %")),
            ("memory of all three, MiB (Rss)", format!("{resident:.1}")),
            ("memory of all three, MiB (Pss)", format!("{proportional:.1}")),
            ("maximum of the last third ÷ of the middle third", format!("{:.3}", 1.0 + growth)),
        ];
        let minutes = format!("{:.0} min", self.seconds / 60.0);
        let costs = overheads.iter().map(|(kind, all)| {
            let [during, whole] =
                [Spread::of(all.iter().map(|(during, _)| *during)), Spread::of(all.iter().map(|(_, whole)| *whole))];
            vec![(*kind).to_owned(), all.len().to_string(), format!("{during:.1} %"), format!("{whole:.2} %")]
        });
        let limits = [
            ("CPU time, percent of a core", cpu, CPU_PERCENT_MAX),
            ("memory (Rss, maximum), MiB", resident.max(), MEMORY_MIB_MAX),
            ("growth of memory, percent", 100.0 * growth, 100.0 * GROWTH_MAX),
            (
                "additional CPU time of the most affected kind of process, median, percent",
                worst.1,
                OVERHEAD_PERCENT_MAX,
            ),
        ];
        let verdicts = limits.iter().map(|(what, figure, limit)| {
            format!("- {what}: {figure:.2}, limit {limit}: {}.\n", verdict(*figure, *limit))
        });
        let missed = limits.iter().filter(|(_, figure, limit)| figure > limit).map(|(what, ..)| (*what).to_owned());
        let text = format!(
            "{}\n{}\nCPU time of processes at constant work, more than while nothing is recorded; median (extremes). Idle \
             processes are left out. The machine had other work, which shows in the extremes.\n\n{}\n```\n{}\n```",
            figures::pairs([&minutes, "median (extremes)"], rows),
            figures::table(&["", "processes", "while they were recorded", "on average"], &costs.collect::<Vec<_>>()),
            verdicts.collect::<String>(),
            recorded
                .iter()
                .take(5)
                .map(|line| line.trim_start_matches("heapbpf: info: "))
                .collect::<Vec<_>>()
                .join("\n"),
        );
        Measured { text, missed: missed.collect() }
    }
}
