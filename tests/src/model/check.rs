//! Compares a report with what the program has counted.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{Plan, Start};
use super::run::{Recorded, run};
use super::truth::{Cell, Instance};
use crate::report::{Callsite, Process, Report, Totals};
use crate::sampling::{Expected, SAMPLES_MIN, SIGMAS, SIGMAS_MAX};

/// Half of a 95 % interval in standard deviations.
const HALF_OF_95: f64 = 1.959_964;
/// Blocks of the C library and of the program from before the recording.
const LIBRARY_BLOCKS: f64 = 32.0;

const LIBRARY_BYTES: f64 = 65_536.0;
/// What the allocator adds to a block at most, by its size.
const PAGES_FROM: u64 = 128 << 10;
const PAGE: u64 = 4096;
const ROUNDING: u64 = 64;

/// A program's counts are printed 200 µs before the exec of the next one, or before a fork that reuses its number. That one takes longer to
/// end. heapbpf reads two clocks to tell such a time.
const CLOCK_SKEW_NS: u64 = 500_000;

/// Something that heapbpf did wrong.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What kind of mistake it is: smaller programs with the same kind are examples of the same mistake.
    pub kind: &'static str,
    /// What was expected, and what was seen.
    pub text: String,
}

/// How many intervals contained the truth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coverage {
    /// All intervals.
    pub intervals: u32,
    /// Those that contained it.
    pub covering: u32,
}

/// What is wrong with one recording.
#[derive(Debug, Default)]
pub struct Judgement {
    /// Mistakes that are certain.
    pub failures: Vec<Failure>,
    /// Errors of estimates in standard deviations: whether these are mistakes shows a repetition.
    pub sigmas: BTreeMap<String, (f64, String)>,
    /// Intervals of 95 %.
    pub coverage: Coverage,
    /// Whether the report's verdict is that it is complete.
    pub is_complete: bool,
    /// Numbers that are wrong.
    pub wrong: Vec<String>,
    /// Programs that are listed as recorded from the first allocation, of which blocks are missing.
    pub claims: Vec<String>,
    /// What heapbpf has printed.
    pub log: String,
    /// Whether estimates must be right: something other than events is missing, if not.
    is_estimated: bool,
    /// Blocks by which they are wrong.
    missing_blocks: f64,
}

/// Blocks and bytes: allocated, freed and live.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Amounts([f64; 6]);

const AMOUNTS: [&str; 6] =
    ["allocated blocks", "allocated bytes", "freed blocks", "freed bytes", "live blocks", "live bytes"];

impl Amounts {
    #[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
    fn of_cells(cells: &[Cell]) -> Self {
        let sum = |of: &dyn Fn(&Cell) -> u64| cells.iter().map(of).sum::<u64>() as f64;
        let live = |cell: &Cell| cell.inherited + cell.allocated - cell.freed;
        Self([
            sum(&|cell| cell.allocated),
            sum(&|cell| cell.allocated * cell.size),
            sum(&|cell| cell.freed),
            sum(&|cell| cell.freed * cell.size),
            sum(&live),
            sum(&|cell| live(cell) * cell.size),
        ])
    }

    fn of_totals(totals: &Totals) -> Self {
        let Totals { alloc_count, alloc_bytes, free_count, free_bytes, live_count, live_bytes, .. } = totals;
        let numbers = [alloc_count, alloc_bytes, free_count, free_bytes, live_count, live_bytes];
        Self(numbers.map(|number| number.as_f64().unwrap_or(f64::NAN)))
    }

    fn of_callsites<'a>(callsites: impl Iterator<Item = &'a Callsite>) -> Self {
        callsites.map(|callsite| Self::of_totals(&callsite.totals)).fold(Self::default(), Self::plus)
    }

    fn plus(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    /// Names of the amounts in which they differ by more than rounding.
    fn differing(self, other: Self) -> Vec<&'static str> {
        let is_near = |i: usize| (self.0[i] - other.0[i]).abs() <= 1e-6 * self.0[i].abs().max(1.0);
        (0..6).filter(|&i| !is_near(i)).map(|i| AMOUNTS[i]).collect()
    }
}

/// Whether a function is one of the program's that allocate.
fn is_site(name: &str) -> bool {
    ["flat_", "nested_", "deep_", "plugged_"].iter().any(|prefix| name.starts_with(prefix))
}

fn site_of(callsite: &Callsite) -> Option<&str> {
    callsite.stack.iter().filter_map(|frame| frame.function.as_deref()).find(|name| is_site(name))
}

fn is_ambiguous(callsite: &Callsite) -> bool {
    let is_dropped = callsite.end.is_none() && callsite.stack.is_empty();
    site_of(callsite).is_none() && (is_dropped || callsite.end.as_deref().is_some_and(|end| end != "complete"))
}

/// One program, and what the report has of it.
struct Comparison<'a> {
    number: usize,
    plan: &'a Plan,
    truth: &'a Instance,
    entries: Vec<&'a Process>,
    /// The largest interval of the recording.
    interval: f64,
    /// Whether the report states that something was dropped.
    has_lost: bool,
    /// Whether the report states that processes ended unrecorded, or shared the memory of others: what they have allocated there is missing.
    has_unrecorded: bool,
    /// Whether the report states that the first calls of this program are missing.
    is_late: bool,
    /// Whether the report states that records or stacks were dropped: then estimates are too low by as much as intervals are wider.
    has_dropped: bool,
}

/// Reasons for which amounts of a function are missing, while its intervals include them.
const DROPS: [&str; 3] = ["ring_full", "live_set_full", "stack_lost"];

impl Comparison<'_> {
    fn name(&self) -> String {
        format!("program {} (pid {}, {})", self.number, self.truth.pid, self.truth.origin)
    }

    fn callsites(&self) -> impl Iterator<Item = &Callsite> {
        self.entries.iter().flat_map(|entry| &entry.callsites)
    }

    fn functions(&self) -> BTreeSet<&str> {
        let reported = self.callsites().filter_map(site_of);
        self.truth.cells.keys().map(String::as_str).chain(reported).collect()
    }

    fn cells(&self, function: &str) -> &[Cell] {
        self.truth.cells.get(function).map(Vec::as_slice).unwrap_or_default()
    }

    fn got(&self, function: &str) -> Amounts {
        Amounts::of_callsites(self.callsites().filter(|callsite| site_of(callsite) == Some(function)))
    }

    /// What may be missing of a function: other processes have allocated it in the memory of this one.
    fn borrowed(&self, function: &str) -> Amounts {
        let borrowed = self.truth.borrowed.get(function).filter(|_| self.has_unrecorded);
        let [blocks, bytes] = borrowed.copied().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        Amounts(std::array::from_fn(|i| if i % 2 == 0 { blocks as f64 } else { bytes as f64 }))
    }

    /// The same of a program whose first calls are missing: no more than there were. Live may be what it freed in the meantime.
    fn check_late(&self, judgement: &mut Judgement) {
        for function in self.functions() {
            let (truth, got) = (Amounts::of_cells(self.cells(function)), self.got(function));
            if self.interval <= 1.0 && (0..4).any(|i| got.0[i] > truth.0[i]) {
                judgement.wrong.push(format!("{}: {function}: {:?}, not at most {:?}", self.name(), got.0, truth.0));
            }
        }
    }

    /// What has a stack that was cut, perhaps below its function.
    fn cut(&self) -> Amounts {
        let is_cut = |callsite: &&Callsite| is_ambiguous(callsite) && callsite.end.is_some();
        Amounts::of_callsites(self.callsites().filter(is_cut))
    }

    /// What has a stack that was cut, perhaps below its function, or dropped.
    fn ambiguous(&self) -> Amounts {
        Amounts::of_callsites(self.callsites().filter(|callsite| is_ambiguous(callsite)))
    }

    /// Fails where sums of a process are not those of its callsites and of its heaps.
    fn check_sums(&self, judgement: &mut Judgement) {
        for entry in &self.entries {
            let totals = Amounts::of_totals(&entry.totals);
            let callsites = Amounts::of_callsites(entry.callsites.iter());
            let heaps = entry.heaps.iter().map(|heap| Amounts::of_totals(&heap.totals));
            let heaps = heaps.fold(Amounts::default(), Amounts::plus);
            for (what, sum) in [("callsites", callsites), ("heaps", heaps)] {
                let differing = totals.differing(sum);
                if !differing.is_empty() {
                    let text = format!("{}: {differing:?} of {what} {sum:?}, totals {totals:?}", self.name());
                    judgement.fail("sums", text);
                }
            }
        }
    }

    fn check_exact(&self, judgement: &mut Judgement) {
        let ambiguous = self.ambiguous();
        let (mut wrong, mut deficit, mut is_more) = (Vec::new(), Amounts::default(), false);
        for function in self.functions() {
            let (truth, got) = (Amounts::of_cells(self.cells(function)), self.got(function));
            let borrowed = self.borrowed(function);
            let differing = truth.differing(got);
            let is_borrowed = (0..6).all(|i| (0.0..=borrowed.0[i]).contains(&(truth.0[i] - got.0[i])));
            if is_borrowed {
                continue;
            }
            if !differing.is_empty() {
                wrong.push(format!("{}: {function}: {differing:?}: {:?}, not {:?}", self.name(), got.0, truth.0));
            }
            let less = Amounts(std::array::from_fn(|i| (truth.0[i] - got.0[i] - borrowed.0[i]).max(0.0)));
            is_more |= (0..6).any(|i| got.0[i] > truth.0[i]);
            deficit = deficit.plus(less);
            judgement.missing_blocks += [0, 2, 4].iter().map(|&i| (truth.0[i] - got.0[i]).abs()).sum::<f64>();
        }
        // A stack that was cut below its function is counted as such.
        let is_explained = !is_more && (0..6).all(|i| deficit.0[i] <= ambiguous.0[i]);
        if wrong.is_empty() || is_explained {
            return;
        }
        let claims = self.entries.iter().any(|entry| entry.beginning.from_first_call);
        if claims && deficit.0[0] > ambiguous.0[0] {
            judgement.claims.push(wrong.join("\n"));
        }
        judgement.wrong.extend(wrong);
    }

    /// The peak, where no other order of events is possible: foreign blocks come on top.
    fn check_peak(&self, judgement: &mut Judgement) {
        let [entry] = self.entries[..] else { return };
        if self.plan.is_concurrent() || self.plan.start == (Start::Attached { has_inventory: true }) {
            return;
        }
        let foreign = Amounts::of_callsites(entry.callsites.iter().filter(|callsite| site_of(callsite).is_none()));
        let foreign = foreign.0[1] + foreign.0[5];
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let truth = self.truth.peak_bytes as f64;
        let got = entry.totals.peak_bytes.as_f64().unwrap_or(f64::NAN);
        let borrowed: f64 = self.functions().into_iter().map(|function| self.borrowed(function).0[1]).sum();
        let least = truth - borrowed;
        if !(least..=truth + foreign).contains(&got) {
            judgement.wrong.push(format!("{}: peak {got}, not {least} to {}", self.name(), truth + foreign));
        }
    }

    /// Blocks of the inventory. Blocks of the C library come on top, and sizes are those that the allocator has rounded.
    fn check_inventory(&self, judgement: &mut Judgement) {
        let is_earlier =
            |callsite: &&Callsite| !callsite.inherited && callsite.has(|name| name == "[allocated before recording]");
        let got = Amounts::of_callsites(self.callsites().filter(is_earlier)).0;
        let of = |count: &dyn Fn(&Cell) -> u64| {
            let cells = self.truth.cells.values().flatten();
            // A mapping of its own that a `realloc` has shrunk stays one, whatever the new size.
            let may_have_pages = |cell: &Cell| cell.size >= PAGES_FROM || self.plan.resizes();
            let rounded = |cell: &Cell| cell.size + if may_have_pages(cell) { 2 * PAGE } else { ROUNDING };
            let sums = cells.fold([0; 3], |[blocks, bytes, most], cell| {
                let count = count(cell);
                [blocks + count, bytes + count * cell.size, most + count * rounded(cell)]
            });
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            sums.map(|sum| sum as f64)
        };
        let freed = of(&|cell| cell.old_freed);
        let live = of(&|cell| cell.old - cell.old_freed);
        for (what, [blocks, bytes, most], got) in [("freed", freed, &got[2..4]), ("live", live, &got[4..6])] {
            let is_right = (blocks..=blocks + LIBRARY_BLOCKS).contains(&got[0])
                && (bytes..=most + LIBRARY_BYTES).contains(&got[1]);
            if !is_right {
                let text = format!("{got:?} blocks and bytes are {what}, not {blocks} and {bytes} to {most}");
                judgement.wrong.push(format!("{}: of earlier blocks, {text}", self.name()));
            }
        }
    }

    fn check_estimates(&self, judgement: &mut Judgement) {
        let (mut all_allocated, mut all_live) = (Expected::default(), Expected::default());
        let (mut all_borrowed, cut) = (0.0, self.cut());
        for function in self.functions() {
            let (cells, got) = (self.cells(function), self.got(function));
            let borrowed = self.borrowed(function);
            all_borrowed += borrowed.0[1];
            let sum = |count: &dyn Fn(&Cell) -> u64| {
                cells.iter().fold(Expected::default(), |mut sum, cell| {
                    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
                    sum.add(Expected::blocks(count(cell) as f64, cell.size as f64, self.interval));
                    sum
                })
            };
            let allocated = sum(&|cell| cell.allocated);
            let live = sum(&|cell| cell.inherited + cell.allocated - cell.freed);
            all_allocated.add(allocated);
            all_live.add(live);
            for (what, expected, index) in [("allocated", allocated, 0), ("live", live, 4)] {
                let name = format!("{}: {function}, {what}", self.name());
                let missing = [0, 1].map(|i| borrowed.0[i] + cut.0[index + i]);
                if expected.samples >= SAMPLES_MIN && !self.plan.adapts && !self.has_dropped {
                    let nearest = |i: usize, truth: f64| match got.0[index + i] {
                        got if got < truth => truth.min(got + missing[i]),
                        got => got,
                    };
                    let (count, bytes) = expected.deviations(nearest(0, expected.count), nearest(1, expected.bytes));
                    let numbers =
                        format!("{:?}, not {} and {}", &got.0[index..index + 2], expected.count, expected.bytes);
                    judgement.sigmas.insert(format!("{name} blocks"), (count, numbers.clone()));
                    judgement.sigmas.insert(format!("{name} bytes"), (bytes, numbers));
                } else if expected.count == 0.0 && got.0[index] > 0.5 {
                    judgement.wrong.push(format!("{name}: {}, not 0", got.0[index]));
                }
                self.check_interval(function, &name, (what, &expected, missing[1]), judgement);
            }
        }
        self.check_total_intervals(all_allocated, all_live, all_borrowed, judgement);
    }

    /// Intervals of a process. Blocks of the C library are as many as the report has, and some of those without a whole stack.
    fn check_total_intervals(&self, allocated: Expected, live: Expected, borrowed: f64, judgement: &mut Judgement) {
        let [entry] = self.entries[..] else { return };
        let is_foreign = |callsite: &&Callsite| site_of(callsite).is_none() && !is_ambiguous(callsite);
        let foreign = Amounts::of_callsites(entry.callsites.iter().filter(is_foreign));
        let ambiguous = self.ambiguous();
        let Totals { alloc_bytes, alloc_bytes_95, live_bytes, live_bytes_95, .. } = &entry.totals;
        for (what, expected, bytes, number, interval) in
            [("allocated", allocated, 1, alloc_bytes, alloc_bytes_95), ("live", live, 5, live_bytes, live_bytes_95)]
        {
            let (Some([low, high]), Some(estimate)) = (interval, number.as_f64()) else { continue };
            if expected.samples < SAMPLES_MIN {
                continue;
            }
            let name = format!("{}: all, {what}", self.name());
            let least = expected.bytes + foreign.0[bytes];
            let truth = estimate.clamp(least - borrowed, least + ambiguous.0[bytes].min(LIBRARY_BYTES));
            judgement.note_interval(&name, truth, estimate, [estimate - low, high - estimate]);
        }
    }

    /// The interval of a function is that of a sum of independent estimates. `missing` bytes may be elsewhere in the report.
    fn check_interval(
        &self,
        function: &str,
        name: &str,
        (what, expected, missing): (&str, &Expected, f64),
        judgement: &mut Judgement,
    ) {
        // A function without callsites has what dropped allocations may be.
        let is_listed = self.callsites().any(|callsite| site_of(callsite) == Some(function));
        if !is_listed && self.has_lost {
            return;
        }
        let (mut estimate, mut below, mut above) = (0.0, 0.0, 0.0);
        for callsite in self.callsites().filter(|callsite| site_of(callsite) == Some(function)) {
            let totals = &callsite.totals;
            let (number, interval) = if what == "live" {
                (&totals.live_bytes, totals.live_bytes_95)
            } else {
                (&totals.alloc_bytes, totals.alloc_bytes_95)
            };
            let Some([low, high]) = interval else { return };
            let number = number.as_f64().unwrap_or(f64::NAN);
            estimate += number;
            below += (number - low).powi(2);
            above += (high - number).powi(2);
        }
        if expected.samples < SAMPLES_MIN {
            return;
        }
        let truth = estimate.clamp(expected.bytes - missing, expected.bytes);
        judgement.note_interval(name, truth, estimate, [below.sqrt(), above.sqrt()]);
    }
}

impl Judgement {
    fn note_interval(&mut self, name: &str, truth: f64, estimate: f64, [below, above]: [f64; 2]) {
        let error = truth - estimate;
        let half = if error < 0.0 { below } else { above };
        let rounding = 1e-6 * truth.max(1.0);
        self.coverage.intervals += 1;
        self.coverage.covering += u32::from(error.abs() <= half + rounding);
        let sigmas = error / (half / HALF_OF_95).max(rounding / 5.0);
        let numbers = format!("{estimate} -{below} +{above}, not {truth}");
        self.sigmas.insert(format!("{name}, interval"), (sigmas, numbers));
    }

    fn fail(&mut self, kind: &'static str, text: String) {
        self.failures.push(Failure { kind, text });
    }

    /// Fails unless the verdict explains what is wrong.
    fn judge_verdict(&mut self, plan: &Plan, report: &Report) {
        let verdict = report.health.verdict();
        let exceeded: Vec<&str> = verdict.findings.iter().filter(|it| it.exceeded).map(|it| it.kind.as_str()).collect();
        self.is_complete = verdict.complete;
        // Stacks that are cut in a library that was just loaded lack its function.
        let is_excused =
            |kind: &str| kind == "dropped_events" || kind == "cut_stacks" && !plan.uses.contains(&"plugin");
        self.is_estimated = exceeded.iter().all(|kind| is_excused(kind));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let lost = report.health.lost.values().sum::<u64>() as f64;
        let is_limited = verdict.statement.contains("except for") && self.missing_blocks <= 3.0 * lost;
        let summary = format!("{}; lost {:?}", verdict.statement, report.health.lost);
        if !self.wrong.is_empty() && !is_limited {
            let text = format!("{summary}\n{}", self.wrong.join("\n"));
            if verdict.complete {
                self.fail("complete-but-wrong", text);
            } else if exceeded == ["cut_stacks"] {
                self.fail("wrong-for-another-reason", text);
            }
        }
        if !self.claims.is_empty() && !exceeded.contains(&"dropped_events") {
            self.fail("claims-the-first-allocation", format!("{summary}\n{}", self.claims.join("\n")));
        }
        // Stacks through modules that a program has just loaded may be cut.
        let loads = plan.uses.iter().any(|it| ["plugin", "exec"].contains(it));
        if plan.is_plain && !(verdict.complete || loads && exceeded == ["cut_stacks"]) {
            self.fail("plain-but-incomplete", format!("{summary}; {}", self.wrong.join("\n")));
        }
    }
}

/// Records a program, and compares the report with what it has counted. Estimates that are off are repeated: they are biased if they are
/// off again, to the same side, or by far.
pub fn attempt(plan: &Plan) -> Judgement {
    let mut first = judge(plan, &run(plan));
    let beyond = |judgement: &Judgement, limit: f64| -> BTreeMap<String, (f64, String)> {
        let is_beyond = |sigmas: f64| judgement.is_estimated && (sigmas.is_nan() || sigmas.abs() > limit);
        let all = judgement.sigmas.iter().filter(|(_, (sigmas, _))| is_beyond(*sigmas));
        all.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let off = beyond(&first, SIGMAS);
    if off.is_empty() {
        return first;
    }
    let mut found = beyond(&first, SIGMAS_MAX);
    if found.is_empty() {
        let again = beyond(&judge(plan, &run(plan)), SIGMAS);
        let is_again = |name: &str, sigmas: f64| again.get(name).is_some_and(|(again, _)| again * sigmas > 0.0);
        found = off.into_iter().filter(|(name, (sigmas, _))| is_again(name, *sigmas)).collect();
    }
    for (kind, is_interval) in [("interval", true), ("biased", false)] {
        let named = found.iter().filter(|(name, _)| name.ends_with("interval") == is_interval);
        let text: Vec<String> =
            named.map(|(name, (sigmas, numbers))| format!("{name}: {numbers}, {sigmas:.1} sigma")).collect();
        if !text.is_empty() {
            first.fail(kind, text.join("\n"));
        }
    }
    first
}

/// When a process was forked, or executed its program, where that is known. It may have ended before its probes were all attached.
fn born(process: &Process) -> u64 {
    process.beginning.unix_ns.saturating_sub(process.beginning.delay_ns.unwrap_or(0))
}

/// The report of a process, by the program of which it is.
fn entries<'a>(recorded: &'a Recorded, report: &'a Report, judgement: &mut Judgement) -> Vec<Vec<&'a Process>> {
    let truth = &recorded.truth;
    let mut entries = vec![Vec::new(); truth.instances.len()];
    let mut by_pid: BTreeMap<u32, Vec<&Process>> = BTreeMap::new();
    for process in &report.targets {
        by_pid.entry(truth.owner(process.pid)).or_default().push(process);
    }
    for (pid, mut processes) in by_pid {
        processes.sort_by_key(|process| born(process));
        let programs = truth.of_process(pid);
        let is_each = programs.len() == processes.len();
        for (number, process) in processes.into_iter().enumerate() {
            let by_time = || truth.index_at(pid, born(process) + CLOCK_SKEW_NS).or(programs.last().copied());
            match if is_each { Some(programs[number]) } else { by_time() } {
                Some(index) => entries[index].push(process),
                None => judgement.wrong.push(format!(
                    "process {} ({}, {}) is none of the program's",
                    process.pid, process.command, process.beginning.origin
                )),
            }
        }
    }
    entries
}

/// Whether the verdict states that first calls of programs of this origin are missing. An incomplete one states only what exceeds a limit.
fn is_stated_late(report: &Report, origin: &str, entries: &[&Process]) -> bool {
    let verdict = report.health.verdict();
    match origin {
        "child" if verdict.complete => verdict.statement.contains("forked process"),
        "child" => entries.iter().any(|entry| entry.beginning.delay_ns.is_some_and(|delay| delay > 0)),
        "executed" => {
            report.health.lost.keys().any(|reason| ["program_late", "program_missed"].contains(&reason.as_str()))
        }
        _ => false,
    }
}

/// Compares a report with what the program has counted.
fn judge(plan: &Plan, recorded: &Recorded) -> Judgement {
    let mut judgement = Judgement { log: recorded.output.clone(), ..Judgement::default() };
    // A program that cannot be recorded, and an error that states so.
    if recorded.is_refused && recorded.report.is_none() && recorded.code == Some(1) && !plan.is_plain {
        return judgement;
    }
    if !recorded.trouble.is_empty() {
        let lines: Vec<&str> = recorded.output.lines().collect();
        let last = lines[lines.len().saturating_sub(12)..].join("\n");
        judgement.fail("trouble", format!("{}\n{last}", recorded.trouble.join("\n")));
    }
    let Some(report) = &recorded.report else {
        judgement.fail("no-report", recorded.output.clone());
        return judgement;
    };
    let is_commands = plan.start == Start::Launched && !plan.options.iter().any(|option| option == "--strict");
    let expected_code = if report.health.verdict().complete || is_commands { 0 } else { 3 };
    if recorded.code.is_some_and(|code| code != expected_code) {
        judgement.fail("exit-code", format!("{:?}: {}", recorded.code, report.health.verdict().statement));
    }
    let largest = report.health.interval_changes.iter().map(|change| change.to_bytes).max();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let interval = largest.unwrap_or(0).max(report.interval_bytes) as f64;
    let entries = entries(recorded, report, &mut judgement);
    for (number, (truth, entries)) in recorded.truth.instances.iter().zip(entries).enumerate() {
        let has_lost = !report.health.lost.is_empty();
        let has_dropped = DROPS.iter().any(|reason| report.health.lost.contains_key(*reason));
        let is_unrecorded = |kind: &str| kind == "ended_processes" || kind == "missed_processes";
        let is_stated = report.health.verdict().findings.iter().any(|it| is_unrecorded(&it.kind) && it.count > 0);
        // Processes that ended in the memory of others have no report of their own, but all others have.
        let has_unrecorded = is_stated || report.health.lost.contains_key("memory_borrowed");
        let is_late = !truth.is_held && is_stated_late(report, &truth.origin, &entries);
        let is_missed = !truth.is_held && is_stated;
        let comparison =
            Comparison { number, plan, truth, entries, interval, has_lost, has_unrecorded, is_late, has_dropped };
        if comparison.entries.is_empty() && is_missed {
            continue;
        }
        if comparison.entries.is_empty() {
            let blocks: u64 = truth.cells.values().flatten().map(|cell| cell.allocated + cell.freed).sum();
            if blocks > 0 {
                judgement.wrong.push(format!("{} is missing: {blocks} allocated and freed", comparison.name()));
            }
            continue;
        }
        comparison.check_sums(&mut judgement);
        if comparison.is_late {
            comparison.check_late(&mut judgement);
            continue;
        }
        if interval > 1.0 || has_dropped {
            comparison.check_estimates(&mut judgement);
        }
        if interval > 1.0 {
            continue;
        }
        comparison.check_exact(&mut judgement);
        comparison.check_peak(&mut judgement);
        if plan.start == (Start::Attached { has_inventory: true }) && truth.origin == "begins" {
            comparison.check_inventory(&mut judgement);
        }
    }
    judgement.judge_verdict(plan, report);
    judgement
}
