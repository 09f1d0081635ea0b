//! Parses what a virtual machine sends over its second serial line (`value` and `file` in `xtask/src/vm/init.sh`), and checks it.

mod check;
mod comparison;
mod faults;
mod interpreters;
mod languages;
mod leaks;
mod transcript;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Number;

pub use check::{Check, Feature, Outcome};
pub use transcript::Transcript;

use crate::report::{Counts, Hook, Ledger, Process, Report, Totals};

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
    /// What all its checks are about, if that is one feature.
    about: Option<Feature>,
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
    about: None,
};
const THREADS: Session = Session { callers: &["thread"], scope: Scope::Functions, ..EXACT };

const SESSIONS: [Session; 19] = [
    Session { name: "tables", ..EXACT },
    Session { name: "pointers", by_pointers: true, cheapest_links: false, ..EXACT },
    Session { name: "threads", ..THREADS },
    Session { name: "inline", about: Some(Feature::Inline), ..THREADS },
    Session { name: "launched", about: Some(Feature::Launch), scope: Scope::Functions, ..EXACT },
    Session { name: "ending", ..EXACT },
    Session { name: "static-trap", about: Some(Feature::Allocators), ..EXACT },
    allocator("musl-trap", "musl", Feature::Allocators),
    allocator("jemalloc-trap", "jemalloc", Feature::Allocators),
    allocator("tcmalloc-trap", "tcmalloc", Feature::Allocators),
    allocator("mimalloc-trap", "mimalloc", Feature::Allocators),
    Session { name: "bullseye", about: Some(Feature::UserSpaces), ..EXACT },
    Session { name: "bookworm", about: Some(Feature::UserSpaces), ..EXACT },
    Session { name: "trixie", about: Some(Feature::UserSpaces), ..EXACT },
    Session { name: "static-inline", about: Some(Feature::Inline), ..EXACT },
    allocator("musl-inline", "musl", Feature::Inline),
    allocator("jemalloc-inline", "jemalloc", Feature::Inline),
    allocator("tcmalloc-inline", "tcmalloc", Feature::Inline),
    allocator("mimalloc-inline", "mimalloc", Feature::Inline),
];

/// A session of `matrix.c`, which also calls the allocator on four threads at once.
const fn allocator(name: &'static str, heap: &'static str, about: Feature) -> Session {
    Session { name, heap, callers: &[], scope: Scope::Process, about: Some(about), ..EXACT }
}

/// A session of a program whose pointers have tags; only on arm64.
const TAGGED: Session = Session { name: "tagged", about: Some(Feature::Tags), ..EXACT };

/// Sessions of threads that preempt each other; only with `--soak`.
const SOAK: [Session; 2] = [
    Session { name: "soak-8", complete_min: 0.9999, ..THREADS },
    Session { name: "soak-64", complete_min: 0.9999, ..THREADS },
];

impl Session {
    fn complete_min(&self, machine: &str) -> f64 {
        if self.by_pointers && machine != ARM64 { 0.0 } else { self.complete_min }
    }
}

/// First kernels with `uprobe_multi` links, with uprobe sessions, and with exit codes of reaped processes.
const MULTI_LINKS: (u32, u32) = (6, 6);
const SESSION_LINKS: (u32, u32) = (6, 13);
const EXIT_CODES: (u32, u32) = (6, 15);
/// First kernel with `bpf_task_pt_regs`.
const TASK_REGISTERS: (u32, u32) = (5, 15);

/// As `uname -m` prints it.
const ARM64: &str = "aarch64";

/// Maximum number of instructions that the verifier processes for one program (`BPF_COMPLEXITY_LIMIT_INSNS`, include/linux/bpf.h
/// in 6.1.192 and 6.12.117).
const VERIFIER_LIMIT: u64 = 1_000_000;

/// Checks everything that `init.sh` has sent.
pub fn judge(transcript: &Transcript) -> Vec<Check> {
    let checks = [sessions(transcript), faults::faults(transcript), leaks::leaks(transcript)];
    let requested = comparison::comparison(transcript).into_iter().chain(languages::languages(transcript));
    checks.into_iter().flatten().chain(requested).collect()
}

fn sessions(transcript: &Transcript) -> Vec<Check> {
    let kernel = transcript.value("kernel").map_or((0, 0), version);
    let machine = transcript.value("machine").unwrap_or_default();
    let mut checks = Vec::new();
    let soak: &[Session] = if transcript.value("soak").is_some() { &SOAK } else { &[] };
    let tagged = (machine == ARM64).then_some(&TAGGED);
    for session in SESSIONS.iter().chain(tagged).chain(soak) {
        checks.extend(session_checks(transcript, session, kernel, machine));
    }
    let is_locked = is_locked(transcript);
    for name in ["forks", "execs"] {
        let mut add = |what: &str, outcome| {
            let check = Check::new(Feature::Forks, format!("{name}: {what}"), outcome);
            checks.push(check.instead(is_locked.then_some(LOCKED)));
        };
        if is_locked {
            add("heapbpf reports why it follows none", unfollowed(transcript, name));
            continue;
        }
        add(ENDED_CODE, ended(transcript, name));
        add("each fork is accounted for", forks(transcript, name));
    }
    checks.extend([
        Check::new(Feature::Detach, "tables: probes are attached and detached", probes(transcript)),
        Check::new(Feature::Detach, "threads: the target works after detaching", works_after(transcript)),
        Check::new(Feature::Verifier, "instructions processed by the verifier", effort(transcript)),
    ]);
    let mut sampled = |feature: Feature, what: &str, outcome| {
        checks.push(Check::new(feature, format!("{SAMPLED}: {what}"), outcome));
    };
    sampled(Feature::Inline, "heapbpf exits with 0", exited(transcript, SAMPLED));
    sampled(Feature::Inline, "estimates are near the totals", estimates(transcript, kernel));
    sampled(Feature::Detach, "the target is unharmed", unharmed(transcript, SAMPLED));
    checks.extend(interpreters::interpreters(transcript, is_locked));
    for name in ["pages", "pages-together"] {
        let has_pages = machine != ARM64 && kernel >= TASK_REGISTERS && !is_locked;
        let check = if has_pages {
            Check::new(Feature::Pages, format!("{name}: all of them, once"), pages(transcript, name))
        } else {
            Check::new(
                Feature::Pages,
                format!("{name}: heapbpf says why there are none"),
                without_pages(transcript, name),
            )
            .instead(Some(NO_PAGES))
        };
        checks.push(check);
        checks.push(Check::new(Feature::Detach, format!("{name}: the target is unharmed"), unharmed(transcript, name)));
    }
    checks
}

const NO_PAGES: &str =
    "not recorded, with an error: needs x86-64, `bpf_task_pt_regs` (Linux 5.15), and reading the kernel's memory";

/// What `touching.c` is asked to touch.
const TOUCHED_BYTES: u64 = 24 << 20;

/// Every page that the target has touched is live, once, with a stack of its function.
fn pages(transcript: &Transcript, session: &str) -> Outcome {
    exited(transcript, session)?;
    let report = report(transcript, session)?;
    let process = report.targets.first().ok_or("no target")?;
    let touched = process.exact_under(|function| function.starts_with("touches"));
    if touched.live_bytes == TOUCHED_BYTES {
        Ok(format!("{} pages, {} allocated", touched.live_count, touched.alloc_count))
    } else {
        Err(format!("{touched:?}, and {TOUCHED_BYTES} bytes were touched"))
    }
}

fn without_pages(transcript: &Transcript, session: &str) -> Outcome {
    let log = transcript.text(&format!("{session}.log")).unwrap_or_default();
    exited_with(transcript, session, "1")?;
    let line = log.lines().find(|line| line.contains("cannot record resident pages"));
    line.map(str::to_owned).ok_or_else(|| log.trim().to_owned())
}

fn is_locked(transcript: &Transcript) -> bool {
    transcript.value("lockdown").is_some_and(|modes| modes.contains("[confidentiality]"))
}

const ENDED_CODE: &str = "heapbpf exits with 0, or with 3 if nearly all processes ended before they could be recorded";

fn ended(transcript: &Transcript, session: &str) -> Outcome {
    let report = report(transcript, session)?;
    let recorded = report.targets.len() as u64 + report.others.folded_count;
    exited_with(transcript, session, if report.others.short_lived_count > 9 * recorded { "3" } else { "0" })
}

const LOCKED: &str = "not followed, with a warning and exit code 3 (0 with `--no-follow-fork`): BPF programs must not read the kernel's memory";

fn unfollowed(transcript: &Transcript, session: &str) -> Outcome {
    let log = transcript.text(&format!("{session}.log")).unwrap_or_default();
    let warned = log.lines().find(|line| line.contains("cannot follow forks") && line.contains("locked down"));
    exited(transcript, session)?;
    let report = report(transcript, session)?;
    match warned {
        Some(line) if report.targets.len() == 1 => Ok(line.to_owned()),
        _ => Err(format!("{} targets; {}", report.targets.len(), log.trim())),
    }
}

fn session_checks(transcript: &Transcript, session: &Session, kernel: (u32, u32), machine: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |feature: Feature, what: &str, outcome, instead| {
        let check = Check::new(session.about.unwrap_or(feature), format!("{}: {what}", session.name), outcome);
        checks.push(check.instead(instead));
    };
    let complete_min = session.complete_min(machine);
    let code = match session {
        // The command's own.
        Session { about: Some(Feature::Launch), .. } => "7",
        // Stacks that are cut make a profile incomplete.
        _ if complete_min <= 0.0 => "3",
        _ => "0",
    };
    add(Feature::Drops, &format!("heapbpf exits with {code}"), exited_with(transcript, session.name, code), None);
    match read(transcript, session) {
        Err(reason) => add(Feature::Totals, "there is a report", Err(reason), None),
        Ok((report, ledger)) => {
            let process = &report.targets[0];
            let throwing = (kernel < SESSION_LINKS && has_throwing(&report)).then_some(NOT_HOOKED);
            add(Feature::Drops, "every hook is attached, no event is dropped", complete(&report, kernel), throwing);
            add(Feature::Links, "links are of the expected kind", links(process, session, kernel), None);
            add(Feature::Totals, "totals are exact", totals(process, &ledger, session), None);
            let unwinder = if session.by_pointers { Feature::FramePointers } else { Feature::Tables };
            add(unwinder, "stacks", stacks(&report, &ledger, session.callers, complete_min), None);
            if session.name == "inline" {
                let instead = (kernel < MULTI_LINKS)
                    .then_some("recorded by the trap engine: needs `uprobe_multi` links (Linux 6.6)");
                add(Feature::Inline, "calls pass stubs since Linux 6.6", stubs(&report, kernel), instead);
            }
            if session.name == "ending" {
                let instead = (kernel < EXIT_CODES).then_some(
                    "`null` unless heapbpf polls before the parent reaps: needs `PIDFD_GET_INFO` (Linux 6.15)",
                );
                add(Feature::ExitCode, "the target's exit is recorded", exit(process, kernel), instead);
            }
        }
    }
    add(Feature::Detach, "the target is unharmed", unharmed(transcript, session.name), None);
    checks
}

const NOT_HOOKED: &str = "without functions that may throw (`operator new` of allocators other than the C library's): needs uprobe sessions \
                          (Linux 6.13)";

fn may_throw(hook: &Hook) -> bool {
    hook.error.as_deref().is_some_and(|error| error.contains("only session links survive"))
}

fn hooks(report: &Report) -> impl Iterator<Item = &Hook> {
    report.targets.iter().flat_map(|target| &target.heaps).flat_map(|heap| &heap.hooks)
}

fn has_throwing(report: &Report) -> bool {
    hooks(report).any(may_throw)
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

/// Expects this exit code, or 3 in place of 0 where the kernel does not report forks.
fn exited_with(transcript: &Transcript, session: &str, code: &str) -> Outcome {
    let code = if code == "0" && is_locked(transcript) { "3" } else { code };
    expect(transcript, &format!("{session}.code"), code, "exit code {}").map_err(|reason| {
        let texts = ["log", "summary"].map(|kind| transcript.text(&format!("{session}.{kind}")).unwrap_or_default());
        format!("{reason}\n{}\n{}", texts[0].trim(), texts[1].trim())
    })
}

fn report(transcript: &Transcript, session: &str) -> Result<Report, String> {
    let json = transcript.text(&format!("{session}.json")).ok_or("no report was written")?;
    serde_json::from_str(json).map_err(|error| format!("the report cannot be read: {error}"))
}

fn read(transcript: &Transcript, session: &Session) -> Result<(Report, Ledger), String> {
    let mut report = report(transcript, session.name)?;
    // A child that the target forks is a target too, if it lives for long enough.
    let origin = if session.about == Some(Feature::Launch) { "launch" } else { "running" };
    report.targets.retain(|target| target.beginning.origin == origin);
    if report.targets.len() != 1 {
        return Err(format!("it has {} targets", report.targets.len()));
    }
    Ok((report, ledger(transcript, session.name, 0)?))
}

/// The target's ledger for its line of input number `index`.
fn ledger(transcript: &Transcript, session: &str, index: usize) -> Result<Ledger, String> {
    let text = transcript.text(&format!("{session}.ledger")).ok_or("the target printed nothing")?;
    let line = text.lines().filter(|line| line.starts_with('{')).nth(index).ok_or("the target did not do its work")?;
    serde_json::from_str(line).map_err(|error| format!("the target's ledger cannot be read: {error}"))
}

fn complete(report: &Report, kernel: (u32, u32)) -> Outcome {
    let is_expected = |hook: &&Hook| hook.attached || kernel < SESSION_LINKS && may_throw(hook);
    if let Some(hook) = hooks(report).find(|hook| !is_expected(hook)) {
        return Err(format!("`{}`: {}", hook.function, hook.error.as_deref().unwrap_or("not attached")));
    }
    let lost: BTreeMap<_, _> = report.health.lost.iter().filter(|(_, count)| **count > 0).collect();
    let attached = hooks(report).filter(|hook| hook.attached).count();
    if attached == 0 || !lost.is_empty() {
        return Err(format!("{attached} hooks, dropped: {lost:?}"));
    }
    Ok(format!("{attached} hooks, {} events", report.health.events))
}

/// The work begins before the stubs are installed, and some of its calls pass none.
fn stubs(report: &Report, kernel: (u32, u32)) -> Outcome {
    let engine = report.health.inline_engine.as_ref().ok_or("the report does not have it")?;
    let expected = u64::from(kernel >= MULTI_LINKS);
    let passed = engine.targets == expected && (engine.passed_calls > 0) == (expected == 1);
    let is_explained = engine.refused.keys().all(|reason| reason.contains("Linux 6.6"));
    if passed && is_explained { Ok(format!("{} calls", engine.passed_calls)) } else { Err(format!("{engine:?}")) }
}

/// A session of `threads.c` by the inline engine at an interval of many blocks, of which about 10,000 are sampled.
const SAMPLED: &str = "sampled";
/// Ten standard deviations.
const ESTIMATE_ERROR_MAX: f64 = 0.1;
/// The others do not pass through stubs.
const PASSED_MIN: f64 = 0.9;

/// Compares estimates of allocated and freed bytes. Where the kernel has what stubs need, calls pass them.
#[expect(clippy::cast_precision_loss, reason = "compared with a tolerance")]
fn estimates(transcript: &Transcript, kernel: (u32, u32)) -> Outcome {
    let report = report(transcript, SAMPLED)?;
    let process = report.targets.first().ok_or("no target")?;
    let sum = ledger(transcript, SAMPLED, 0)?.sum();
    let ratio = |estimate: &Number, total: u64| estimate.as_f64().unwrap_or(0.0) / total as f64;
    let allocated = ratio(&process.totals.alloc_bytes, sum.alloc_bytes);
    let freed = ratio(&process.totals.free_bytes, sum.free_bytes);
    let passed = report.health.inline_engine.as_ref().map_or(0, |engine| engine.passed_calls);
    let words = format!("{allocated:.3} of the allocated and {freed:.3} of the freed bytes, {passed} calls of stubs");
    let is_near = |ratio: f64| (ratio - 1.0).abs() <= ESTIMATE_ERROR_MAX;
    let has_passed = kernel < MULTI_LINKS || passed as f64 >= PASSED_MIN * sum.alloc_count as f64;
    if is_near(allocated) && is_near(freed) && has_passed { Ok(words) } else { Err(words) }
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

/// The kind of links in the session that lets heapbpf choose.
pub fn links_by_default(transcript: &Transcript) -> Option<String> {
    let report = report(transcript, "tables").ok()?;
    let hook = report.targets.first()?.heaps.first()?.hooks.first()?;
    Some(hook.backend.clone())
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
    let expected = process.exit_code == Some(7) || process.exit_code.is_none() && kernel < EXIT_CODES;
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

/// Instructions that the verifier processed for each program of a session; none before Linux 5.16.
pub fn verified(transcript: &Transcript, session: &str) -> BTreeMap<String, u64> {
    let words = transcript.value(&format!("{session}.verified")).unwrap_or_default().split(' ');
    words
        .filter_map(|word| word.split_once('='))
        .filter_map(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
        .collect()
}

/// Sessions that load programs for unwinding by tables and by frame pointers.
pub const UNWINDERS: [(&str, &str); 2] = [("tables", "tables"), ("pointers", "frame pointers")];

fn effort(transcript: &Transcript) -> Outcome {
    let mut words = Vec::new();
    for (session, unwinder) in UNWINDERS {
        let counts = verified(transcript, session);
        let Some((name, &most)) = counts.iter().max_by_key(|(_, count)| **count) else {
            return Err("no program is listed".to_owned());
        };
        words.push(format!("{most} in `{name}` ({unwinder})"));
        // Half of it is reserved for future compilers.
        if most > VERIFIER_LIMIT / 2 {
            return Err(format!("{} of {VERIFIER_LIMIT}", words.join(", ")));
        }
    }
    Ok(format!("at most {} of {VERIFIER_LIMIT}", words.join(", ")))
}

#[cfg(test)]
mod tests;
