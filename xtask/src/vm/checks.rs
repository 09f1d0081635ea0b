//! Checks of the results of `init.sh`: sessions, injected faults, and leaks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use heapbpf_tests::report::{Counts, Ledger, Process, Report, Totals};
use heapbpf_tests::unreachable::{self, Known, Sum, Truth};
use serde_json::Number;

use super::transcript::Transcript;

#[derive(Debug)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) outcome: Outcome,
}

/// Details of a success, or the reason of a failure.
pub(super) type Outcome = Result<String, String>;

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
struct Session {
    name: &'static str,
    /// Callers of every function that allocates, outwards.
    callers: &'static [&'static str],
    /// Minimum share of complete stacks. By tables it is 1 or nearly so; libc has no frame pointers.
    complete_min: f64,
    /// Whether links are the cheapest that the kernel has, not perf events.
    cheapest_links: bool,
    /// Whether only the functions of the ledger allocate.
    alone: bool,
}

const SESSIONS: [Session; 4] = [
    Session { name: "tables", callers: &["work", "main"], complete_min: 1.0, cheapest_links: true, alone: true },
    Session { name: "pointers", callers: &["work", "main"], complete_min: 0.0, cheapest_links: false, alone: true },
    Session { name: "threads", callers: &["thread"], complete_min: 1.0, cheapest_links: true, alone: false },
    Session { name: "ending", callers: &["work", "main"], complete_min: 1.0, cheapest_links: true, alone: true },
];

/// Sessions of threads that preempt each other; only with `--soak`.
const SOAK: [Session; 2] = [soak("soak-8"), soak("soak-64")];

const fn soak(name: &'static str) -> Session {
    Session { name, callers: &["thread"], complete_min: 0.9999, cheapest_links: true, alone: false }
}

/// Maximum number of instructions that the verifier processes for one program (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h
/// in 6.1.192 and 6.12.117).
const VERIFIER_LIMIT: u64 = 1_000_000;

/// All checks.
pub(super) fn judge(transcript: &Transcript) -> Vec<Check> {
    [sessions(transcript), faults(transcript), leaks(transcript)].into_iter().flatten().collect()
}

fn sessions(transcript: &Transcript) -> Vec<Check> {
    let kernel = transcript.value("kernel").map_or((0, 0), version);
    let mut checks = Vec::new();
    let soak: &[Session] = if transcript.value("soak").is_some() { &SOAK } else { &[] };
    for session in SESSIONS.iter().chain(soak) {
        let mut add = |what: &str, outcome| checks.push(Check { name: format!("{}: {what}", session.name), outcome });
        add("heapbpf exits with 0", exited(transcript, session.name));
        match read(transcript, session.name) {
            Err(reason) => add("there is a report", Err(reason)),
            Ok((report, ledger)) => {
                let process = &report.targets[0];
                add("every hook is attached, no event is dropped", complete(&report));
                add("links are of the expected kind", links(process, session, kernel));
                add("totals are exact", totals(process, &ledger, session.alone));
                add("stacks", stacks(&report, &ledger, session));
                if session.name == "ending" {
                    add("the target's exit is recorded", exit(process, kernel));
                }
            }
        }
        add("the target is unharmed", unharmed(transcript, session.name));
    }
    for name in ["forks", "execs"] {
        checks.push(Check { name: format!("{name}: heapbpf exits with 0"), outcome: exited(transcript, name) });
        checks.push(Check { name: format!("{name}: each fork is accounted for"), outcome: forks(transcript, name) });
    }
    checks.push(Check { name: "tables: probes are attached and detached".to_owned(), outcome: probes(transcript) });
    checks
        .push(Check { name: "threads: the target works after detaching".to_owned(), outcome: works_after(transcript) });
    checks.push(Check { name: "instructions processed by the verifier".to_owned(), outcome: effort(transcript) });
    checks
}

fn exited(transcript: &Transcript, session: &str) -> Outcome {
    match transcript.value(&format!("{session}.code")) {
        Some("0") => Ok(String::new()),
        Some(code) => {
            let log = transcript.text(&format!("{session}.log")).unwrap_or_default();
            let summary = transcript.text(&format!("{session}.summary")).unwrap_or_default();
            Err(format!("exit code {code}\n{}\n{}", log.trim(), summary.trim()))
        }
        None => Err("it was not reached".to_owned()),
    }
}

fn report(transcript: &Transcript, session: &str) -> Result<Report, String> {
    let json = transcript.text(&format!("{session}.json")).ok_or("no report was written")?;
    serde_json::from_str(json).map_err(|error| format!("the report cannot be read: {error}"))
}

/// The session's report and its target's ledger.
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

/// Detects kernels whose better links heapbpf does not use.
fn links(process: &Process, session: &Session, kernel: (u32, u32)) -> Outcome {
    let expected = match kernel {
        (6, 13..) | (7.., _) if session.cheapest_links => "session",
        (6, 6..) if session.cheapest_links => "multi",
        _ => "perf",
    };
    let mut used: Vec<_> =
        process.heaps.iter().flat_map(|heap| &heap.hooks).map(|hook| hook.backend.as_str()).collect();
    used.sort_unstable();
    used.dedup();
    if used == [expected] { Ok(expected.to_owned()) } else { Err(format!("{used:?} instead of {expected}")) }
}

fn totals(process: &Process, ledger: &Ledger, alone: bool) -> Outcome {
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
    if alone && all != sum {
        return Err(format!("expected {sum:?}, {all:?} is reported"));
    }
    if alone && process.totals.peak_bytes.as_u64() != Some(ledger.peak_bytes) {
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

/// Checks how stacks end, and that those of the ledger's functions contain the callers.
fn stacks(report: &Report, ledger: &Ledger, session: &Session) -> Outcome {
    let ends = &report.health.unwind;
    let sum: u64 = ends.values().sum();
    let share = |count: &u64| *count as f64 / sum as f64;
    let words: Vec<_> = ends
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(end, count)| format!("{:.4} % {end}", 100.0 * share(count)))
        .collect();
    let words = format!("{} of {sum}", words.join(", "));
    if sum == 0 || ends.get("complete").map_or(0.0, share) < session.complete_min {
        return Err(words);
    }
    for callsite in &report.targets[0].callsites {
        let functions: Vec<_> = callsite.stack.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect();
        let known = ledger.sites.iter().any(|site| functions.first() == Some(&site.function.as_str()));
        let mut outwards = functions.iter();
        if known && !session.callers.iter().all(|caller| outwards.any(|function| function == caller)) {
            return Err(format!("{words}; {:?} are not in {functions:?}", session.callers));
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

/// Major and minor version.
fn version(kernel: &str) -> (u32, u32) {
    let mut numbers = kernel.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn unharmed(transcript: &Transcript, session: &str) -> Outcome {
    match transcript.value(&format!("{session}.target_code")) {
        Some("7") => Ok("it exits with the requested code".to_owned()),
        other => Err(format!("its exit code is {}", other.unwrap_or("unknown"))),
    }
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

/// Programs that `exec 8 100` executes.
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

/// The same work is done again after detaching.
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

/// Sessions in which a process of heapbpf is killed, or the clock is set.
fn faults(transcript: &Transcript) -> Vec<Check> {
    let check = |name: &str, outcome| Check { name: name.to_owned(), outcome };
    vec![
        check(
            "agent killed: no probe and no keeper remain",
            no_probes(transcript, "agent-killed").and(keepers(transcript)),
        ),
        check("agent killed: the target is unharmed", unharmed(transcript, "agent-killed")),
        check("keeper killed: heapbpf reports it", reported(transcript)),
        check("keeper killed: no probe remains", no_probes(transcript, "keeper-killed")),
        check("keeper killed: the target is unharmed", unharmed(transcript, "keeper-killed")),
        check("clock steps: heapbpf exits with 0", exited(transcript, "clock")),
        check("clock steps: totals and duration are correct", clock(transcript)),
    ]
}

fn no_probes(transcript: &Transcript, session: &str) -> Outcome {
    match transcript.value(&format!("{session}.probes_after")) {
        Some("0") => Ok("0 bytes of libc's code differ".to_owned()),
        other => Err(format!("{} bytes of libc's code differ", other.unwrap_or("an unknown number of"))),
    }
}

fn keepers(transcript: &Transcript) -> Outcome {
    match transcript.value("agent-killed.keepers") {
        Some("0") => Ok(String::new()),
        other => Err(format!("{} keepers run", other.unwrap_or("an unknown number of"))),
    }
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

/// Exit code of `heapbpf leaks` with leaks.
const LEAKS_FOUND: &str = "4";

/// Leak checks: the leaked blocks are found, and no others.
fn leaks(transcript: &Transcript) -> Vec<Check> {
    let check = |&(name, output, known): &(&str, &str, Known)| Check {
        name: format!("{name}: leaked blocks are found, and no others"),
        outcome: leak_check(transcript, name, output, known),
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
