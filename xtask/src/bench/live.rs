//! `bench live`: a recording that is followed for minutes by its page in Chromium and by a server that is off for a while;
//! and the size of what is pushed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};
use std::{iter, thread};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde::Deserialize;
use serde_json::Value;

use super::figures::{self, Spread, mib, verdict};
use super::{Bench, Measured, Page, programs};
use crate::process::{Output, Program, bound, descendants, memory};
use crate::{packages, viewers};

/// Measures a recording that is followed in Chromium and pushed to a server. The page is docs/push.md.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Duration of the recording that is followed.
    #[arg(long, default_value_t = 10, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(2..))]
    minutes: u64,
    /// For how long of it the server is off.
    #[arg(long, default_value_t = 5, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..))]
    off: u64,
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Write the tables into docs/push.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Memory and console of the page, memory of heapbpf, and the windows that the server gets.
    Followed,
    /// Bytes of a window for each back end.
    Sizes,
}

/// Back ends: of the receiver, and of the URL.
const KINDS: [(&str, &str); 3] = [("pyroscope", "pyroscope+http"), ("otlp-http", "otlp+http"), ("parca", "parca+grpc")];
const EVERY: Duration = Duration::from_secs(15);
/// The maximum of the last third may exceed that of the middle third by this much.
const GROWTH_PERCENT_MAX: f64 = 2.0;
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// An update of the page per ten seconds, at least.
const UPDATES_PER_MINUTE: u64 = 6;
const SIZED_WINDOWS: usize = 4;

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        arguments.off < arguments.minutes,
        "--off {}: the server must be on for a part of the {} minutes",
        arguments.off,
        arguments.minutes
    );
    let bench = Bench::new(&format!("{} {}", packages::BENCH_LIVE, packages::VIEWERS), 1)?;
    let viewers = viewers::install(&bench.repository)?;
    let page = Page::new(&bench.repository, "docs/push.md", arguments.write);
    page.run(&arguments.part, |part| match part {
        Part::Followed => followed(arguments, &bench, &viewers),
        Part::Sizes => Ok(sizes(&bench, &viewers)?.into()),
    })
}

/// tests/push/receiver.py.
struct Receiver {
    program: Program,
    port: u16,
}

#[derive(Deserialize)]
struct Request {
    answer: String,
    bytes: u64,
    series: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    profiles: Vec<Profile>,
}

#[derive(Deserialize)]
struct Profile {
    time: u64,
    duration: u64,
    types: Vec<String>,
    stacks: serde_json::Map<String, Value>,
}

impl Receiver {
    /// Port 0 is a free one.
    fn start(bench: &Bench, viewers: &Path, kind: &str, port: u16) -> Result<Self> {
        #[derive(Deserialize)]
        struct First {
            port: u16,
        }
        let mut command = bound(viewers.join("venv/bin/python"));
        command.arg(bench.repository.root.join("tests/push/receiver.py")).args([kind, &port.to_string()]);
        let program = Program::start(command.env("PYTHONDONTWRITEBYTECODE", "1"), Output::Standard)?;
        let First { port } = serde_json::from_str(&program.line()?)?;
        Ok(Self { program, port })
    }

    fn requests(&self) -> Result<Vec<Request>> {
        self.program.lines_so_far().iter().map(|line| serde_json::from_str(line).map_err(Into::into)).collect()
    }
}

/// The window of accepted requests with allocated amounts, in the order of arrival.
fn windows(requests: &[Request]) -> Vec<(u64, u64)> {
    let accepted = requests.iter().filter(|request| request.answer == "ok");
    let profiles = accepted.flat_map(|request| &request.series).flat_map(|series| &series.profiles);
    let allocated = profiles.filter(|profile| profile.types.iter().any(|kind| kind == "alloc_space/bytes"));
    let mut windows: Vec<(u64, u64)> = allocated.map(|profile| (profile.time, profile.duration)).collect();
    // A request is repeated if the server is killed before it answers.
    windows.dedup();
    windows
}

/// What live.py prints.
#[derive(Deserialize)]
struct Followed {
    /// Bytes of JavaScript's heap after each tenth of the time.
    heap: Vec<f64>,
    nodes: Vec<f64>,
    updates: u64,
    state: String,
    complaints: Vec<String>,
    requests: Vec<String>,
}

fn followed(arguments: &Arguments, bench: &Bench, viewers: &Path) -> Result<Measured> {
    let (minutes, off) = (60 * arguments.minutes, 60 * arguments.off);
    let [off_at, on_at] = [(minutes - off) / 2, (minutes + off) / 2].map(Duration::from_secs);
    let workload = &programs::ALL[0];
    let redis = (workload.start)(&bench.empty_folder("redis")?)?;
    let (kind, scheme) = KINDS[0];
    let mut receiver = Some(Receiver::start(bench, viewers, kind, 0)?);
    let to = receiver.as_ref().map_or(0, |receiver| receiver.port);
    let summary = bench.folder.join("summary.txt");
    let queue = bench.folder.join("queue");
    let mut command = bench.record(redis.pids[0]);
    command.args(["--serve", "127.0.0.1:0", "--push", &format!("{scheme}://127.0.0.1:{to}"), "--push-queue"]);
    command.arg(&queue).arg("-o").arg(bench.folder.join("live.json")).stdout(File::create(&summary)?);
    let mut heapbpf = Program::start(&mut command, Output::Errors)?;
    let address = heapbpf.line_after("heapbpf: serving ")?;
    heapbpf.line_after("heapbpf: recording ")?;
    let mut follower = Program::start(&mut follower(bench, viewers, address.trim(), minutes), Output::Standard)?;
    let started = Instant::now();
    let (mut resident, mut requests, mut queued_max) = (Vec::new(), Vec::new(), 0);
    let mut is_off = false;
    while started.elapsed() < Duration::from_secs(minutes) {
        thread::sleep(SAMPLE_PERIOD);
        let pids = iter::once(heapbpf.pid()).chain(descendants(heapbpf.pid()));
        resident.push(pids.filter_map(|pid| memory(pid).ok()).map(|memory| mib(memory.resident)).sum::<f64>());
        queued_max = queued_max.max(bytes_in(&queue));
        if let Some(receiver) = &receiver {
            requests.extend(receiver.requests()?);
        }
        if !is_off && started.elapsed() >= off_at {
            (is_off, receiver) = (true, None);
        }
        if receiver.is_none() && started.elapsed() >= on_at {
            receiver = Some(Receiver::start(bench, viewers, kind, to)?);
        }
    }
    let answer = follower.line().context("live.py has measured nothing")?;
    let page: Followed = serde_json::from_str(&answer).with_context(|| answer.clone())?;
    ensure!(follower.wait()?.success(), "live.py failed");
    ensure!(page.updates >= UPDATES_PER_MINUTE * arguments.minutes, "the page was updated only {} times", page.updates);
    heapbpf.interrupt()?;
    let status = heapbpf.wait()?;
    ensure!(status.success(), "heapbpf: {status}:\n{}", heapbpf.lines_so_far().join("\n"));
    requests.extend(receiver.context("the server is on again")?.requests()?);
    let summary = fs::read_to_string(summary)?;
    let pushed = summary.lines().find(|line| line.starts_with("push: ")).context("the summary describes the push")?;
    let outage = Outage { windows: windows(&requests), pushed: pushed.to_owned(), queued_max, left: bytes_in(&queue) };
    Ok(outcome(arguments, &resident, &page, &outage))
}

fn follower(bench: &Bench, viewers: &Path, address: &str, seconds: u64) -> std::process::Command {
    let mut command = bound(viewers.join("venv/bin/python"));
    command.arg(bench.repository.root.join("tests/viewers/live.py")).args(["follow", address]);
    command.args(["1", &seconds.to_string()]);
    command.env("NODE_PATH", viewers.join("node_modules")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Of all files in a folder; 0 if it does not exist.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
            Ok(metadata) => metadata.len(),
            // It was sent meanwhile.
            Err(_) => 0,
        })
        .sum()
}

struct Outage {
    /// Start and duration in nanoseconds.
    windows: Vec<(u64, u64)>,
    pushed: String,
    queued_max: u64,
    left: u64,
}

impl Outage {
    /// Nanoseconds that no window covers between the first and the last; and whether windows are out of order.
    fn gaps(&self) -> (u64, bool) {
        let pairs = self.windows.windows(2).map(|pair| (pair[0].0 + pair[0].1, pair[1].0));
        let missing = pairs.clone().map(|(end, start)| start.saturating_sub(end)).sum();
        (missing, pairs.clone().any(|(end, start)| start < end))
    }
}

/// How much the maximum of the last third exceeds that of the middle one, in percent.
fn growth_percent(values: &[f64]) -> f64 {
    let third = values.len() / 3;
    let max = |part: &[f64]| part.iter().copied().fold(0.0, f64::max);
    100.0 * (max(&values[values.len() - third..]) / max(&values[third..values.len() - third]) - 1.0)
}

fn outcome(arguments: &Arguments, resident: &[f64], page: &Followed, outage: &Outage) -> Measured {
    let (missing_ns, is_disordered) = outage.gaps();
    let covered = outage.windows.iter().map(|window| Duration::from_nanos(window.1)).sum::<Duration>();
    let heap: Vec<f64> = page.heap.iter().map(|bytes| bytes / f64::from(1 << 20)).collect();
    let list = |values: &[f64], digits: usize| {
        values.iter().map(|value| format!("{value:.digits$}")).collect::<Vec<_>>().join(", ")
    };
    let rows = [
        ("memory of heapbpf and its helpers, MiB (Rss)", format!("{:.1}", Spread::of(resident.iter().copied()))),
        ("JavaScript heap of the page after each tenth of the time, MiB", list(&heap, 2)),
        ("nodes of the page", list(&page.nodes, 0)),
        ("updates of the page; its state at the end", format!("{}; {}", page.updates, page.state)),
        ("errors in the console", page.complaints.len().to_string()),
        (
            "paths that the page requested",
            page.requests.iter().map(|path| format!("`/{path}`")).collect::<Vec<_>>().join(", "),
        ),
        (
            "windows received, and the time that they cover",
            format!("{}; {:.0} s", outage.windows.len(), covered.as_secs_f64()),
        ),
        ("time between them that no window covers", format!("{:.1} s", Duration::from_nanos(missing_ns).as_secs_f64())),
        ("in order", if is_disordered { "no" } else { "yes" }.to_owned()),
        (
            "maximum size of the queue on disk; at the end",
            format!("{:.0} KiB; {} B", mib(outage.queued_max) * 1024.0, outage.left),
        ),
        ("pushed, as in the summary", outage.pushed.trim_start_matches("push: ").to_owned()),
    ];
    let limits = [
        ("growth of heapbpf's memory, percent", growth_percent(resident), GROWTH_PERCENT_MAX),
        ("growth of the page's heap, percent", growth_percent(&heap), GROWTH_PERCENT_MAX),
        ("errors in the console", page.complaints.len() as f64, 0.0),
        ("windows out of order", f64::from(u8::from(is_disordered)), 0.0),
        ("seconds that no window covers", Duration::from_nanos(missing_ns).as_secs_f64(), 0.0),
    ];
    let verdicts = limits
        .iter()
        .map(|(what, figure, limit)| format!("- {what}: {figure:.2}, limit {limit}: {}.\n", verdict(*figure, *limit)));
    let missed = limits.iter().filter(|(_, figure, limit)| figure > limit).map(|(what, ..)| (*what).to_owned());
    let head = format!("{} min, the server off for {} min", arguments.minutes, arguments.off);
    let complaints = page.complaints.iter().map(|line| format!("\n    {line}")).collect::<String>();
    Measured {
        text: format!(
            "redis under load. Growth is the maximum of the last third against the middle third.\n\n{}\n{}{complaints}",
            figures::pairs([&head, ""], rows),
            verdicts.collect::<String>()
        ),
        missed: missed.collect(),
    }
}

/// Medians of the bytes of a window's requests.
fn sizes(bench: &Bench, viewers: &Path) -> Result<String> {
    let mut rows = Vec::new();
    // redis, nginx and postgres.
    for workload in &programs::ALL[..3] {
        let running = (workload.start)(&bench.empty_folder("work")?)?;
        let mut row = vec![format!("{}, {}", workload.name, workload.load)];
        let mut sessions = Vec::new();
        for (kind, scheme) in KINDS {
            let receiver = Receiver::start(bench, viewers, kind, 0)?;
            let mut command = bench.command(&bench.heapbpf);
            command.args(running.pids.iter().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]));
            command.args(["--push", &format!("{scheme}://127.0.0.1:{}", receiver.port), "--push-queue"]);
            let queue = bench.folder.join(format!("queue-{kind}"));
            command.arg(queue).arg("-o").arg(bench.folder.join(kind).with_extension("json"));
            let heapbpf = Program::start(&mut command, Output::Errors)?;
            heapbpf.line_after("heapbpf: recording ")?;
            sessions.push((receiver, heapbpf));
        }
        // The last window is a short one, and is not counted.
        thread::sleep(EVERY * u32::try_from(SIZED_WINDOWS + 1)?);
        let (mut callsites, mut cells) = (0, Vec::new());
        for (receiver, mut heapbpf) in sessions {
            let requests = receiver.requests()?;
            heapbpf.interrupt()?;
            ensure!(heapbpf.wait()?.success(), "heapbpf failed");
            let mut by_window = BTreeMap::<u64, u64>::new();
            for request in requests.iter().filter(|request| request.answer == "ok") {
                let profiles = || request.series.iter().flat_map(|series| &series.profiles);
                let end = profiles().map(|profile| profile.time + profile.duration).max();
                *by_window.entry(end.context("a request has a profile")?).or_default() += request.bytes;
                callsites = callsites.max(profiles().map(|profile| profile.stacks.len()).sum());
            }
            ensure!(by_window.len() >= SIZED_WINDOWS, "{} windows arrived", by_window.len());
            let bytes = Spread::of(by_window.values().map(|bytes| mib(*bytes) * 1024.0));
            cells.push(format!("{bytes:.1}"));
        }
        row.push(callsites.to_string());
        row.extend(cells);
        rows.push(row);
    }
    let table = figures::table(&["target", "callsites", "Pyroscope", "OTLP", "Parca"], &rows);
    Ok(format!("KiB of the requests of a window of 15 s at the default interval, median (extremes).\n\n{table}"))
}
