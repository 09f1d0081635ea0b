//! `bench top`: the CPU time of the screen of `heapbpf top` at 10,000 callsites, as the difference to a recording without it.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use heapbpf_tests::tmux::Tmux;

use super::figures::{self, Spread, verdict};
use super::{Bench, Measured, Page, all_met, programs};
use crate::packages;
use crate::process::{Output, Program, command_line, cpu_seconds, descendants};

/// Measures the screen of `heapbpf top` with 10,000 callsites. The page is docs/top.md.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Duration of a measurement.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    seconds: u64,
    #[arg(long, default_value_t = 3, value_name = "COUNT")]
    rounds: usize,
    /// Write the table into docs/top.md.
    #[arg(long)]
    write: bool,
}

const CALLSITES: u32 = 10_000;
/// Blocks that are replaced per second: every callsite changes between two refreshes.
const RATE: u32 = 5000;
/// Of a core, added by the screen.
const PERCENT_MAX: f64 = 2.0;
/// Until all callsites have names.
const WARM_UP: Duration = Duration::from_secs(10);

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_TOP, arguments.rounds)?;
    let target = programs::start(&bench, "callsites", &[CALLSITES, RATE])?;
    let during = Duration::from_secs(arguments.seconds);
    let mut percents: [Vec<f64>; 3] = Default::default();
    let mut periods = BTreeSet::new();
    for _ in 0..bench.rounds {
        percents[0].push(recorded(&bench, target.pid(), during)?);
        percents[1].push(shown(&bench, target.pid(), during, None, &mut periods)?);
        percents[2].push(shown(&bench, target.pid(), during, Some("f"), &mut periods)?);
    }
    let [recording, screen, flame] = percents.map(Spread::of);
    let added = screen.median() - recording.median();
    let rows = [
        ("`heapbpf record`", format!("{recording:.2}")),
        ("`heapbpf top`", format!("{screen:.2}")),
        ("`heapbpf top` with the flame view open", format!("{flame:.2}")),
    ];
    let text = format!(
        "{CALLSITES} callsites, {RATE} of {} events per second, a refresh every 2 s, or more rarely: {}.\n\n{}\n- added by the screen, percent of a core: \
         {added:.2}, limit {PERCENT_MAX}: {}.\n",
        2 * RATE,
        periods.into_iter().collect::<Vec<_>>().join(", "),
        figures::pairs(["", "percent of a core, median (extremes)"], rows),
        verdict(added, PERCENT_MAX)
    );
    let missed = (added > PERCENT_MAX).then(|| "CPU time of the screen".to_owned()).into_iter().collect();
    let page = Page::new(&bench.repository, "docs/top.md", arguments.write);
    all_met(&page.publish("top", Measured { text, missed })?)
}

/// CPU time of a process and its helpers, in percent of a core.
fn percent(pid: u32, during: Duration) -> Result<f64> {
    let seconds = || -> Result<f64> {
        let helpers = descendants(pid).into_iter().filter_map(|helper| cpu_seconds(helper).ok());
        Ok(cpu_seconds(pid)? + helpers.sum::<f64>())
    };
    thread::sleep(WARM_UP);
    let before = seconds()?;
    thread::sleep(during);
    Ok(100.0 * (seconds()? - before) / during.as_secs_f64())
}

fn recorded(bench: &Bench, pid: u32, during: Duration) -> Result<f64> {
    let mut command = bench.record(pid);
    command.args(["--interval", "1", "-o"]).arg(bench.folder.join("top.json"));
    let heapbpf = Program::start(&mut command, Output::Errors)?;
    heapbpf.line_after("heapbpf: recording ")?;
    let measured = percent(heapbpf.pid(), during);
    heapbpf.interrupt()?;
    heapbpf.until_exited()?;
    measured
}

/// With the refresh periods that the first line names: heapbpf extends them to stay below its limit.
fn shown(
    bench: &Bench,
    target: u32,
    during: Duration,
    key: Option<&str>,
    periods: &mut BTreeSet<String>,
) -> Result<f64> {
    let tmux = Tmux::start(120, 40);
    let cache = bench.folder.join("cache");
    tmux.enter(&format!(
        "XDG_CACHE_HOME={} {} top --pid {target} --interval 1",
        cache.display(),
        bench.heapbpf.display()
    ));
    tmux.wait_for("CALLSITE");
    if let Some(key) = key {
        tmux.press(&[key]);
    }
    let wanted = format!("top --pid {target} ");
    let mut all = procfs::process::all_processes()?.filter_map(|process| Some(process.ok()?.pid.cast_unsigned()));
    let own = bench.heapbpf.display().to_string();
    let pid = all.find(|&pid| {
        let line = command_line(pid);
        line.starts_with(&own) && line.contains(&wanted)
    });
    let measured = percent(pid.context("`heapbpf top` runs")?, during);
    let period =
        tmux.screen().lines().next().and_then(|line| line.rsplit_once(" · ")).map(|(_, every)| every.to_owned());
    periods.extend(period);
    tmux.press(&["q"]);
    tmux.wait_for_prompt();
    measured
}
