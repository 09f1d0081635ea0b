//! `cargo xtask bench soak`: whether the agent's memory is constant while a program replaces a million blocks.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use heapbpf_tests::report::Report;

use super::figures::{self, Spread, mib};
use super::targets::{self, numbers};
use super::tool::{self, Agent};
use super::{Bench, Page};
use crate::packages;
use crate::process::{cpu_seconds, memory};

const SAMPLES_MIN: usize = 10;
/// Minimum part of the requested rate: below it the figures describe another load. Memory must be constant in any case.
const RATE_PART_MIN: f64 = 0.9;

/// Maximum growth of the median from the middle to the last third. It may shrink: the kernel reclaims pages of files.
const GROWTH_MAX: f64 = 0.02;

/// Shows whether the agent's memory is constant under load, and fails when the median of the last third of the time exceeds
/// that of the middle third by more than 2 %.
///
/// A program has blocks of 192 bytes on average in use and replaces some of them, at 256 callsites. Requires root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench soak                      for 30 minutes
  cargo xtask bench soak --minutes 5          as with each change
  cargo xtask bench soak --write              and into docs/overhead.md
HEAPBPF_BIN=PATH measures that binary instead of building one.")]
pub(super) struct Arguments {
    /// Duration of the load in minutes.
    #[arg(long, default_value_t = 30, value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=1440))]
    minutes: u64,
    /// Number of live blocks.
    #[arg(long, default_value_t = 1_000_000, value_name = "COUNT")]
    blocks: u32,
    /// Number of blocks that are replaced per second.
    #[arg(long, default_value_t = 100_000, value_name = "COUNT")]
    rate: u32,
    /// Sampling interval of heapbpf.
    #[arg(long, default_value = "4KiB", value_name = "BYTES")]
    interval: String,
    /// Write the table into docs/overhead.md.
    #[arg(long)]
    write: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_C, 1)?;
    let outcome = measure(arguments, &bench)?;
    let is_busy = outcome.rate() < RATE_PART_MIN * f64::from(arguments.rate);
    let page = Page::new(&bench.repository, "docs/overhead.md", arguments.write && !is_busy);
    page.publish("soak", outcome.text(arguments))?;
    if is_busy {
        println!("only {:.0} blocks per second were replaced: this machine is too busy", outcome.rate());
        if arguments.write {
            bail!("docs/overhead.md is unchanged; try again when the machine is idle");
        }
    }
    if !outcome.is_constant() {
        let [resident, anonymous] = [&outcome.resident, &outcome.anonymous].map(Thirds::ratio);
        bail!("the agent's memory grows: last third ÷ middle third: {resident:.3} resident, {anonymous:.3} anonymous");
    }
    Ok(())
}

fn measure(arguments: &Arguments, bench: &Bench) -> Result<Outcome> {
    let mut turnover = targets::start(bench, "turnover", &[arguments.blocks, arguments.rate])?;
    let mut command = bench.record(turnover.pid());
    let json = bench.folder.join("soak.json");
    let agent = Agent::start(command.args(["--interval", &arguments.interval]), &json)?;
    // Prints a line for each second's work, which takes longer on a machine that is too busy for the rate.
    let [replaced_before, _live_bytes] = numbers(&turnover.ask("")?)?;
    let (started, cpu_before) = (Instant::now(), cpu_seconds(agent.pid())?);
    let duration = Duration::from_secs(60 * arguments.minutes);
    let (mut replaced, mut resident, mut anonymous) = (replaced_before, Vec::new(), Vec::new());
    while started.elapsed() < duration {
        [replaced, _] = numbers(&turnover.line()?)?;
        let memory = memory(agent.pid())?;
        resident.push(memory.resident);
        anonymous.push(memory.anonymous);
    }
    let (seconds, cpu_seconds) = (started.elapsed().as_secs_f64(), cpu_seconds(agent.pid())? - cpu_before);
    turnover.close_input();
    let status = turnover.wait()?;
    ensure!(status.success(), "the target exited with {status}");
    let last = std::iter::from_fn(|| turnover.line().ok()).last().context("the target printed nothing at its end")?;
    let [_replaced, live_bytes] = numbers(&last)?;
    // The agent exits with its target.
    let report = agent.finish()?;
    let thirds =
        |bytes: &[u64]| Thirds::of(bytes, SAMPLES_MIN).with_context(|| format!("only {} samples", bytes.len()));
    Ok(Outcome {
        resident: thirds(&resident)?,
        anonymous: thirds(&anonymous)?,
        seconds,
        cpu_seconds,
        replaced: replaced - replaced_before,
        live_bytes,
        report,
    })
}

struct Outcome {
    resident: Thirds,
    /// Without pages of files and shared pages (RssAnon).
    anonymous: Thirds,
    seconds: f64,
    cpu_seconds: f64,
    replaced: u64,
    live_bytes: u64,
    report: Report,
}

impl Outcome {
    fn rate(&self) -> f64 {
        self.replaced as f64 / self.seconds
    }

    fn is_constant(&self) -> bool {
        self.resident.is_constant() && self.anonymous.is_constant()
    }

    fn text(&self, arguments: &Arguments) -> String {
        let Report { targets, health, .. } = &self.report;
        let dropped = tool::dropped(&self.report);
        let live: f64 = targets.iter().filter_map(|target| target.totals.live_bytes.as_f64()).sum();
        let live_samples: u64 = targets.iter().filter_map(|target| target.totals.live_samples).sum();
        let thirds = |name: &str, thirds: &Thirds| {
            let [first, middle, last] = thirds.0.each_ref().map(|third| format!("{third:.1}"));
            [
                (format!("agent's {name}, MiB: first third"), first),
                ("middle third".to_owned(), middle),
                ("last third".to_owned(), last),
                ("last ÷ middle".to_owned(), format!("{:.3}", thirds.ratio())),
            ]
        };
        let figures = [
            ("blocks replaced, thousand/s", format!("{:.1}", self.rate() / 1e3)),
            ("events/s", format!("{:.0}", health.events as f64 / tool::seconds(&self.report))),
            ("events dropped", dropped.to_string()),
            ("agent's CPU time, of one CPU", format!("{:.1} %", 100.0 * self.cpu_seconds / self.seconds)),
            ("sampled blocks that were live at the end", live_samples.to_string()),
            (
                "estimated live bytes at the end, error",
                format!("{:+.2} %", 100.0 * (live / self.live_bytes as f64 - 1.0)),
            ),
        ];
        let memory = [thirds("memory (VmRSS)", &self.resident), thirds("anonymous memory (RssAnon)", &self.anonymous)];
        let rows = memory.into_iter().flatten().chain(figures.map(|(name, figure)| (name.to_owned(), figure)));
        let Arguments { minutes, blocks, rate, interval, .. } = arguments;
        let head = format!("{minutes} min at `--interval {interval}`");
        let met = if self.is_constant() { "met" } else { "**not met**" };
        let reasons: Vec<_> = health.lost.iter().filter(|(_, count)| **count > 0).collect();
        let reasons = if dropped > 0 { format!(" Dropped: {reasons:?}.") } else { String::new() };
        format!(
            "{}\n{blocks} live blocks, {rate}/s to be replaced. Median (extremes) of a sample each second; limit: the last \
             third is at most 2 % above the middle one: {met}.{reasons}",
            figures::pairs([&head, "figure, median (extremes)"], rows)
        )
    }
}

/// Memory in MiB in each third of the time: the first one includes the warm-up of the agent.
#[derive(Clone, Debug)]
struct Thirds([Spread; 3]);

impl Thirds {
    /// From samples at equal intervals. `None` with fewer than `least` for each third.
    fn of(bytes: &[u64], least: usize) -> Option<Self> {
        let each = bytes.len() / 3;
        let third = |start: usize, end: usize| Spread::of(bytes[start..end].iter().map(|&bytes| mib(bytes)));
        let has_enough = each >= least.max(1);
        has_enough.then(|| Self([third(0, each), third(each, 2 * each), third(2 * each, bytes.len())]))
    }

    /// Median of the last third as a part of that of the middle one.
    fn ratio(&self) -> f64 {
        self.0[2].median() / self.0[1].median()
    }

    fn is_constant(&self) -> bool {
        self.ratio() - 1.0 <= GROWTH_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mib: impl Iterator<Item = u64>, constant: bool) {
        let bytes: Vec<u64> = mib.map(|mib| mib << 20).collect();
        let thirds = Thirds::of(&bytes, 3).expect("there are enough");
        assert_eq!(thirds.is_constant(), constant, "{thirds:?}");
    }

    #[test]
    fn growth_is_distinguished_from_warm_up() {
        check((0..30).map(|_| 100), true);
        check((0..30).map(|i| if i < 9 { 10 * i } else { 100 }), true);
        check((0..30).map(|i| if i % 7 == 0 { 500 } else { 100 }), true);
        check((0..30).map(|i| 100 + i), false);
        check((0..30).map(|i| 1000 - 10 * i), true);
        check((0..30).map(|i| if i < 20 { 100 } else { 103 }), false);
    }

    #[test]
    fn thirds_need_samples() {
        assert!(Thirds::of(&[1; 8], 3).is_none());
        assert!(Thirds::of(&[], 0).is_none());
        let thirds = Thirds::of(&[1 << 20, 2 << 20, 3 << 20, 5 << 20], 1).expect("one for each");
        let thirds = thirds.0.map(|third| format!("{third:.1}"));
        assert_eq!(thirds, ["1.0 (1.0 to 1.0)", "2.0 (2.0 to 2.0)", "4.0 (3.0 to 5.0)"]);
    }
}
