//! What a soak gave, in a table.

use super::Arguments;
use super::agent::Report;
use super::thirds::Thirds;
use crate::bench::document;

/// What was measured.
pub(super) struct Outcome {
    /// The agent's memory.
    pub(super) resident: Thirds,
    /// Of that, what is its own.
    pub(super) anonymous: Thirds,
    /// How long blocks were turned over.
    pub(super) seconds: f64,
    /// What the agent took of a CPU meanwhile.
    pub(super) cpu_seconds: f64,
    /// Blocks turned over meanwhile, as the program tells it.
    pub(super) turned: u64,
    /// What it held in the end, as it tells it.
    pub(super) held_bytes: u64,
    pub(super) report: Report,
}

impl Outcome {
    /// Blocks turned over a second.
    pub(super) fn rate(&self) -> f64 {
        as_f64(self.turned) / self.seconds
    }

    /// Whether the agent's memory does not grow any more.
    pub(super) fn is_flat(&self) -> bool {
        self.resident.is_flat() && self.anonymous.is_flat()
    }

    /// The table and what it means.
    pub(super) fn text(&self, arguments: &Arguments) -> String {
        let recorded_ns = self.report.ended_unix_ns.saturating_sub(self.report.started_unix_ns);
        let events_per_second = as_f64(self.report.health.events) / (as_f64(recorded_ns) / 1e9);
        let lost: u64 = self.report.health.lost.values().sum();
        let live: f64 = self.report.targets.iter().map(|target| target.totals.live_bytes).sum();
        let samples: u64 = self.report.targets.iter().map(|target| target.totals.live_samples).sum();
        let off = 100.0 * (live / as_f64(self.held_bytes) - 1.0);
        let row = |name: &str, figure: String| vec![name.to_owned(), figure];
        let thirds = |name: &str, thirds: &Thirds| {
            let [first, middle, last] = thirds.mib();
            [
                row(&format!("agent's {name}, MiB: first third"), first),
                row("middle third", middle),
                row("last third", last),
                row("last ÷ middle", format!("{:.3}", thirds.ratio())),
            ]
        };
        let figures = [
            row("blocks turned over, thousand/s", format!("{:.1}", self.rate() / 1e3)),
            row("events/s", format!("{events_per_second:.0}")),
            row("lost", lost.to_string()),
            row("agent's CPU, of one CPU", format!("{:.1} %", 100.0 * self.cpu_seconds / self.seconds)),
            row("sampled blocks that lived in the end", samples.to_string()),
            row("live bytes in the end, off the truth", format!("{off:+.2} %")),
        ];
        let memory = [thirds("memory (VmRSS)", &self.resident), thirds("own memory (RssAnon)", &self.anonymous)];
        let rows: Vec<_> = memory.into_iter().flatten().chain(figures).collect();
        let Arguments { minutes, blocks, rate, interval, .. } = arguments;
        let head = format!("{minutes} min at `--interval {interval}`");
        let met = if self.is_flat() { "met" } else { "**not met**" };
        let reasons: Vec<_> = self.report.health.lost.iter().filter(|(_, count)| **count > 0).collect();
        let reasons = if lost > 0 { format!(" Lost: {reasons:?}.") } else { String::new() };
        format!(
            "{}\n{blocks} blocks held, {rate}/s to be turned over. Median (extremes) of a look each second; a last third \
             at most 2 % above the middle one is asked for: {met}.{reasons}",
            document::table(&[&head, "figure, median (extremes)"], &rows)
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for display")]
fn as_f64(number: u64) -> f64 {
    number as f64
}
