//! Overload: drops are counted, live bytes are correct soon after, and with `adapt` the drops end.
//!
//! `HEAPBPF_OVERLOAD_SECONDS=60` makes the floods as long as those in docs/overhead.md.

use std::time::{Duration, Instant, SystemTime};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, Session};
use heapbpf_tests::report::{Counts, Ledger, Process, Report};
use heapbpf_tests::sampling::{Errors, assert_unbiased};
use heapbpf_tests::target::Target;
use rustix::process::Signal;

/// Maximum time after the load until live bytes are correct.
const RIGHT_WITHIN: Duration = Duration::from_secs(1);

/// Timeout, for the case that a resync never happens, on a busy machine too.
const RIGHT_WITHIN_MAX: Duration = Duration::from_secs(60);

/// With `adapt`, maximum time until drops end. Drops are reported five times per second.
const MET_WITHIN_SECONDS: f64 = 1.2;

/// Length of a flood in seconds if times are measured; otherwise, times are not checked, because the machine may be
/// busy.
fn measured() -> Option<String> {
    std::env::var("HEAPBPF_OVERLOAD_SECONDS").ok()
}

/// A flood that has ended, while its recording continues.
struct Flood {
    target: Target,
    heapbpf: Heapbpf,
    session: Session,
    ledger: Ledger,
    /// When the load stopped.
    stopped_unix_ns: u64,
}

/// Four threads allocate and free as fast as they can, with every allocation recorded and a very small ring buffer.
fn flood(policy: &str) -> Flood {
    let mut target = Target::start("flood.c");
    let arguments = format!("-v --interval 1 --ring-size 64KiB --on-overload {policy} -o out.json");
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let session = heapbpf.start();
    let ledger = target.work(measured().as_deref().unwrap_or("6"));
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().expect("it is later than 1970");
    let stopped_unix_ns = u64::try_from(since_1970.as_nanos()).expect("it is before 2554");
    Flood { target, heapbpf, session, ledger, stopped_unix_ns }
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn share_off(got: f64, truth: u64) -> f64 {
    got / truth as f64 - 1.0
}

/// Error of an estimate, with the standard deviation that its 95 % interval has: intervals between samples have changed.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn note(errors: &mut Errors, what: &str, interval: Option<[f64; 2]>, truth: u64, interval_bytes: u64) {
    let [low, high] = interval.unwrap_or_else(|| panic!("{what} is no estimate"));
    // Without samples there is no interval: then it is computed from the truth.
    let sampled = high > low;
    let sigma = if sampled { (high - low) / 2.0 / 1.96 } else { (interval_bytes as f64 * truth as f64).sqrt() };
    // The interval is wider upwards.
    errors.note_sigmas(what, (f64::midpoint(low, high) - truth as f64) / sigma);
}

fn live_bytes(process: &Process) -> f64 {
    process.totals.estimates().live_bytes
}

/// Returns the seconds since the recording started of each such message.
fn message_seconds(outcome: &Outcome, what: &str) -> Vec<f64> {
    let told = |line: &str| {
        let (_, rest) = line.split_once("after ")?;
        let (time, rest) = rest.split_once(": ")?;
        rest.contains(what).then_some(())?;
        let (number, unit) = time.split_at(time.find(|c: char| c.is_alphabetic())?);
        let scale = if unit == "s" { 1.0 } else { 1e-3 };
        Some(number.parse::<f64>().ok()? * scale)
    };
    outcome.stderr.lines().filter_map(told).collect()
}

/// Measures how long after the load a dump has correct live bytes, to one percent. Dumps themselves do not resync.
#[track_caller]
fn resync_time(flood: &mut Flood) -> Duration {
    let deadline = Instant::now() + RIGHT_WITHIN_MAX;
    for number in 1.. {
        let name = format!("out.{number:04}.json");
        flood.session.signal(Signal::USR1);
        flood.session.wait_for(&name);
        let report = flood.heapbpf.report(&name);
        let live = live_bytes(report.process(flood.target.pid()));
        if share_off(live, flood.ledger.sum().live_bytes).abs() <= 0.01 {
            return Duration::from_nanos(report.ended_unix_ns.saturating_sub(flood.stopped_unix_ns));
        }
        assert!(Instant::now() < deadline, "{live} bytes live, in truth {:?}", flood.ledger.sum());
    }
    unreachable!("dumps have numbers without end")
}

/// Prints the row of docs/overhead.md, if times are measured.
#[expect(clippy::print_stdout, reason = "figures are for people")]
fn print_row(policy: &str, report: &Report, truth: &Counts, pid: u32) {
    if measured().is_none() {
        return;
    }
    let totals = &report.process(pid).totals;
    let off = |estimate: f64, truth: u64| format!("{:+.1} %", 100.0 * share_off(estimate, truth));
    let largest = report.health.interval_changes.iter().map(|change| change.to_bytes).max().unwrap_or(1);
    println!(
        "| `--on-overload {policy}` | {} | {:?} | live {} | allocated {} | T at most {largest} |",
        truth.alloc_count,
        report.health.lost,
        off(live_bytes(report.process(pid)), truth.live_bytes),
        off(totals.estimates().alloc_bytes, truth.alloc_bytes),
    );
}

#[test]
fn with_drop_losses_are_counted_and_live_bytes_are_correct_soon_after() {
    let mut flood = flood("drop");
    let took = resync_time(&mut flood);
    assert!(measured().is_none() || took <= RIGHT_WITHIN, "what is live is right after {took:?}");
    let Flood { mut target, heapbpf, session, ledger, .. } = flood;
    let outcome = session.interrupt().expect_code(3);
    target.assert_running();
    let report = heapbpf.report("out.json");
    let (health, truth) = (&report.health, ledger.sum());
    assert!(health.lost.get("ring_full").is_some_and(|&lost| lost > 0), "{:?}", health.lost);
    assert!(health.interval_changes.is_empty(), "{:?}", health.interval_changes);
    assert!(health.resyncs > 0);
    let live = live_bytes(report.process(target.pid()));
    let off = share_off(live, truth.live_bytes);
    assert!(off.abs() <= 0.01, "{live} bytes live, {:.2} % off {truth:?}\n{}", off * 100.0, outcome.stderr);
    print_row("drop", &report, &truth, target.pid());
    // Dropped events are missing from the allocated bytes.
    assert!(share_off(report.process(target.pid()).totals.estimates().alloc_bytes, truth.alloc_bytes) < 0.0);
}

#[test]
fn with_adapt_few_events_are_dropped_and_only_at_the_start() {
    assert_unbiased("a flood", estimate_flood);
}

fn estimate_flood() -> Errors {
    let mut errors = Errors::default();
    let Flood { mut target, heapbpf, session, ledger, .. } = flood("adapt");
    let outcome = session.interrupt();
    target.assert_running();
    let (report, truth) = (heapbpf.report("out.json"), ledger.sum());
    // If the ring buffer was read half full before it was full, nothing was dropped.
    let outcome = outcome.expect_code(if report.health.lost.is_empty() { 0 } else { 3 });
    let changes = &report.health.interval_changes;
    let first = changes.first().unwrap_or_else(|| panic!("T did not rise\n{}", outcome.stderr));
    assert_eq!((first.heap.as_str(), first.from_bytes), ("libc", 1));
    assert!(
        changes.iter().all(|change| change.unix_ns >= report.started_unix_ns && change.from_bytes != change.to_bytes)
    );
    if let (true, [began, .., ended]) = (measured().is_some(), message_seconds(&outcome, "ring buffer full").as_slice())
    {
        assert!(ended - began <= MET_WITHIN_SECONDS, "losses from {began} to {ended}\n{}", outcome.stderr);
    }
    // With `drop`, most events are dropped.
    let lost = report.health.lost.get("ring_full").copied().unwrap_or_default();
    assert!(lost <= (truth.alloc_count + truth.free_count) / 10, "{lost} of {truth:?}\n{}", outcome.stderr);
    let totals = &report.process(target.pid()).totals;
    let estimates = totals.estimates();
    let interval_bytes = changes.last().map_or(1, |change| change.to_bytes);
    note(&mut errors, "live bytes", totals.live_bytes_95, truth.live_bytes, interval_bytes);
    print_row("adapt", &report, &truth, target.pid());
    // Events dropped at the start are missing.
    let off = share_off(estimates.alloc_bytes, truth.alloc_bytes);
    let [low, high] = totals.alloc_bytes_95.expect("it is an estimate");
    let sigma = share_off(estimates.alloc_bytes + (high - low) / 2.0 / 1.96, truth.alloc_bytes) - off;
    errors.note_sigmas("allocated bytes", if off > 0.0 { off / sigma } else { (off + 0.2).min(0.0) / sigma });
    assert!(outcome.stderr.contains("heap libc is sampled every"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("heap libc was sampled every"), "{}", outcome.stdout);
    errors
}

/// Size of the live set; nine tenths of it are filled at first.
const LIVE_BLOCKS: u64 = 20_000;

fn fill(session: &mut Session, target: &mut Target) -> u64 {
    let first = target.work("keep 100 18500").sum();
    session.wait_for("live blocks of heap");
    session.wait_for("resynced ledgers");
    // The live set is too small for these if all were sampled.
    let second = target.work("keep 100 12000").sum();
    first.live_bytes + second.live_bytes
}

#[test]
fn with_adapt_a_full_live_set_is_thinned_and_nothing_is_dropped() {
    assert_unbiased("a full live set", estimate_thinned);
}

fn estimate_thinned() -> Errors {
    let mut errors = Errors::default();
    let mut target = Target::start("service.c");
    let arguments = format!("-v --interval 1 --live-blocks {LIVE_BLOCKS} --on-overload adapt -o out.json");
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let mut session = heapbpf.start();
    let truth = fill(&mut session, &mut target);
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let changes = &report.health.interval_changes;
    assert!(changes.iter().any(|change| change.reason == "live_set_filling"), "{changes:?}");
    let totals = &report.process(target.pid()).totals;
    let estimates = totals.estimates();
    let interval_bytes = changes.last().map_or(1, |change| change.to_bytes);
    note(&mut errors, "live bytes", totals.live_bytes_95, truth, interval_bytes);
    note(&mut errors, "allocated bytes", totals.alloc_bytes_95, truth, interval_bytes);
    assert!(share_off(estimates.live_bytes, truth).abs() < 0.1, "{estimates:?}");
    errors
}

#[test]
fn blocks_that_are_freed_while_the_live_set_is_thinned_leave_totals_unbiased() {
    assert_unbiased("blocks that are freed during a thinning", estimate_retiring);
}

/// Nine tenths of the live set are filled several times, and all blocks are freed at once.
fn estimate_retiring() -> Errors {
    let mut target = Target::start("retiring.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-v --interval 1 --live-blocks 100000 --on-overload adapt -o out.json");
    let mut session = heapbpf.start();
    let filled = target.work("keep 92000").sum();
    session.wait_for("live blocks of heap");
    let freed = target.work(&format!("free 92000 {}keep 1000", "keep 92000 free 92000 ".repeat(2))).sum();
    let truth = Counts {
        alloc_count: filled.alloc_count + freed.alloc_count,
        alloc_bytes: filled.alloc_bytes + freed.alloc_bytes,
        free_count: filled.free_count + freed.free_count,
        free_bytes: filled.free_bytes + freed.free_bytes,
        live_count: freed.live_count,
        live_bytes: freed.live_bytes,
    };
    let _ = session.interrupt().expect_code(0);
    adapted_errors(&heapbpf, target.pid(), &truth, "live_set_filling")
}

/// The errors of a complete report whose interval was raised for this reason.
#[track_caller]
fn adapted_errors(heapbpf: &Heapbpf, pid: u32, truth: &Counts, reason: &str) -> Errors {
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let changes = &report.health.interval_changes;
    assert!(changes.iter().any(|change| change.reason == reason), "{changes:?}");
    let totals = &report.process(pid).totals;
    let interval_bytes = changes.iter().map(|change| change.to_bytes).max().unwrap_or(1);
    let mut errors = Errors::default();
    note(&mut errors, "live bytes", totals.live_bytes_95, truth.live_bytes, interval_bytes);
    note(&mut errors, "allocated bytes", totals.alloc_bytes_95, truth.alloc_bytes, interval_bytes);
    errors
}

/// A live set whose events the agent read too late is right after the next pass, and stays so.
#[test]
fn events_from_before_a_resync_correct_nothing() {
    const KEPT: u64 = 10;
    let mut target = Target::start("retiring.c");
    let arguments = "-v --interval 1 --ring-size 1MiB --on-overload drop -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let mut session = heapbpf.start();
    session.halt();
    let truth = target.work(&format!("keep 60000 free 60000 keep {KEPT}")).sum();
    session.resume();
    session.wait_for("resynced ledgers");
    let deadline = Instant::now() + RIGHT_WITHIN_MAX;
    for number in 1.. {
        let name = format!("out.{number:04}.json");
        session.signal(Signal::USR1);
        session.wait_for(&name);
        let live = heapbpf.report(&name).process(target.pid()).totals.exact();
        if (live.live_count, live.live_bytes) == (KEPT, truth.live_bytes) {
            break;
        }
        assert!(Instant::now() < deadline, "{live:?} for good, in truth {truth:?}");
    }
    let _ = session.interrupt().expect_code(3);
}

/// While nobody empties the ring buffer, the kernel side raises the interval by itself.
#[test]
fn a_stopped_agent_loses_nothing_but_accuracy() {
    assert_unbiased("a program whose agent was stopped", estimate_unread);
}

fn estimate_unread() -> Errors {
    let mut target = Target::start("retiring.c");
    let arguments = "--interval 1 --ring-size 1MiB --on-overload adapt -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    session.halt();
    let truth = target.work(&"keep 4000 free 3990 ".repeat(10)).sum();
    session.resume();
    let _ = session.interrupt().expect_code(0);
    adapted_errors(&heapbpf, target.pid(), &truth, "ring_filling")
}

#[test]
fn what_was_dropped_is_within_the_interval() {
    let mut target = Target::start("retiring.c");
    let arguments = "--interval 1 --ring-size 64KiB --on-overload drop -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    session.halt();
    let truth = target.work("keep 20000 free 15000").sum();
    session.resume();
    let _ = session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    let totals = &report.process(target.pid()).totals;
    let interval = |interval: Option<[f64; 2]>| interval.map(|[low, high]| low..=high).expect("a bound is known");
    #[expect(clippy::cast_precision_loss, reason = "a few megabytes")]
    let (alloc_bytes, live_bytes) = (truth.alloc_bytes as f64, truth.live_bytes as f64);
    let allocated = interval(totals.alloc_bytes_95);
    assert!(allocated.contains(&alloc_bytes) && allocated.start() < &alloc_bytes, "{allocated:?}: {truth:?}");
    assert_eq!(interval(totals.live_bytes_95), live_bytes..=live_bytes);
}

#[test]
fn with_drop_a_full_live_set_drops_blocks() {
    let mut target = Target::start("service.c");
    let mut heapbpf =
        Heapbpf::of(target.pid(), &format!("--interval 1 --live-blocks {LIVE_BLOCKS} --on-overload drop -o out.json"));
    let session = heapbpf.start();
    let truth = target.work("keep 100 25000").sum();
    let _ = session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    assert_eq!(report.health.lost.get("live_set_full"), Some(&(truth.live_count - LIVE_BLOCKS)));
    assert_eq!(process.totals.exact().live_count, LIVE_BLOCKS);
    assert!(report.health.interval_changes.is_empty());
}

#[test]
fn live_bytes_are_correct_for_a_process_that_exits_soon_after_drops() {
    let mut target = Target::start("service.c");
    let arguments = "-v --interval 1 --ring-size 64KiB --on-overload drop -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    // Nobody empties the ring buffer meanwhile.
    session.halt();
    // More blocks than one lookup covers.
    let truth = target.work("keep 100 90000").sum();
    target.exit(0);
    session.resume();
    let outcome = session.wait().expect_code(3);
    let report = heapbpf.report("out.json");
    assert!(report.health.lost.get("ring_full").is_some_and(|&lost| lost > 0), "{:?}", report.health.lost);
    let live = live_bytes(report.process(target.pid()));
    let off = share_off(live, truth.live_bytes);
    assert!(off.abs() <= 0.01, "{live} bytes live, {:.2} % off {truth:?}\n{}", off * 100.0, outcome.stderr);
}

#[test]
fn blocks_freed_after_the_recording_are_live_in_it() {
    /// Number of blocks that the program always has after the first ones.
    const SLOTS: u64 = 4 * 4000;
    /// Longer than the recording. The target is killed when the test ends.
    const LOAD: Duration = Duration::from_secs(60);
    let mut target = Target::start("flood.c");
    let arguments = "-v --interval 1 --ring-size 64KiB --on-overload drop -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let mut session = heapbpf.start();
    target.begin_work(&LOAD.as_secs().to_string());
    let began = Instant::now();
    session.wait_for("resynced ledgers");
    std::thread::sleep(Duration::from_secs(2));
    let outcome = session.interrupt().expect_code(3);
    assert!(began.elapsed() < LOAD, "the load ended before the recording");
    let live = heapbpf.report("out.json").process(target.pid()).totals.estimates().live_count;
    let off = share_off(live, SLOTS);
    assert!(off.abs() <= 0.01, "{live} blocks live, {:.2} % off {SLOTS}\n{}", off * 100.0, outcome.stderr);
}
