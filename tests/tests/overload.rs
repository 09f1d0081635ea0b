//! More than can be followed: what is lost is counted, what is live is right soon after, and with `adapt` the losses end.
//!
//! `HEAPBPF_OVERLOAD_SECONDS=60` makes the floods as long as docs/overhead.md reports them.

use std::time::{Duration, Instant};

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, Session};
use heapbpf_tests::report::{Ledger, Process, Report};
use heapbpf_tests::target::Target;

/// After the load has stopped, what is live is to be right within this.
const RIGHT_WITHIN: Duration = Duration::from_secs(1);

/// With `adapt`, losses are to have ended within this. Losses are told of five times a second.
const MET_WITHIN_SECONDS: f64 = 1.2;

fn seconds() -> String {
    std::env::var("HEAPBPF_OVERLOAD_SECONDS").unwrap_or_else(|_| "6".to_owned())
}

/// A flood that was recorded.
struct Flood {
    report: Report,
    ledger: Ledger,
    pid: u32,
    outcome: Outcome,
    /// When the load stopped, since the recording began.
    stopped_seconds: f64,
}

/// Four threads allocate and free as fast as they can, every allocation is to be recorded, and there is hardly any room for that.
fn flood(policy: &str) -> Flood {
    let mut target = Target::start("flood.c");
    let arguments = format!("-v --interval 1 --ring-size 64KiB --on-overload {policy} -o out.json");
    let mut heapbpf = Heapbpf::of(target.pid(), &arguments);
    let session = heapbpf.start();
    let started = Instant::now();
    let ledger = target.work(&seconds());
    let stopped_seconds = started.elapsed().as_secs_f64();
    // What is claimed is of this moment.
    std::thread::sleep(RIGHT_WITHIN);
    let outcome = session.interrupt().expect_code(3);
    target.assert_running();
    Flood { report: heapbpf.report("out.json"), ledger, pid: target.pid(), outcome, stopped_seconds }
}

#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn share_off(got: f64, truth: u64) -> f64 {
    got / truth as f64 - 1.0
}

/// Fails unless an estimate lies within four standard deviations of the truth, of which its 95 % interval tells.
#[track_caller]
#[expect(clippy::cast_precision_loss, reason = "counts and bytes here are far below 2^53")]
fn assert_within_4_sigma(what: &str, estimate: f64, interval: Option<[f64; 2]>, truth: u64) {
    let [low, high] = interval.unwrap_or_else(|| panic!("{what} is no estimate"));
    let sigma = (high - low) / 2.0 / 1.96;
    // The interval is wider upwards.
    let middle = f64::midpoint(low, high);
    assert!(
        (middle - truth as f64).abs() <= 4.0 * sigma,
        "{what}: {estimate} ({low} to {high}) is not {truth}, by {:.1} sigma",
        (middle - truth as f64) / sigma
    );
}

fn live_bytes(process: &Process) -> f64 {
    process.totals.estimates().live_bytes
}

/// Seconds, since the recording began, at which it said this.
fn told_seconds(outcome: &Outcome, what: &str) -> Vec<f64> {
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

#[test]
fn with_drop_losses_are_counted_and_what_is_live_is_right_within_a_second() {
    let Flood { report, ledger, pid, outcome, stopped_seconds } = flood("drop");
    let health = &report.health;
    assert!(health.lost.get("ring_full").is_some_and(|&lost| lost > 0), "{:?}", health.lost);
    assert!(health.interval_changes.is_empty(), "{:?}", health.interval_changes);
    assert!(health.resyncs > 0);
    let live = live_bytes(report.process(pid));
    let off = share_off(live, ledger.sum().live_bytes);
    assert!(off.abs() <= 0.01, "{live} bytes live, {:.2} % off {:?}\n{}", off * 100.0, ledger.sum(), outcome.stderr);
    // Not only when it ended: the books were right by then.
    let resyncs = told_seconds(&outcome, "the books were put right");
    let right_within = stopped_seconds + RIGHT_WITHIN.as_secs_f64();
    assert!(resyncs.iter().all(|&at| at <= right_within), "{resyncs:?}, load until {stopped_seconds}");
    // Of what was allocated, losses are missing.
    assert!(report.process(pid).totals.estimates().alloc_bytes < ledger.sum().alloc_bytes as f64);
}

#[test]
fn with_adapt_nothing_is_lost_after_the_first_second() {
    let Flood { report, ledger, pid, outcome, .. } = flood("adapt");
    let changes = &report.health.interval_changes;
    let first = changes.first().unwrap_or_else(|| panic!("T did not rise\n{}", outcome.stderr));
    assert_eq!((first.heap.as_str(), first.from_bytes), ("libc", 1));
    assert!(
        changes.iter().all(|change| change.unix_ns >= report.started_unix_ns && change.from_bytes != change.to_bytes)
    );
    let told = told_seconds(&outcome, "have found no room in the ring");
    let (Some(began), Some(ended)) = (told.first(), told.last()) else {
        // The ring was found half full before it was full.
        return assert!(report.health.lost.is_empty(), "{:?}", report.health.lost);
    };
    assert!(ended - began <= MET_WITHIN_SECONDS, "losses at {told:?}\n{}", outcome.stderr);
    let totals = &report.process(pid).totals;
    let estimates = totals.estimates();
    assert_within_4_sigma("live bytes", estimates.live_bytes, totals.live_bytes_95, ledger.sum().live_bytes);
    // What was lost in the beginning is missing.
    let off = share_off(estimates.alloc_bytes, ledger.sum().alloc_bytes);
    assert!((-0.1..0.05).contains(&off), "{off}");
    assert!(outcome.stderr.contains("heap libc is sampled every"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("heap libc was sampled every"), "{}", outcome.stdout);
}

/// Room in the live set; nine tenths of it are filled at first.
const LIVE_BLOCKS: u64 = 20_000;

fn fill(session: &mut Session, target: &mut Target) -> u64 {
    let first = target.work("keep 100 18500").sum();
    session.wait_for("live blocks of heap");
    session.wait_for("the books were put right");
    // No room for these, if all were sampled.
    let second = target.work("keep 100 12000").sum();
    first.live_bytes + second.live_bytes
}

#[test]
fn with_adapt_a_live_set_that_fills_is_thinned_and_nothing_is_lost() {
    let mut target = Target::start("service.c");
    let arguments = format!("-v --interval 1 --live-blocks {LIVE_BLOCKS} -o out.json");
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
    assert_within_4_sigma("live bytes", estimates.live_bytes, totals.live_bytes_95, truth);
    assert_within_4_sigma("allocated bytes", estimates.alloc_bytes, totals.alloc_bytes_95, truth);
    assert!(share_off(estimates.live_bytes, truth).abs() < 0.1, "{estimates:?}");
}

#[test]
fn with_drop_a_full_live_set_is_a_loss() {
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
fn what_was_live_at_its_end_is_right_of_a_process_that_ends_soon_after_losses() {
    let mut target = Target::start("service.c");
    let arguments = "-v --interval 1 --ring-size 64KiB --on-overload drop -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let session = heapbpf.start();
    // More than are looked for at once.
    let truth = target.work("keep 100 90000").sum();
    target.exit(0);
    let outcome = session.wait().expect_code(3);
    let report = heapbpf.report("out.json");
    assert!(report.health.lost.get("ring_full").is_some_and(|&lost| lost > 0), "{:?}", report.health.lost);
    let live = live_bytes(report.process(target.pid()));
    let off = share_off(live, truth.live_bytes);
    assert!(off.abs() <= 0.01, "{live} bytes live, {:.2} % off {truth:?}\n{}", off * 100.0, outcome.stderr);
}

#[test]
fn what_is_freed_after_the_recording_has_ended_is_live_in_it() {
    /// Blocks that the program holds all the time, once it has made the first ones.
    const SLOTS: u64 = 4 * 4000;
    let mut target = Target::start("flood.c");
    let arguments = "-v --interval 1 --ring-size 64KiB --on-overload drop -o out.json";
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    let mut session = heapbpf.start();
    let pid = target.pid();
    let load = std::thread::spawn(move || {
        let _ = target.work("8");
        Instant::now()
    });
    session.wait_for("the books were put right");
    std::thread::sleep(Duration::from_secs(2));
    let interrupted = Instant::now();
    let outcome = session.interrupt().expect_code(3);
    assert!(load.join().expect("the load ends") > interrupted, "it went on until then");
    let live = heapbpf.report("out.json").process(pid).totals.estimates().live_count;
    let off = share_off(live, SLOTS);
    assert!(off.abs() <= 0.01, "{live} blocks live, {:.2} % off {SLOTS}\n{}", off * 100.0, outcome.stderr);
}
