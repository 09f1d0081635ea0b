//! `bench overhead --part programs`: every workload under every tool, in alternation. Two tables drive it: `workload::ALL`
//! and `TOOLS`. Each run starts the program anew, and verifies that the tool has recorded.

use anyhow::{Context as _, Result, bail, ensure};
use heapbpf_tests::report::{Heap, Hook, Report};

use super::figures::{self, Spread, verdict};
use super::launched::{Allocated, Launcher};
use super::tool::{self, Setup, Tool};
use super::workload::{self, Expense, Prepared, Work, Workload};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Attached(Tool),
    Launched(Launcher),
}

struct Row {
    name: &'static str,
    method: Method,
    expense: Expense,
}

const fn row(name: &'static str, method: Method, expense: Expense) -> Row {
    Row { name, method, expense }
}

/// With the interval as given, also under overload.
const fn options(engine: &'static str, interval: &'static str) -> [&'static str; 6] {
    ["--engine", engine, "--interval", interval, "--on-overload", "drop"]
}

const fn trap(name: &'static str, options: &'static [&'static str]) -> Row {
    row(name, Method::Attached(Tool::Heapbpf(options)), Expense::High)
}

const fn inline(name: &'static str, options: &'static [&'static str], expense: Expense) -> Row {
    row(name, Method::Attached(Tool::Heapbpf(options)), expense)
}

const fn launched(name: &'static str, launcher: Launcher, expense: Expense) -> Row {
    row(name, Method::Launched(launcher), expense)
}

const NOTHING: usize = 0;
const INLINE: usize = 1;
const INLINE_64_KIB: usize = 2;
const INLINE_4_KIB: usize = 3;
const HEAPTRACK: usize = 8;
const TCMALLOC: usize = 9;
const TCMALLOC_SAMPLING: usize = 10;

const TOOLS: [Row; 13] = [
    row("nothing attached", Method::Attached(Tool::Nothing), Expense::Low),
    inline("`--engine inline`, 512 KiB", &options("inline", "512KiB"), Expense::Low),
    inline("`--engine inline`, 64 KiB", &options("inline", "64KiB"), Expense::Low),
    inline("`--engine inline`, 4 KiB", &options("inline", "4KiB"), Expense::High),
    row("empty probes, the floor of `trap`", Method::Attached(Tool::Floor), Expense::High),
    trap("`--engine trap`, 512 KiB", &options("trap", "512KiB")),
    trap("`--engine trap`, 64 KiB", &options("trap", "64KiB")),
    trap("`--engine trap`, 4 KiB", &options("trap", "4KiB")),
    launched("heaptrack", Launcher::Heaptrack, Expense::High),
    launched("tcmalloc, not sampling", Launcher::Tcmalloc { sampling: false }, Expense::Low),
    launched("tcmalloc sampling, 512 KiB", Launcher::Tcmalloc { sampling: true }, Expense::Low),
    launched("jemalloc, not sampling", Launcher::Jemalloc { sampling: false }, Expense::Low),
    launched("jemalloc sampling, 512 KiB", Launcher::Jemalloc { sampling: true }, Expense::Low),
];

/// Maximum difference of recorded bytes from the exact ones, besides 5 standard deviations.
const ERROR_MAX: f64 = 0.1;
/// Maximum part of calls that the inline engine may leave to probes.
const TRAPPED_MAX: f64 = 0.01;
/// Maximum of each ratio with the inline engine at 512 KiB, and at 64 KiB.
const LIMITS: [(&str, f64, f64); 6] = [
    ("pairs", 1.5, f64::INFINITY),
    ("redis-P16", 1.1, 1.5),
    ("sqlite3", 1.1, 1.5),
    ("python3", 1.1, 1.5),
    ("python3-malloc", 1.1, 1.5),
    ("git", 1.1, 1.5),
];

#[derive(Clone, Copy, Debug)]
struct Run {
    work: Work,
    dropped: u64,
    /// Part of the calls that trapped although the inline engine was used.
    trapped: Option<f64>,
}

#[derive(Clone, Debug, Default)]
struct Cell {
    /// By round.
    runs: Vec<Option<Run>>,
    failure: Option<String>,
}

struct Column {
    workload: &'static Workload,
    /// Allocations per second of CPU time, not profiled.
    rate: f64,
    /// By tool.
    cells: Vec<Cell>,
}

/// What every other run is compared with: the program under heapbpf, every block recorded.
struct Census {
    hooks: Vec<Hook>,
    /// In a round of the work.
    allocated: Allocated,
}

/// Measures all programs or `only` some, under all tools or the inline engine alone.
pub(super) fn measure(setup: &Setup, only: &[String], is_inline: bool) -> Result<String> {
    let is_requested = |workload: &&Workload| only.is_empty() || only.iter().any(|name| name == workload.name);
    let (mut columns, mut failures) = (Vec::new(), Vec::new());
    for workload in workload::ALL.iter().filter(is_requested) {
        match column(setup, workload, is_inline) {
            Ok(column) => columns.push(column),
            Err(error) => {
                eprintln!("{}: {error:#}", workload.name);
                failures.push(format!("- `{}` is missing: {}.\n", workload.name, one_line(&format!("{error:#}"))));
            }
        }
    }
    ensure!(!columns.is_empty(), "no program could be measured: {}", failures.concat());
    Ok(format!("{}{}", text(&columns, setup.bench.rounds), failures.concat()))
}

fn column(setup: &Setup, workload: &'static Workload, is_inline: bool) -> Result<Column> {
    let prepared = workload.prepare(&setup.bench).with_context(|| format!("preparing {}", workload.name))?;
    let census = census(setup, &prepared).with_context(|| format!("recording every block of {}", workload.name))?;
    eprintln!("{}: {:?} per round", workload.name, census.allocated);
    let mut cells = vec![Cell::default(); TOOLS.len()];
    for round in 0..setup.bench.rounds {
        for (index, (row, cell)) in TOOLS.iter().zip(&mut cells).enumerate() {
            cell.runs.resize(round, None);
            if is_inline && index > INLINE_4_KIB {
                cell.failure = Some("left out (`--inline`)".to_owned());
                continue;
            }
            match run(setup, &prepared, &census, row) {
                Ok(run) => {
                    eprintln!("{}: {:.4?} {:?}: {}", workload.name, run.work, (run.dropped, run.trapped), row.name);
                    cell.runs.push(Some(run));
                }
                // Without it there is nothing to compare with.
                Err(error) if row.method == Method::Attached(Tool::Nothing) => return Err(error),
                Err(error) => {
                    eprintln!("{}: {}: {error:#}", workload.name, row.name);
                    cell.failure.get_or_insert(format!("{error:#}"));
                }
            }
        }
    }
    let cpu = cells[NOTHING].runs.iter().flatten().map(|run| run.work.cpu);
    Ok(Column { workload, rate: census.allocated.count / Spread::of(cpu).median(), cells })
}

fn census(setup: &Setup, prepared: &Prepared<'_>) -> Result<Census> {
    let rounds = prepared.workload.rounds(Expense::High);
    let tool = Tool::Heapbpf(&["--interval", "1", "--on-overload", "drop", "--ring-size", "256MiB"]);
    let (_, rounds, report) = attached(setup, prepared, tool, &[], rounds)?;
    let mut report = report.context("heapbpf writes a report")?;
    ensure!(tool::dropped(&report) == 0, "events were dropped: {:?}", report.health.lost);
    let heaps = report.targets.iter_mut().flat_map(|target| &mut target.heaps);
    let count = |heap: &Heap| heap.totals.alloc_count.as_f64().unwrap_or(0.0);
    let heap = heaps.max_by(|a, b| count(a).total_cmp(&count(b))).context("no heap was found")?;
    let is_attached = |hook: &Hook| hook.attached;
    let module = heap.hooks.iter().find(|hook| is_attached(hook) && hook.function == "malloc");
    let module = module.context("the program's malloc is not hooked")?.module.clone();
    let hooks = std::mem::take(&mut heap.hooks).into_iter();
    let hooks = hooks.filter(|hook| is_attached(hook) && hook.module == module).collect();
    let Allocated { count, bytes } = allocated(&report);
    ensure!(count > 0.0, "the program has not allocated");
    let rounds = f64::from(rounds);
    Ok(Census { hooks, allocated: Allocated { count: count / rounds, bytes: bytes / rounds } })
}

fn allocated(report: &Report) -> Allocated {
    let sum = |value: fn(&Report) -> Vec<Option<f64>>| value(report).into_iter().flatten().sum();
    Allocated {
        count: sum(|report| report.targets.iter().map(|target| target.totals.alloc_count.as_f64()).collect()),
        bytes: sum(|report| report.targets.iter().map(|target| target.totals.alloc_bytes.as_f64()).collect()),
    }
}

/// Also returns the number of rounds that the tool has seen.
fn attached(
    setup: &Setup,
    prepared: &Prepared<'_>,
    tool: Tool,
    hooks: &[Hook],
    rounds: u32,
) -> Result<(Work, u32, Option<Report>)> {
    let mut held = prepared.start(&[])?;
    let attached = tool.attach(setup, held.pid(), hooks)?;
    let seen = held.warm_up()? + rounds;
    let work = held.work(rounds)?;
    let report = if held.exits() { attached.finish()? } else { attached.detach(held.pid())? };
    held.end()?;
    Ok((work, seen, report))
}

fn run(setup: &Setup, prepared: &Prepared<'_>, census: &Census, row: &Row) -> Result<Run> {
    let rounds = prepared.workload.rounds(row.expense);
    let (mut dropped, mut trapped) = (0, None);
    let work = match row.method {
        Method::Attached(tool) => {
            if let Some(reason) = tool.missing(setup) {
                bail!("{reason}");
            }
            let (work, seen, report) = attached(setup, prepared, tool, &census.hooks, rounds)?;
            if let (Some(report), Tool::Heapbpf(options)) = (report, tool) {
                check(&report, census.allocated.times(seen))?;
                dropped = tool::dropped(&report);
                trapped = if options.contains(&"inline") { Some(trapped_part(&report)?) } else { None };
            }
            work
        }
        Method::Launched(launcher) => {
            if let Some(reason) = launcher.missing() {
                bail!("{reason}");
            }
            let (environment, profile) = launcher.prepare(setup)?;
            let mut held = prepared.start(&environment)?;
            let seen = held.warm_up()? + rounds;
            let work = held.work(rounds)?;
            held.end()?;
            profile.check(census.allocated.times(seen))?;
            work
        }
    };
    Ok(Run { work, dropped, trapped })
}

impl Allocated {
    fn times(self, rounds: u32) -> Self {
        Self { count: self.count * f64::from(rounds), bytes: self.bytes * f64::from(rounds) }
    }
}

/// Fails unless the profile has the bytes that the program allocates, and no other tool had probes on its functions.
fn check(report: &Report, expected: Allocated) -> Result<()> {
    let scope = report.health.scope.as_ref().context("the report lacks the scope")?;
    let foreign = scope.foreign_probes.context("probes of other tools cannot be listed")?;
    ensure!(foreign == 0, "{foreign} probes of other tools on the same functions");
    let samples = (expected.bytes / report.interval_bytes as f64).max(1.0);
    let error = allocated(report).bytes / expected.bytes - 1.0;
    ensure!(error.abs() < ERROR_MAX + 5.0 / samples.sqrt(), "recorded bytes are {:+.1} % off", 100.0 * error);
    Ok(())
}

fn trapped_part(report: &Report) -> Result<f64> {
    let engine = report.health.inline_engine.as_ref().context("the report lacks the inline engine")?;
    ensure!(engine.refused.is_empty(), "fell back to `trap`: {:?}", engine.refused);
    ensure!(engine.targets == 1, "the inline engine had {} targets", engine.targets);
    let calls = engine.passed_calls + engine.trapped_calls;
    let part = engine.trapped_calls as f64 / calls.max(1) as f64;
    ensure!(part <= TRAPPED_MAX, "{:.1} % of the calls trapped", 100.0 * part);
    Ok(part)
}

impl Column {
    /// Ratios of a tool to another one, by round.
    fn ratios(&self, row: usize, to: usize, value: fn(&Work) -> f64) -> Option<Spread> {
        let rounds = self.cells[row].runs.iter().zip(&self.cells[to].runs);
        let ratios: Vec<f64> =
            rounds.filter_map(|(run, to)| Some(value(&run.as_ref()?.work) / value(&to.as_ref()?.work))).collect();
        (!ratios.is_empty()).then(|| Spread::of(ratios))
    }

    fn ratio(&self, row: usize, to: usize) -> Option<f64> {
        Some(self.ratios(row, to, |work| work.cpu)?.median())
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        self.cells.iter().flat_map(|cell| &cell.runs).flatten()
    }
}

fn number(ratio: f64) -> String {
    let digits = if ratio < 9.995 { 2 } else { usize::from(ratio < 99.95) };
    format!("{ratio:.digits$}")
}

fn text(columns: &[Column], rounds: usize) -> String {
    let mut notes: Vec<String> = Vec::new();
    let mut rates = vec!["million allocations per s of CPU, not profiled".to_owned()];
    rates.extend(columns.iter().map(|column| format!("{:.3}", column.rate / 1e6)));
    let mut text = table("CPU time", vec![rates], columns, |work| work.cpu, &mut notes);
    text.push_str(&format!(
        "\nThe program's CPU time for the same work, as a multiple of that with nothing attached. Medians; rounds, in \
         which all tools alternate: {rounds}.\n\n",
    ));
    text.push_str(&table("wall-clock time", Vec::new(), columns, |work| work.wall, &mut notes));
    text.push_str("\nThe same for the elapsed time, on a machine where the tool's own processes share the CPUs.\n\n");
    for (number, note) in notes.iter().enumerate() {
        text.push_str(&format!("- ({}) {note}\n", number + 1));
    }
    for column in columns {
        text.push_str(&format!("- `{}`: {}\n", column.workload.name, column.workload.description));
    }
    let trapped = columns.iter().flat_map(Column::runs).filter_map(|run| run.trapped).fold(0.0, f64::max);
    text.push_str(&format!("- Calls that trapped under `--engine inline`: at most {:.2} %.\n", 100.0 * trapped));
    let dropped: u64 = columns.iter().flat_map(Column::runs).map(|run| run.dropped).sum();
    text.push_str(&format!("- Events dropped in all recordings: {dropped}.\n\n"));
    text.push_str(&limits(columns));
    text
}

/// Ratios below the given rows. Appends reasons of missing figures to the notes.
fn table(
    name: &str,
    mut rows: Vec<Vec<String>>,
    columns: &[Column],
    value: fn(&Work) -> f64,
    notes: &mut Vec<String>,
) -> String {
    let mut head = vec![name];
    head.extend(columns.iter().map(|column| column.workload.name));
    let mut spreads = vec!["nothing attached: slowest ÷ fastest round".to_owned()];
    spreads.extend(columns.iter().map(|column| {
        let values: Vec<f64> = column.cells[NOTHING].runs.iter().flatten().map(|run| value(&run.work)).collect();
        let spread = Spread::of(values);
        format!("{:.2}", spread.max() / spread.min())
    }));
    rows.push(spreads);
    for (index, row) in TOOLS.iter().enumerate().skip(1) {
        let cells = columns.iter().map(|column| match column.ratios(index, NOTHING, value) {
            Some(ratios) => number(ratios.median()),
            None => format!("– ({})", note(notes, row, &column.cells[index])),
        });
        rows.push([row.name.to_owned()].into_iter().chain(cells).collect());
    }
    figures::table(&head, &rows)
}

/// Number of the note with the reason why there is no figure. Workloads with the same reason share a note.
fn note(notes: &mut Vec<String>, row: &Row, cell: &Cell) -> usize {
    let reason = cell.failure.as_deref().unwrap_or("not measured in this number of rounds");
    let note = format!("{}: {}.", row.name, one_line(reason));
    let found = notes.iter().position(|known| *known == note);
    found.unwrap_or_else(|| {
        notes.push(note);
        notes.len() - 1
    }) + 1
}

/// A message as a line of a page.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/")
}

fn limits(columns: &[Column]) -> String {
    let find = |name: &str| columns.iter().find(|column| column.workload.name == name);
    let mut text = String::new();
    for (name, limit, limit_64_kib) in LIMITS {
        let Some(column) = find(name) else { continue };
        for (row, limit) in [(INLINE, limit), (INLINE_64_KIB, limit_64_kib)] {
            if let Some(ratio) = column.ratio(row, NOTHING).filter(|_| limit.is_finite()) {
                let met = verdict(ratio, limit);
                text.push_str(&format!("- {}, `{name}`: {ratio:.2}, limit {limit}: {met}.\n", TOOLS[row].name));
            }
        }
    }
    let slower = columns.iter().filter(|column| {
        let ratio = |row| column.ratio(row, NOTHING);
        ratio(INLINE).zip(ratio(HEAPTRACK)).is_some_and(|(inline, heaptrack)| inline > heaptrack)
    });
    let slower: Vec<_> = slower.map(|column| format!("`{}`", column.workload.name)).collect();
    let verdict =
        if slower.is_empty() { "everywhere: met".to_owned() } else { format!("not on {}", slower.join(", ")) };
    text.push_str(&format!("- {} cheaper than heaptrack: {verdict}.\n", TOOLS[INLINE].name));
    let sampling: Vec<_> = columns
        .iter()
        .filter_map(|column| {
            let (inline, tcmalloc) = column.ratio(INLINE, NOTHING).zip(column.ratio(TCMALLOC_SAMPLING, TCMALLOC))?;
            Some(format!("{} {inline:.2} and {tcmalloc:.2}", column.workload.name))
        })
        .collect();
    text.push_str(&format!(
        "- {}, and tcmalloc's sampling ÷ not sampling: {}.\n",
        TOOLS[INLINE].name,
        sampling.join(", ")
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(cpu: &[f64]) -> Cell {
        let run = |&cpu: &f64| Some(Run { work: Work { cpu, wall: 2.0 * cpu }, dropped: 1, trapped: None });
        Cell { runs: cpu.iter().map(run).collect(), failure: None }
    }

    fn column() -> Column {
        let mut cells = vec![runs(&[2.2, 2.0, 4.0]); TOOLS.len()];
        cells[NOTHING] = runs(&[1.0, 2.0, 4.0]);
        cells[HEAPTRACK] = runs(&[20.0, 40.0, 80.0]);
        let failure = Some("has\nfailed | here".to_owned());
        cells[TCMALLOC] = Cell { runs: vec![None], failure: failure.clone() };
        cells[TOOLS.len() - 1] = Cell { runs: Vec::new(), failure };
        Column { workload: &workload::ALL[0], rate: 5e6, cells }
    }

    #[test]
    fn rows_have_their_places() {
        assert!(TOOLS[NOTHING].method == Method::Attached(Tool::Nothing));
        assert!(
            TOOLS[INLINE].name.contains("inline`, 512 KiB") && TOOLS[INLINE_64_KIB].name.contains("inline`, 64 KiB")
        );
        assert!(TOOLS[HEAPTRACK].method == Method::Launched(Launcher::Heaptrack));
        assert!(TOOLS[TCMALLOC].method == Method::Launched(Launcher::Tcmalloc { sampling: false }));
        assert!(TOOLS[TCMALLOC_SAMPLING].method == Method::Launched(Launcher::Tcmalloc { sampling: true }));
    }

    #[test]
    fn limits_name_workloads() {
        for (name, ..) in LIMITS {
            assert!(workload::ALL.iter().any(|workload| workload.name == name), "{name}");
        }
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        assert_eq!(column().ratio(HEAPTRACK, NOTHING), Some(20.0));
        assert_eq!(column().ratio(INLINE, NOTHING), Some(1.0));
        assert_eq!(column().ratio(TCMALLOC, NOTHING), None);
    }

    #[test]
    fn missing_figures_have_a_reason() {
        let text = text(&[column()], 3);
        assert!(text.contains("| heaptrack | 20.0 |\n"), "{text}");
        assert!(text.contains("| tcmalloc, not sampling | – (1) |\n"), "{text}");
        assert!(text.contains("- (1) tcmalloc, not sampling: has failed / here.\n"), "{text}");
        assert!(text.contains("- `--engine inline`, 512 KiB, `pairs`: 1.00, limit 1.5: met.\n"), "{text}");
        assert!(text.contains("cheaper than heaptrack: everywhere: met"), "{text}");
        assert_eq!(text.matches("(2) jemalloc sampling, 512 KiB: has failed / here.").count(), 1, "{text}");
    }
}
