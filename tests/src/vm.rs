//! Parses what a virtual machine sends over its second serial line (`value` and `file` in `xtask/src/vm/init.sh`), and checks it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Number;

use crate::report::{Counts, Ledger, Process, Report, Totals};
use crate::unreachable::{self, Known, Sum, Truth};

/// Output of a virtual machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// Contents by name.
    pub files: BTreeMap<String, Vec<u8>>,
    values: BTreeMap<String, String>,
    /// Why it ends early.
    pub broken: Option<String>,
}

impl Transcript {
    /// Parses lines `value NAME TEXT`, `file NAME BYTES` followed by these bytes and a newline, and `done`.
    pub fn parse(data: &[u8]) -> Self {
        let mut transcript = Self::default();
        if let Err(reason) = transcript.read(data) {
            transcript.broken = Some(reason);
        }
        transcript
    }

    /// A value by its name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A file by its name, if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.files.get(name).and_then(|content| std::str::from_utf8(content).ok())
    }

    fn read(&mut self, mut data: &[u8]) -> Result<(), String> {
        loop {
            let line = take_line(&mut data).ok_or("the serial line ended without `done`")?;
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("done"), None, None) => return Ok(()),
                (Some("value"), Some(name), text) => {
                    self.values.insert(name.to_owned(), text.unwrap_or_default().trim().to_owned());
                }
                (Some("file"), Some(name), Some(length)) if is_plain(name) => {
                    let length: usize = length.parse().map_err(|_| format!("`{line}` has no length"))?;
                    let content = data.split_off(..length).ok_or_else(|| format!("`{name}` was cut off"))?;
                    if take_line(&mut data).is_none_or(|rest| !rest.is_empty()) {
                        return Err(format!("`{name}` has another length than announced"));
                    }
                    self.files.insert(name.to_owned(), content.to_owned());
                }
                _ => return Err(format!("`{line}` was received and is not valid")),
            }
        }
    }
}

fn take_line<'a>(data: &mut &'a [u8]) -> Option<&'a str> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let line = data.split_off(..end)?;
    data.split_off_first();
    std::str::from_utf8(line).ok()
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
}

/// A check of the output.
#[derive(Debug)]
pub struct Check {
    /// What is checked.
    pub name: String,
    /// What was found.
    pub outcome: Outcome,
}

impl Check {
    /// A check with its outcome.
    pub fn new(name: impl Into<String>, outcome: Outcome) -> Self {
        Self { name: name.into(), outcome }
    }
}

/// Details of a success, or the reason of a failure.
pub type Outcome = Result<String, String>;

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verdict, words) = match &self.outcome {
            Ok(words) => ("ok", words),
            Err(words) => ("FAILED", words),
        };
        write!(f, "  {verdict:<7} {:<52} {words}", self.name)
    }
}

/// A session of `init.sh`, and the properties of its target.
#[derive(Clone, Copy)]
struct Session {
    name: &'static str,
    /// Callers of every function that allocates, outwards.
    callers: &'static [&'static str],
    /// Minimum share of complete stacks: by tables, 1 or nearly so.
    complete_min: f64,
    /// Whether stacks are unwound by frame pointers. libc has them on arm64 only.
    by_pointers: bool,
    /// Whether links are the cheapest that the kernel has, not perf events.
    cheapest_links: bool,
    /// The heap that the functions allocate from.
    heap: &'static str,
    scope: Scope,
}

/// What is compared with the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Totals of each function: others allocate, too.
    Functions,
    /// Also totals of the process.
    Process,
    /// Also the peak, which depends on the order of calls.
    Peak,
}

/// A session of a target that calls every function of libc.
const EXACT: Session = Session {
    name: "",
    callers: &["work", "main"],
    complete_min: 1.0,
    by_pointers: false,
    cheapest_links: true,
    heap: "libc",
    scope: Scope::Peak,
};
const THREADS: Session = Session { callers: &["thread"], scope: Scope::Functions, ..EXACT };

const SESSIONS: [Session; 15] = [
    Session { name: "tables", ..EXACT },
    Session { name: "pointers", by_pointers: true, cheapest_links: false, ..EXACT },
    Session { name: "threads", ..THREADS },
    Session { name: "inline", ..THREADS },
    Session { name: "ending", ..EXACT },
    Session { name: "static-trap", ..EXACT },
    allocator("musl-trap", "musl"),
    allocator("jemalloc-trap", "jemalloc"),
    allocator("tcmalloc-trap", "tcmalloc"),
    allocator("mimalloc-trap", "mimalloc"),
    Session { name: "static-inline", ..EXACT },
    allocator("musl-inline", "musl"),
    allocator("jemalloc-inline", "jemalloc"),
    allocator("tcmalloc-inline", "tcmalloc"),
    allocator("mimalloc-inline", "mimalloc"),
];

/// A session of `matrix.c`, which also calls the allocator on four threads at once.
const fn allocator(name: &'static str, heap: &'static str) -> Session {
    Session { name, heap, callers: &[], scope: Scope::Process, ..EXACT }
}

/// Sessions of threads that preempt each other; only with `--soak`.
const SOAK: [Session; 2] = [
    Session { name: "soak-8", complete_min: 0.9999, ..THREADS },
    Session { name: "soak-64", complete_min: 0.9999, ..THREADS },
];

impl Session {
    fn complete_min(&self, machine: &str) -> f64 {
        if self.by_pointers && machine != "aarch64" { 0.0 } else { self.complete_min }
    }
}

/// Maximum number of instructions that the verifier processes for one program (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h
/// in 6.1.192 and 6.12.117).
const VERIFIER_LIMIT: u64 = 1_000_000;

/// Checks everything that `init.sh` has sent.
pub fn judge(transcript: &Transcript) -> Vec<Check> {
    [sessions(transcript), faults(transcript), leaks(transcript)].into_iter().flatten().collect()
}

fn sessions(transcript: &Transcript) -> Vec<Check> {
    let kernel = transcript.value("kernel").map_or((0, 0), version);
    let machine = transcript.value("machine").unwrap_or_default();
    let mut checks = Vec::new();
    let soak: &[Session] = if transcript.value("soak").is_some() { &SOAK } else { &[] };
    for session in SESSIONS.iter().chain(soak) {
        let mut add = |what: &str, outcome| checks.push(Check::new(format!("{}: {what}", session.name), outcome));
        // Stacks that are cut make a profile incomplete.
        let complete_min = session.complete_min(machine);
        let code = if complete_min > 0.0 { "0" } else { "3" };
        add(&format!("heapbpf exits with {code}"), exited_with(transcript, session.name, code));
        match read(transcript, session.name) {
            Err(reason) => add("there is a report", Err(reason)),
            Ok((report, ledger)) => {
                let process = &report.targets[0];
                add("every hook is attached, no event is dropped", complete(&report));
                add("links are of the expected kind", links(process, session, kernel));
                add("totals are exact", totals(process, &ledger, session));
                add("stacks", stacks(&report, &ledger, session.callers, complete_min));
                if session.name == "inline" {
                    add("calls pass stubs since Linux 6.6", stubs(&report, kernel));
                }
                if session.name == "ending" {
                    add("the target's exit is recorded", exit(process, kernel));
                }
            }
        }
        add("the target is unharmed", unharmed(transcript, session.name));
    }
    for name in ["forks", "execs"] {
        checks.push(Check::new(format!("{name}: heapbpf exits with 0"), exited(transcript, name)));
        checks.push(Check::new(format!("{name}: each fork is accounted for"), forks(transcript, name)));
    }
    checks.extend([
        Check::new("tables: probes are attached and detached", probes(transcript)),
        Check::new("threads: the target works after detaching", works_after(transcript)),
        Check::new("instructions processed by the verifier", effort(transcript)),
        Check::new("interpreted: heapbpf exits with 0", exited(transcript, "interpreted")),
        Check::new("interpreted: all stacks contain all functions", interpreted(transcript)),
        Check::new("interpreted: the target is unharmed", unharmed(transcript, "interpreted")),
    ]);
    checks
}

/// Allocations of eight threads, each below 40 functions of an interpreter (`forged_python.c`).
const INTERPRETED: (u64, usize) = (16_000, 40);
/// Stacks without a scratch area have their caller only: see docs/kernel-support.md.
const WITHOUT_SCRATCH_MAX: f64 = 0.02;

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn interpreted(transcript: &Transcript) -> Outcome {
    let report = report(transcript, "interpreted")?;
    let (blocks, functions) = INTERPRETED;
    let mut by_functions: BTreeMap<usize, u64> = BTreeMap::new();
    let process = report.targets.first().ok_or("no target")?;
    for callsite in process
        .callsites
        .iter()
        .filter(|callsite| callsite.stack.iter().any(|frame| frame.is("_PyEval_EvalFrameDefault")))
    {
        let named =
            callsite.stack.iter().filter(|frame| frame.kind.as_deref() == Some("interpreted") && frame.is("name"));
        *by_functions.entry(named.count()).or_default() += callsite.totals.alloc_count.as_u64().unwrap_or(0);
    }
    let complete = by_functions.get(&functions).copied().unwrap_or(0);
    let without_scratch = report.health.unwind.get("no_scratch").copied().unwrap_or(0);
    let is_complete = complete + without_scratch >= blocks && by_functions.keys().all(|&count| count == functions);
    let words = format!("{complete} of {blocks} stacks, {without_scratch} without a scratch area: {by_functions:?}");
    if is_complete && without_scratch as f64 <= WITHOUT_SCRATCH_MAX * blocks as f64 { Ok(words) } else { Err(words) }
}

/// Compares a value with the expected one. In `otherwise`, `{}` stands for another value.
fn expect(transcript: &Transcript, name: &str, expected: &str, otherwise: &str) -> Outcome {
    match transcript.value(name) {
        Some(value) if value == expected => Ok(String::new()),
        other => Err(otherwise.replace("{}", other.unwrap_or("unknown"))),
    }
}

fn exited(transcript: &Transcript, session: &str) -> Outcome {
    exited_with(transcript, session, "0")
}

fn exited_with(transcript: &Transcript, session: &str, code: &str) -> Outcome {
    expect(transcript, &format!("{session}.code"), code, "exit code {}").map_err(|reason| {
        let texts = ["log", "summary"].map(|kind| transcript.text(&format!("{session}.{kind}")).unwrap_or_default());
        format!("{reason}\n{}\n{}", texts[0].trim(), texts[1].trim())
    })
}

fn report(transcript: &Transcript, session: &str) -> Result<Report, String> {
    let json = transcript.text(&format!("{session}.json")).ok_or("no report was written")?;
    serde_json::from_str(json).map_err(|error| format!("the report cannot be read: {error}"))
}

fn read(transcript: &Transcript, session: &str) -> Result<(Report, Ledger), String> {
    let mut report = report(transcript, session)?;
    // A child that the target forks is a target too, if it lives for long enough.
    report.targets.retain(|target| target.beginning.origin == "running");
    if report.targets.len() != 1 {
        return Err(format!("it has {} targets", report.targets.len()));
    }
    Ok((report, ledger(transcript, session, 0)?))
}

/// The target's ledger for its line of input number `index`.
fn ledger(transcript: &Transcript, session: &str, index: usize) -> Result<Ledger, String> {
    let text = transcript.text(&format!("{session}.ledger")).ok_or("the target printed nothing")?;
    let line = text.lines().filter(|line| line.starts_with('{')).nth(index).ok_or("the target did not do its work")?;
    serde_json::from_str(line).map_err(|error| format!("the target's ledger cannot be read: {error}"))
}

fn complete(report: &Report) -> Outcome {
    let hooks: Vec<_> = report.targets.iter().flat_map(|target| &target.heaps).flat_map(|heap| &heap.hooks).collect();
    if let Some(hook) = hooks.iter().find(|hook| !hook.attached) {
        return Err(format!("`{}`: {}", hook.function, hook.error.as_deref().unwrap_or("not attached")));
    }
    let lost: BTreeMap<_, _> = report.health.lost.iter().filter(|(_, count)| **count > 0).collect();
    if hooks.is_empty() || !lost.is_empty() {
        return Err(format!("{} hooks, dropped: {lost:?}", hooks.len()));
    }
    Ok(format!("{} hooks, {} events", hooks.len(), report.health.events))
}

/// The work begins before the stubs are installed, and some of its calls pass none.
fn stubs(report: &Report, kernel: (u32, u32)) -> Outcome {
    let engine = report.health.inline_engine.as_ref().ok_or("the report does not have it")?;
    let expected = u64::from(kernel >= (6, 6));
    let passed = engine.targets == expected && (engine.passed_calls > 0) == (expected == 1);
    let is_explained = engine.refused.keys().all(|reason| reason.contains("Linux 6.6"));
    if passed && is_explained { Ok(format!("{} calls", engine.passed_calls)) } else { Err(format!("{engine:?}")) }
}

/// Detects kernels whose better links heapbpf does not use.
fn links(process: &Process, session: &Session, kernel: (u32, u32)) -> Outcome {
    let expected = match kernel {
        (6, 13..) | (7.., _) if session.cheapest_links => "session",
        (6, 6..) if session.cheapest_links => "multi",
        _ => "perf",
    };
    let hooks = process.heaps.iter().flat_map(|heap| &heap.hooks);
    let used: BTreeSet<_> = hooks.map(|hook| hook.backend.as_str()).collect();
    if used == BTreeSet::from([expected]) {
        Ok(expected.to_owned())
    } else {
        Err(format!("{used:?} instead of {expected}"))
    }
}

fn totals(process: &Process, ledger: &Ledger, session: &Session) -> Outcome {
    let mut reported = BTreeMap::<&str, Counts>::new();
    for callsite in &process.callsites {
        let leaf = callsite.stack.first().and_then(|frame| frame.function.as_deref()).unwrap_or_default();
        reported.entry(leaf).or_default().add(exact(&callsite.totals)?);
    }
    for site in &ledger.sites {
        let got = reported.get(site.function.as_str()).copied().unwrap_or_default();
        if got != site.counts {
            return Err(format!("`{}`: expected {:?}, {got:?} is reported", site.function, site.counts));
        }
    }
    let (all, sum) = (exact(&process.totals)?, ledger.sum());
    if session.scope >= Scope::Process && all != sum {
        return Err(format!("expected {sum:?}, {all:?} is reported"));
    }
    let of_heap = process.heaps.iter().find(|heap| heap.name == session.heap);
    let of_heap = of_heap.map(|heap| exact(&heap.totals)).transpose()?.unwrap_or_default();
    if of_heap != all {
        return Err(format!("{of_heap:?} of {all:?} are in the heap `{}`", session.heap));
    }
    if session.scope >= Scope::Peak && process.totals.peak_bytes.as_u64() != Some(ledger.peak_bytes) {
        return Err(format!("the peak is {}, {} is reported", ledger.peak_bytes, process.totals.peak_bytes));
    }
    let functions = ledger.sites.iter().filter(|site| site.counts.alloc_count > 0).count();
    Ok(format!("{functions} functions, {} blocks, {} bytes", sum.alloc_count, sum.alloc_bytes))
}

fn exact(totals: &Totals) -> Result<Counts, String> {
    let integer = |number: &Number| number.as_u64().ok_or_else(|| format!("`{number}` is not an integer"));
    Ok(Counts {
        alloc_count: integer(&totals.alloc_count)?,
        alloc_bytes: integer(&totals.alloc_bytes)?,
        free_count: integer(&totals.free_count)?,
        free_bytes: integer(&totals.free_bytes)?,
        live_count: integer(&totals.live_count)?,
        live_bytes: integer(&totals.live_bytes)?,
    })
}

fn stacks(report: &Report, ledger: &Ledger, callers: &[&str], complete_min: f64) -> Outcome {
    let ends = &report.health.unwind;
    let sum: u64 = ends.values().sum();
    let share = |count: &u64| *count as f64 / sum as f64;
    let words: Vec<_> = ends
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(end, count)| format!("{:.4} % {end}", 100.0 * share(count)))
        .collect();
    let words = format!("{} of {sum}", words.join(", "));
    if sum == 0 || ends.get("complete").map_or(0.0, share) < complete_min {
        return Err(words);
    }
    for callsite in &report.targets[0].callsites {
        let functions: Vec<_> = callsite.stack.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect();
        let known = ledger.sites.iter().any(|site| functions.first() == Some(&site.function.as_str()));
        let mut outwards = functions.iter();
        if known && !callers.iter().all(|caller| outwards.any(|function| function == caller)) {
            return Err(format!("{words}; {callers:?} are not in {functions:?}"));
        }
    }
    Ok(words)
}

/// Before Linux 6.15 only its parent can read the exit code of a process that has exited.
fn exit(process: &Process, kernel: (u32, u32)) -> Outcome {
    let code = process.exit_code.map_or("no exit code".to_owned(), |code| format!("exit code {code}"));
    let expected = process.exit_code == Some(7) || process.exit_code.is_none() && kernel < (6, 15);
    if process.exited && expected { Ok(code) } else { Err(format!("exited: {}, {code}", process.exited)) }
}

fn version(kernel: &str) -> (u32, u32) {
    let mut numbers = kernel.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn unharmed(transcript: &Transcript, session: &str) -> Outcome {
    let words = "it exits with the requested code".to_owned();
    expect(transcript, &format!("{session}.target_code"), "7", "its exit code is {}").map(|_| words)
}

fn probes(transcript: &Transcript) -> Outcome {
    let count = |when: &str| transcript.value(&format!("tables.probes_{when}")).and_then(|count| count.parse().ok());
    match (count("during"), count("after")) {
        (Some(during), Some(0)) if during > 0_u32 => Ok(format!("{during} bytes of libc's code changed, then 0")),
        (during, after) => Err(format!("changed bytes of libc's code: {during:?}, then {after:?}")),
    }
}

/// The target, and what `fork 8 100` and `exec 8 100` fork.
const FORKED: u64 = 1 + 8 + 8 * 100;
const EXECUTED: u64 = 8 * 100;

/// Each fork is a target, or counted as too short-lived to become one, or as one that could not be profiled: `/bin/true` is
/// busybox here, which is static. One that became a target and then executes another program counts for both. No event is
/// dropped: heapbpf would exit with 3.
fn forks(transcript: &Transcript, session: &str) -> Outcome {
    let report = report(transcript, session)?;
    let (targets, short_lived) = (report.targets.len() as u64, report.others.short_lived_count);
    let skipped = report.others.skipped_count;
    let words = format!("{targets} targets, {short_lived} short-lived and {skipped} skipped processes of {FORKED}");
    let sum = targets + short_lived + skipped;
    let whole = match session {
        "forks" => sum == FORKED,
        // Each fork and each exec is an event of its own.
        _ => sum >= FORKED && report.health.events >= FORKED - 1 + EXECUTED,
    };
    if whole { Ok(words) } else { Err(format!("{words}, dropped: {:?}", report.health.lost)) }
}

fn works_after(transcript: &Transcript) -> Outcome {
    let allocations = |index| ledger(transcript, "threads", index).map(|ledger| ledger.sum().alloc_count);
    let (first, second) = (allocations(0)?, allocations(1)?);
    if first == second { Ok(format!("{second} blocks again")) } else { Err(format!("{first} blocks, then {second}")) }
}

fn effort(transcript: &Transcript) -> Outcome {
    let mut words = Vec::new();
    for (session, unwinder) in [("tables", "tables"), ("pointers", "frame pointers")] {
        let counts = transcript.value(&format!("{session}.verified")).unwrap_or_default();
        let most: u64 =
            counts.split(' ').filter_map(|count| count.parse().ok()).max().ok_or("the kernel does not report it")?;
        words.push(format!("{most} ({unwinder})"));
        // Half of it is reserved for future compilers.
        if most > VERIFIER_LIMIT / 2 {
            return Err(format!("{} instructions of {VERIFIER_LIMIT} in one program", words.join(", ")));
        }
    }
    Ok(format!("at most {} instructions of {VERIFIER_LIMIT}", words.join(", ")))
}

/// Limit for the duration of the recording with clock steps, in nanoseconds. The steps are decades.
const RECORDED_NS_MAX: u64 = 3_600_000_000_000;

fn faults(transcript: &Transcript) -> Vec<Check> {
    let no_probes = |session| {
        let name = format!("{session}.probes_after");
        expect(transcript, &name, "0", "{} bytes of libc's code differ")
            .map(|_| "0 bytes of libc's code differ".to_owned())
    };
    let keepers = expect(transcript, "agent-killed.keepers", "0", "{} keepers run");
    vec![
        Check::new("agent killed: no probe and no keeper remain", no_probes("agent-killed").and(keepers)),
        Check::new("agent killed: the target is unharmed", unharmed(transcript, "agent-killed")),
        Check::new("keeper killed: heapbpf reports it", reported(transcript)),
        Check::new("keeper killed: no probe remains", no_probes("keeper-killed")),
        Check::new("keeper killed: the target is unharmed", unharmed(transcript, "keeper-killed")),
        Check::new("clock steps: heapbpf exits with 0", exited(transcript, "clock")),
        Check::new("clock steps: totals and duration are correct", clock(transcript)),
    ]
}

/// Exit code 3, a message and a report are expected.
fn reported(transcript: &Transcript) -> Outcome {
    let log = transcript.text("keeper-killed.log").unwrap_or_default();
    match transcript.value("keeper-killed.code") {
        Some("3") if log.contains("keeper") => report(transcript, "keeper-killed").map(|_| String::new()),
        code => Err(format!("exit code {}: {}", code.unwrap_or("unknown"), log.trim())),
    }
}

fn clock(transcript: &Transcript) -> Outcome {
    let report = report(transcript, "clock")?;
    let (first, second) = (ledger(transcript, "clock", 0)?, ledger(transcript, "clock", 1)?);
    let expected = first.sum().alloc_bytes + second.sum().alloc_bytes;
    let is_known = |function: &str| first.sites.iter().any(|site| site.function == function);
    let callsites = report.targets.iter().flat_map(|target| &target.callsites);
    let known = callsites
        .filter(|callsite| callsite.stack.first().and_then(|frame| frame.function.as_deref()).is_some_and(is_known));
    let reported: u64 = known.filter_map(|callsite| callsite.totals.alloc_bytes.as_u64()).sum();
    if reported != expected {
        return Err(format!("{expected} bytes were allocated, {reported} are reported"));
    }
    match report.ended_unix_ns.checked_sub(report.started_unix_ns) {
        Some(duration_ns @ ..=RECORDED_NS_MAX) => Ok(format!("{expected} bytes in {} s", duration_ns / 1_000_000_000)),
        other => Err(format!("recorded for {other:?} ns")),
    }
}

/// Names of leak checks, the output of the program, and how blocks are known.
const LEAK_CHECKS: [(&str, &str, Known); 3] = [
    ("leaks-read", "leaking.truth", Known::Walked),
    ("leaks-fork", "leaking.truth", Known::Walked),
    ("leaks-exit", "ended.truth", Known::Watched),
];

const LEAKS_FOUND: &str = "4";

fn leaks(transcript: &Transcript) -> Vec<Check> {
    let check = |&(name, output, known): &(&str, &str, Known)| {
        let outcome = leak_check(transcript, name, output, known);
        Check::new(format!("{name}: leaked blocks are found, and no others"), outcome)
    };
    LEAK_CHECKS.iter().map(check).collect()
}

fn leak_check(transcript: &Transcript, name: &str, output: &str, known: Known) -> Outcome {
    let code = transcript.value(&format!("{name}.code")).ok_or("it was not reached")?;
    if code != LEAKS_FOUND {
        let log = transcript.text(&format!("{name}.log")).unwrap_or_default();
        return Err(format!("exit code {code}\n{}", log.trim()));
    }
    let json = transcript.text(&format!("{name}.json")).ok_or("no report was written")?;
    let found: unreachable::Check =
        serde_json::from_str(json).map_err(|error| format!("the report cannot be read: {error}"))?;
    let lines = transcript.text(output).ok_or("the program printed nothing")?.lines();
    let truth = Truth::of(lines.filter(|line| line.contains(' ')));
    let (leaked, reported) = (truth.lost(), found.leaks.iter().map(|leak| leak.address()).collect::<BTreeSet<u64>>());
    if let Some(address) = reported.difference(&leaked).next() {
        return Err(format!("{address:#x} is reported and has not leaked"));
    }
    let sums = truth.sums(known);
    if (found.leaked, found.direct) != sums {
        return Err(format!("{:?} have leaked, {:?} is reported", sums, (found.leaked, found.direct)));
    }
    let Sum { count, bytes } = found.leaked;
    Ok(format!("{count} blocks, {bytes} bytes of {}; stopped for {} ms", found.known.bytes, found.pause_ns / 1_000_000))
}

#[cfg(test)]
mod tests;
