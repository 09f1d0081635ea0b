//! `bench push`: the size of what is pushed.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::figures::{self, Spread, mib};
use super::{Bench, Page, programs};
use crate::process::{Output, Program, bound};
use crate::{packages, viewers};

/// Measures the bytes of a window for each back end. The page is docs/push.md.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Write the table into docs/push.md.
    #[arg(long)]
    write: bool,
}

/// Back ends: of the receiver, and of the URL.
const KINDS: [(&str, &str); 3] = [("pyroscope", "pyroscope+http"), ("otlp-http", "otlp+http"), ("parca", "parca+grpc")];
const EVERY: Duration = Duration::from_secs(15);
const SIZED_WINDOWS: usize = 4;

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(&format!("{} {}", packages::BENCH_PUSH, packages::VIEWERS), 1)?;
    let viewers = viewers::install(&bench.repository)?;
    let page = Page::new(&bench.repository, "docs/push.md", arguments.write);
    page.publish("sizes", sizes(&bench, &viewers)?).map(drop)
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
    stacks: serde_json::Map<String, Value>,
}

impl Receiver {
    /// Listens at a free port.
    fn start(bench: &Bench, viewers: &Path, kind: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct First {
            port: u16,
        }
        let mut command = bound(viewers.join("venv/bin/python"));
        command.arg(bench.repository.root.join("tests/push/receiver.py")).args([kind, "0"]);
        let program = Program::start(command.env("PYTHONDONTWRITEBYTECODE", "1"), Output::Standard)?;
        let First { port } = serde_json::from_str(&program.line()?)?;
        Ok(Self { program, port })
    }

    fn requests(&self) -> Result<Vec<Request>> {
        self.program.lines_so_far().iter().map(|line| serde_json::from_str(line).map_err(Into::into)).collect()
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
            let receiver = Receiver::start(bench, viewers, kind)?;
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
