//! What must have come of the sessions in `init.sh`, one check for each thing. Pure.

use std::collections::BTreeMap;
use std::fmt;

use heapbpf_tests::report::{Counts, Ledger, Process, Report, Totals};
use serde_json::Number;

use super::transcript::Transcript;

/// One thing that must hold.
#[derive(Debug)]
pub(super) struct Check {
    /// What.
    pub(super) name: String,
    /// What was measured, or why it does not hold.
    pub(super) outcome: Outcome,
}

/// Either way, words for the reader.
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

/// A session of `init.sh` and what its target lets us ask.
struct Session {
    name: &'static str,
    /// Functions outwards of every one that allocates.
    callers: &'static [&'static str],
    /// Least share of stacks that reach their thread's first frame. By tables it is 1 or nearly so; libc has no frame
    /// pointers to get there by.
    complete_min: f64,
    /// The links are the cheapest that the kernel has, not perf events.
    cheapest_links: bool,
    /// Nothing but the functions of the ledger allocates.
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

/// The most instructions that the verifier goes through for one program (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h
/// in 6.1.192 and 6.12.117).
const VERIFIER_LIMIT: u64 = 1_000_000;

/// Every check.
pub(super) fn judge(transcript: &Transcript) -> Vec<Check> {
    let kernel = transcript.value("kernel").map_or((0, 0), version);
    let mut checks = Vec::new();
    let soak: &[Session] = if transcript.value("soak").is_some() { &SOAK } else { &[] };
    for session in SESSIONS.iter().chain(soak) {
        let mut add = |what: &str, outcome| checks.push(Check { name: format!("{}: {what}", session.name), outcome });
        add("heapbpf ends with 0", ended(transcript, session.name));
        match read(transcript, session.name) {
            Err(reason) => add("there is a report", Err(reason)),
            Ok((report, ledger)) => {
                let process = &report.targets[0];
                add("every hook is attached, nothing is lost", complete(&report));
                add("links are the kind they should be", links(process, session, kernel));
                add("totals are true to the byte", totals(process, &ledger, session.alone));
                add("stacks", stacks(&report, &ledger, session));
                if session.name == "ending" {
                    add("the target's end is known", exit(process, kernel));
                }
            }
        }
        add("the target is unharmed", unharmed(transcript, session.name));
    }
    for name in ["forks", "execs"] {
        checks.push(Check { name: format!("{name}: heapbpf ends with 0"), outcome: ended(transcript, name) });
        checks.push(Check { name: format!("{name}: each fork is accounted for"), outcome: forks(transcript, name) });
    }
    checks.push(Check { name: "tables: probes come and go".to_owned(), outcome: probes(transcript) });
    checks.push(Check { name: "threads: works on unprofiled".to_owned(), outcome: works_on(transcript) });
    checks.push(Check { name: "the verifier's effort".to_owned(), outcome: effort(transcript) });
    checks
}

pub(super) fn ended(transcript: &Transcript, session: &str) -> Outcome {
    match transcript.value(&format!("{session}.code")) {
        Some("0") => Ok(String::new()),
        Some(code) => {
            let log = transcript.text(&format!("{session}.log")).unwrap_or_default();
            let summary = transcript.text(&format!("{session}.summary")).unwrap_or_default();
            Err(format!("exit code {code}\n{}\n{}", log.trim(), summary.trim()))
        }
        None => Err("it did not come to that".to_owned()),
    }
}

/// The session's report.
pub(super) fn report(transcript: &Transcript, session: &str) -> Result<Report, String> {
    let json = transcript.text(&format!("{session}.json")).ok_or("no report was written")?;
    serde_json::from_str(json).map_err(|error| format!("the report cannot be read: {error}"))
}

/// The session's report and what its target says it did.
fn read(transcript: &Transcript, session: &str) -> Result<(Report, Ledger), String> {
    let mut report = report(transcript, session)?;
    // A child that the target forks is a target too, if it lives for long enough.
    report.targets.retain(|target| target.beginning.origin == "running");
    if report.targets.len() != 1 {
        return Err(format!("it has {} targets", report.targets.len()));
    }
    Ok((report, ledger(transcript, session, 0)?))
}

/// What the target did for its line of input number `index`.
pub(super) fn ledger(transcript: &Transcript, session: &str, index: usize) -> Result<Ledger, String> {
    let text = transcript.text(&format!("{session}.ledger")).ok_or("the target said nothing")?;
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
        return Err(format!("{} hooks, lost: {lost:?}", hooks.len()));
    }
    Ok(format!("{} hooks, {} events", hooks.len(), report.health.events))
}

/// A kernel that has better links and is thought to have none would go unnoticed otherwise.
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
            return Err(format!("`{}`: {:?} is true, {got:?} is reported", site.function, site.counts));
        }
    }
    let (all, sum) = (exact(&process.totals)?, ledger.sum());
    if alone && all != sum {
        return Err(format!("{sum:?} is true, {all:?} is reported"));
    }
    if alone && process.totals.peak_bytes.as_u64() != Some(ledger.peak_bytes) {
        return Err(format!("the peak is {}, {} is reported", ledger.peak_bytes, process.totals.peak_bytes));
    }
    let functions = ledger.sites.iter().filter(|site| site.counts.alloc_count > 0).count();
    Ok(format!("{functions} functions, {} blocks, {} bytes", sum.alloc_count, sum.alloc_bytes))
}

fn exact(totals: &Totals) -> Result<Counts, String> {
    let integer = |number: &Number| number.as_u64().ok_or_else(|| format!("`{number}` is no exact total"));
    Ok(Counts {
        alloc_count: integer(&totals.alloc_count)?,
        alloc_bytes: integer(&totals.alloc_bytes)?,
        free_count: integer(&totals.free_count)?,
        free_bytes: integer(&totals.free_bytes)?,
        live_count: integer(&totals.live_count)?,
        live_bytes: integer(&totals.live_bytes)?,
    })
}

/// How stacks ended, and whether those of the ledger's functions go through their callers.
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

/// Before Linux 6.15 nobody but its parent learns the exit code of a process that is gone.
fn exit(process: &Process, kernel: (u32, u32)) -> Outcome {
    let told = process.exit_code.map_or("no exit code".to_owned(), |code| format!("exit code {code}"));
    let expected = process.exit_code == Some(7) || process.exit_code.is_none() && kernel < (6, 15);
    if process.exited && expected { Ok(told) } else { Err(format!("exited: {}, {told}", process.exited)) }
}

/// Major and minor version.
fn version(kernel: &str) -> (u32, u32) {
    let mut numbers = kernel.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

pub(super) fn unharmed(transcript: &Transcript, session: &str) -> Outcome {
    match transcript.value(&format!("{session}.target_code")) {
        Some("7") => Ok("it ends as it was told to".to_owned()),
        other => Err(format!("its exit code is {}", other.unwrap_or("not known"))),
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
/// busybox here, which is static. One that became a target and then executes another program counts for both. No lost event is
/// known: heapbpf would end with 3.
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
    if whole { Ok(words) } else { Err(format!("{words}, lost: {:?}", report.health.lost)) }
}

/// The same work once more, after heapbpf has gone.
fn works_on(transcript: &Transcript) -> Outcome {
    let allocations = |index| ledger(transcript, "threads", index).map(|ledger| ledger.sum().alloc_count);
    let (first, second) = (allocations(0)?, allocations(1)?);
    if first == second { Ok(format!("{second} blocks again")) } else { Err(format!("{first} blocks, then {second}")) }
}

fn effort(transcript: &Transcript) -> Outcome {
    let mut words = Vec::new();
    for (session, unwinder) in [("tables", "tables"), ("pointers", "frame pointers")] {
        let counts = transcript.value(&format!("{session}.verified")).unwrap_or_default();
        let most: u64 =
            counts.split(' ').filter_map(|count| count.parse().ok()).max().ok_or("the kernel does not tell")?;
        words.push(format!("{most} ({unwinder})"));
        // Half of it is left for compilers to come.
        if most > VERIFIER_LIMIT / 2 {
            return Err(format!("{} instructions of {VERIFIER_LIMIT} in one program", words.join(", ")));
        }
    }
    Ok(format!("at most {} instructions of {VERIFIER_LIMIT}", words.join(", ")))
}

#[cfg(test)]
mod tests;
