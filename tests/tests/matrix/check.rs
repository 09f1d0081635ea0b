//! Profiles a cell and compares the report with the cell's ledger.

use std::collections::BTreeSet;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Callsite, Counts, Estimates, Ledger, Process, Report};
use heapbpf_tests::sampling::{Errors, Expected, SAMPLES_MIN, assert_unbiased};
use heapbpf_tests::stubs::assert_restored;

use super::cell::{Cell, Engine};

const INTERVAL_BYTES: f64 = 4096.0;

/// Number of calls that throw for the command `throw`.
const THROWS: u64 = 80;
/// Number of calls that fail without throwing for the command `exact`. In the C++ runtime, these catch what others
/// throw.
const CATCHES: u64 = 40;

/// One command from start to end.
struct Profile {
    report: Report,
    /// The profiled process.
    pid: u32,
    ledger: Ledger,
    exit_code: Option<i32>,
}

/// Profiles one command.
#[track_caller]
fn profile(cell: &Cell, arguments: &str, line: &str) -> Profile {
    let mut target = cell.start();
    let engine = if cell.engine == Engine::Inline { "--engine inline" } else { "" };
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("{arguments} {engine} -o out.json"));
    let session = heapbpf.start();
    let ledger = target.work(line);
    target.assert_running();
    let outcome = session.interrupt();
    let exit_code = outcome.status.code();
    assert!(matches!(exit_code, Some(0 | 3)), "{cell}: {outcome:?}");
    let report = heapbpf.report("out.json");
    if cell.engine == Engine::Inline {
        assert_engine(cell, target.pid(), &report);
    }
    Profile { report, pid: target.pid(), ledger, exit_code }
}

/// Fails unless stubs were used where the program calls its allocator through slots, or the reason is reported. Functions
/// that call others have no stubs: their calls may be more than the engine accepts.
#[track_caller]
fn assert_engine(cell: &Cell, pid: u32, report: &Report) {
    let engine = report.health.inline_engine.as_ref().unwrap_or_else(|| panic!("{cell}: no facts about the engine"));
    let reasons: Vec<&str> = engine.refused.keys().map(String::as_str).collect();
    match reasons.as_slice() {
        [] => assert_eq!(engine.targets, 1, "{cell}"),
        [reason] => assert!(!cell.has_slots() || reason.contains("of its calls"), "{cell}: {reason}"),
        _ => panic!("{cell}: {reasons:?}"),
    }
    // The command may be over before the engine has noticed.
    let is_trapped = engine.targets == 0 || engine.trapped_calls > engine.passed_calls;
    assert!(cell.has_slots() || is_trapped, "{cell} has no slots: {engine:?}");
    assert_restored(pid);
}

/// Whether a function of a report is a site: C++ names may include parameters, Rust's their path.
fn is(name: &str, site: &str) -> bool {
    let last = name.rsplit("::").next().unwrap_or(name);
    last.strip_prefix(site).is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
}

/// Allocations of throwing and catching, by the C++ runtime.
fn is_exception(callsite: &Callsite) -> bool {
    callsite.has(|function| is(function, "__cxa_allocate_exception"))
}

/// Sums exact counts of some stacks.
fn sum(process: &Process, which: impl Fn(&Callsite) -> bool) -> Counts {
    let mut sum = Counts::default();
    process.callsites.iter().filter(|it| which(it)).for_each(|callsite| sum.add(callsite.totals.exact()));
    sum
}

/// At an interval of 1.
#[track_caller]
pub(crate) fn exact(cell: &Cell) {
    let Profile { report, pid, ledger, exit_code } = profile(cell, "--interval 1", "exact");
    assert_eq!(exit_code, Some(0), "{cell}");
    report.assert_complete();
    assert_exact(cell, report.process(pid), &ledger, CATCHES);
}

/// At an interval of 1, with calls that throw. Functions that may throw may be left unprobed, if this is reported.
#[track_caller]
pub(crate) fn throwing(cell: &Cell) {
    let Profile { report, pid, ledger, exit_code } = profile(cell, "--interval 1", "throw");
    let mut lost = report.health.lost.clone();
    let left_alone = lost.remove("may_throw").unwrap_or(0);
    assert!(left_alone <= THROWS, "{cell}: {left_alone} calls were left alone, of {THROWS} that throw");
    assert!(lost.values().all(|count| *count == 0), "{cell}: {lost:?}");
    assert_eq!(exit_code, Some(if left_alone > 0 { 3 } else { 0 }), "{cell}: {left_alone} calls were left alone");
    assert_exact(cell, report.process(pid), &ledger, THROWS);
}

/// `throws_max` is the maximum number of exceptions.
#[track_caller]
fn assert_exact(cell: &Cell, process: &Process, ledger: &Ledger, throws_max: u64) {
    assert_sites(cell, process, ledger);
    let mut expected = ledger.sum();
    let exceptions = sum(process, is_exception);
    assert_eq!((exceptions.live_count, exceptions.live_bytes), (0, 0), "{cell}: {exceptions:?}");
    assert!(exceptions.alloc_count <= throws_max, "{cell}: {exceptions:?}");
    expected.add(exceptions);
    assert!(expected.alloc_count >= 1000 && expected.free_count > 0, "too few calls for a check: {expected:?}");
    let got = process.totals.exact();
    assert_eq!(
        got,
        expected,
        "{cell}: the totals (left) are not the ledger's; there are also {:?}",
        others(process, ledger)
    );
    let mut of_heaps = Counts::default();
    process.heaps.iter().for_each(|heap| of_heaps.add(heap.totals.exact()));
    assert_eq!(of_heaps, got, "{cell}: the heaps' totals (left) are not the process'");
    assert_heap(cell, process, ledger);
}

/// Stacks without any function of the target.
fn others<'a>(process: &'a Process, ledger: &Ledger) -> Vec<Vec<&'a str>> {
    let is_site = |name: &str| ledger.sites.iter().any(|site| is(name, &site.function));
    let others = process.callsites.iter().filter(|callsite| !callsite.has(is_site));
    others.map(|it| it.stack.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect()).collect()
}

#[track_caller]
fn assert_sites(cell: &Cell, process: &Process, ledger: &Ledger) {
    let mut differing = Vec::new();
    for site in &ledger.sites {
        let of_site = |it: &Callsite| it.has(|function| is(function, &site.function)) && !is_exception(it);
        let got = sum(process, of_site);
        if got != site.counts {
            differing.push(format!("{}:\n  true     {:?}\n  reported {got:?}", site.function, site.counts));
        }
    }
    let hooked: BTreeSet<&str> =
        process.heaps.iter().flat_map(|heap| &heap.hooks).map(|hook| hook.function.as_str()).collect();
    assert!(differing.is_empty(), "{cell}: {}\nhooked: {hooked:?}", differing.join("\n"));
}

/// Fails unless all allocations of the target are in the cell's heap.
#[track_caller]
fn assert_heap(cell: &Cell, process: &Process, ledger: &Ledger) {
    let is_site = |name: &str| ledger.sites.iter().any(|site| is(name, &site.function));
    let of_sites = process.callsites.iter().filter(|callsite| callsite.has(is_site));
    let heaps: BTreeSet<&str> = of_sites.map(|callsite| callsite.heap.as_str()).collect();
    assert!(!heaps.is_empty(), "no stack leads through the target's functions");
    assert_eq!(heaps, BTreeSet::from([cell.heap]), "{cell}");
}

/// At an interval of 4 KiB.
#[track_caller]
pub(crate) fn sampled(cell: &Cell) {
    assert_unbiased(&cell.to_string(), || estimate(cell));
}

fn estimate(cell: &Cell) -> Errors {
    let Profile { report, pid, ledger, exit_code } = profile(cell, "--interval 4KiB", "many");
    assert_eq!(exit_code, Some(0), "{cell}: {:?}", report.health.lost);
    report.assert_complete();
    let process = report.process(pid);
    let mut errors = Errors::default();
    let (mut allocated, mut live) = (Expected::default(), Expected::default());
    for site in ledger.sites.iter().filter(|site| site.counts.alloc_count > 0) {
        let (of_site, live_of_site) = expected(site.counts);
        // Blocks that were resized are all freed.
        let nothing_lives = site.counts.live_count == 0;
        assert!(of_site.samples >= SAMPLES_MIN, "`{}` is called too rarely for a check", site.function);
        assert!(nothing_lives || live_of_site.samples >= SAMPLES_MIN, "`{}` keeps too little", site.function);
        let got = process.estimates_under(|function| is(function, &site.function));
        errors.note(&format!("{} allocated", site.function), &of_site, got.alloc_count, got.alloc_bytes);
        errors.note(&format!("{} live", site.function), &live_of_site, got.live_count, got.live_bytes);
        allocated.add(of_site);
        live.add(live_of_site);
    }
    let Estimates { alloc_count, alloc_bytes, live_count, live_bytes } = process.totals.estimates();
    errors.note("all allocated", &allocated, alloc_count, alloc_bytes);
    errors.note("all live", &live, live_count, live_bytes);
    errors
}

/// Returns the allocated and live amounts of blocks of one size.
#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn expected(counts: Counts) -> (Expected, Expected) {
    let size = counts.alloc_bytes as f64 / counts.alloc_count as f64;
    let blocks = |count: u64| Expected::blocks(count as f64, size, INTERVAL_BYTES);
    (blocks(counts.alloc_count), blocks(counts.live_count))
}

/// With `--backend multi`: the operator has a hook with the reason why it is not attached, and everything else is
/// correct.
#[track_caller]
pub(crate) fn throwing_not_probed(cell: &Cell) {
    let Profile { report, pid, ledger, exit_code } = profile(cell, "--interval 1 --backend multi", "throw");
    assert_eq!(exit_code, Some(3), "{cell}");
    let process = report.process(pid);
    let hooks = || process.heaps.iter().flat_map(|heap| &heap.hooks);
    let operator = hooks().find(|hook| hook.function == "_Znwm" || hook.function.starts_with("operator new(unsigned"));
    let operator = operator.unwrap_or_else(|| panic!("no operator new among {:?}", hooks().collect::<Vec<_>>()));
    assert!(!operator.attached && operator.error.is_some(), "{operator:?}");
    let functions =
        ["mallocs", "news_nothrow", "news_array_nothrow", "news_aligned_nothrow", "news_array_aligned_nothrow"];
    for site in functions {
        let counts = sum(process, |it| it.has(|function| is(function, site)));
        assert_eq!(counts, ledger.site(site).counts, "{cell}: {site}");
    }
}
