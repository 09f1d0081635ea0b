//! What a call of the allocator costs under each tool. Every tool is attached in turn to the same running process, round
//! after round, and ratios are taken within a round: a busy neighbour slows all of a round alike.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::churn::{self, Churn};
use super::program::bound;
use super::report::Report;
use super::tool::{self, Tool};
use super::{Bench, DEPTH, verdict};
use crate::bench::document;
use crate::bench::spread::Spread;
use crate::command;

/// A way to be watched, with its name in the table.
type Variant = (&'static str, Tool);

const NOTHING: Variant = ("nothing attached", Tool::Nothing);
const FLOOR: Variant = ("**empty programs at the same places (the floor)**", Tool::Floor);
const UNSAMPLED: Variant = ("`--interval 1GiB`: practically nothing sampled", Tool::Heapbpf(&["--interval", "1GiB"]));
const DEFAULT: Variant = ("default (`--interval 4KiB`)", Tool::Heapbpf(&[]));
const EVERYTHING: Variant = ("`--interval 1`: everything, stacks by tables", Tool::Heapbpf(&["--interval", "1"]));
const EVERYTHING_FP: Variant = (
    "`--interval 1 --unwind fp`: everything, stacks by frame pointers",
    Tool::Heapbpf(&["--interval", "1", "--unwind", "fp"]),
);
const MEMLEAK: Variant = ("bcc memleak (libbpf-tools)", Tool::Memleak(&[]));

/// For malloc and free.
const MALLOC: &[Variant] = &[
    NOTHING,
    FLOOR,
    ("the floor with frees in the session, too", Tool::SessionFloor),
    UNSAMPLED,
    ("`--interval 512KiB`", Tool::Heapbpf(&["--interval", "512KiB"])),
    DEFAULT,
    EVERYTHING_FP,
    EVERYTHING,
    ("`--interval 1GiB --backend multi`", Tool::Heapbpf(&["--interval", "1GiB", "--backend", "multi"])),
    ("`--interval 1GiB --backend perf`", Tool::Heapbpf(&["--interval", "1GiB", "--backend", "perf"])),
    ("`--interval 1GiB --placement entry`", Tool::Heapbpf(&["--interval", "1GiB", "--placement", "entry"])),
    MEMLEAK,
    ("bcc memleak `-s 100`", Tool::Memleak(&["-s", "100"])),
    ("bpftrace counting malloc, its return and free", Tool::Bpftrace),
];

/// For the others.
const OTHERS: &[Variant] = &[NOTHING, FLOOR, UNSAMPLED, DEFAULT, EVERYTHING_FP];

/// Operations of the target beside malloc and free.
const OPERATIONS: [(&str, &str); 3] =
    [("calloc", "calloc and free"), ("realloc", "realloc"), ("posix_memalign", "posix_memalign and free")];

/// What the variants cost, round by round, in nanoseconds.
struct Costs {
    variants: Vec<Variant>,
    /// By variant, then by round.
    ns: Vec<Vec<f64>>,
}

/// Measures all operations.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let program = churn::build(&bench.repository.root, "churn", &bench.folder)?;
    let mut text = String::new();
    let costs = Costs::measure(bench, &Churn::start(&program, "malloc", 1)?, MALLOC)?;
    text.push_str(&costs.malloc_table(heaptrack(bench, &program)?));
    text.push_str(&costs.bars());
    for variant in MALLOC.iter().filter_map(|(_, tool)| tool.missing(bench)) {
        text.push_str(&format!("- Not measured: {variant}.\n"));
    }
    let mut rows = Vec::new();
    for (operation, name) in OPERATIONS {
        let costs = Costs::measure(bench, &Churn::start(&program, operation, 1)?, OTHERS)?;
        let mut row = vec![name.to_owned()];
        row.extend(costs.ns.iter().map(|ns| format!("{:.0}", Spread::new(ns.clone()).median())));
        row.push(costs.ratio(UNSAMPLED, FLOOR).map_or_else(String::new, |ratio| format!("{:.2}", ratio.median())));
        rows.push(row);
    }
    let head = ["CPU ns, median", "nothing", "floor", "`1GiB`", "default", "`1`, fp", "`1GiB` ÷ floor"];
    text.push('\n');
    text.push_str(&document::table(&head, &rows));
    Ok(text)
}

impl Costs {
    fn measure(bench: &Bench, churn: &Churn, variants: &[Variant]) -> Result<Self> {
        let variants: Vec<_> = variants.iter().copied().filter(|(_, tool)| tool.missing(bench).is_none()).collect();
        let hooks = tool::hooks(bench, churn.pid())?;
        let mut ns = vec![Vec::new(); variants.len()];
        for round in 1..=bench.rounds {
            for ((name, tool), ns) in variants.iter().zip(&mut ns) {
                let attached = tool.attach(bench, churn.pid(), &hooks).with_context(|| (*name).to_owned())?;
                let cost = churn.call_ns(bench.window)?;
                let report = attached.detach()?;
                let lost = report.as_ref().map_or(0, |report| report.lost());
                eprintln!("round {round} of {}: {cost:>8.0} ns, {lost} lost: {name}", bench.rounds);
                if let Some(report) = report.filter(|_| name.contains("everything")) {
                    check_depth(&report)?;
                }
                ns.push(cost);
            }
        }
        Ok(Self { variants, ns })
    }

    fn of(&self, variant: Variant) -> Option<&[f64]> {
        let index = self.variants.iter().position(|&known| known == variant)?;
        Some(&self.ns[index])
    }

    /// Ratios within rounds.
    fn ratio(&self, variant: Variant, to: Variant) -> Option<Spread> {
        let (variant, to) = (self.of(variant)?, self.of(to)?);
        Some(Spread::new(variant.iter().zip(to).map(|(variant, to)| variant / to).collect()))
    }

    fn malloc_table(&self, heaptrack: Option<(Spread, Spread)>) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (&variant, ns) in self.variants.iter().zip(&self.ns) {
            let over = |to| self.ratio(variant, to).map_or_else(String::new, |it| format!("{:.2}", it.median()));
            rows.push(vec![
                variant.0.to_owned(),
                format!("{:.0}", Spread::new(ns.clone())),
                over(FLOOR),
                over(MEMLEAK),
            ]);
        }
        if let Some((cpu, wall)) = heaptrack {
            let name = format!("heaptrack, preloaded at the start ({:.0} ns of wall-clock time)", wall.median());
            rows.push(vec![name, format!("{cpu:.0}"), String::new(), String::new()]);
        }
        let head = ["one malloc (64 to 1087 bytes) and its free", "CPU ns, median (extremes)", "÷ floor", "÷ memleak"];
        document::table(&head, &rows)
    }

    /// What is asked for, and whether it is met.
    fn bars(&self) -> String {
        let bars = [
            ("unsampled ÷ floor", self.ratio(UNSAMPLED, FLOOR), 1.25),
            ("unsampled ÷ memleak", self.ratio(UNSAMPLED, MEMLEAK), 0.15),
            ("everything, 5 frames by frame pointers ÷ floor", self.ratio(EVERYTHING_FP, FLOOR), 3.0),
        ];
        let lines = bars.into_iter().filter_map(|(name, ratio, limit)| {
            let ratio = ratio?;
            Some(format!("- {name}: {ratio:.2}, at most {limit} is asked for: {}.\n", verdict(ratio.median(), limit)))
        });
        format!("\n{}", lines.collect::<String>())
    }
}

/// Fails unless nearly all stacks were taken whole: the figures say of how many frames they are.
fn check_depth(report: &Report) -> Result<()> {
    let blocks = |depth: Option<usize>| -> f64 {
        let callsites = report.callsites().filter(|callsite| depth.is_none_or(|depth| callsite.depth() == depth));
        callsites.map(|callsite| callsite.alloc_count).sum()
    };
    ensure!(blocks(Some(DEPTH)) > 0.99 * blocks(None), "not all stacks have {DEPTH} frames");
    Ok(())
}

/// The target started by heaptrack, time and again; `None` where it is not installed.
///
/// CPU time and wall-clock time: it waits for the program that it writes to.
fn heaptrack(bench: &Bench, program: &Path) -> Result<Option<(Spread, Spread)>> {
    if command::find("heaptrack").is_none() {
        return Ok(None);
    }
    let (mut cpu_ns, mut wall_ns) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let mut command = bound("heaptrack");
        command.arg("-o").arg(bench.folder.join("heaptrack")).arg(program).arg("malloc");
        let churn = Churn::start_as(&mut command)?;
        cpu_ns.push(churn.call_ns(bench.window)?);
        wall_ns.push(1e9 / churn.calls_per_second(bench.window)?);
    }
    Ok(Some((Spread::new(cpu_ns), Spread::new(wall_ns))))
}
