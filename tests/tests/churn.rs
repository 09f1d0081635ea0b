//! Redis under load on a machine where short-lived programs start all the time.

#![expect(clippy::print_stderr, clippy::cast_precision_loss, reason = "prints figures with --nocapture")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::{Resources, assert_no_probes, changed_code};
use heapbpf_tests::redis::Redis;
use heapbpf_tests::report::{Health, Report};
use heapbpf_tests::target::Target;

/// Number of programs that are started.
const SPAWNS: u64 = 2000;
const LOAD: &str = "spawn 200 2000";

/// Ends the load, even if a check fails.
struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Number of keys that redis sets in one round, each to a 512-byte value.
const ROUND_KEYS: u32 = 20_000;

/// Puts load on redis and starts programs until all have exited, calling `inspect` repeatedly. Returns the number of
/// rounds.
fn under_load(redis: &Redis, spawner: &mut Target, mut inspect: impl FnMut()) -> u32 {
    let done = AtomicBool::new(false);
    let rounds = AtomicU32::new(0);
    thread::scope(|scope| {
        let _finally = Finally(&done);
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                redis.set_keys(ROUND_KEYS);
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let spawning = scope.spawn(|| spawner.work(LOAD));
        while !spawning.is_finished() {
            inspect();
            thread::sleep(Duration::from_millis(100));
        }
    });
    rounds.into_inner()
}

/// Fails unless redis's functions have names and, if nothing relevant was dropped, all of its values are present.
#[track_caller]
fn assert_whole_redis(report: &Report, pid: u32, rounds: u32) {
    let process = report.process(pid);
    let frames = process.callsites.iter().flat_map(|callsite| &callsite.stack);
    let own = frames.filter(|frame| frame.module.as_deref().is_some_and(|module| module.contains("/redis-")));
    let named: Vec<_> = own.filter_map(|frame| frame.function.as_deref()).collect();
    assert!(named.contains(&"processCommand"), "{named:?}");
    let allocated = process.totals.estimates().alloc_bytes;
    assert!(allocated > 1e6, "{:?}", process.totals);
    assert!(rounds > 0);
    let values = f64::from(rounds) * f64::from(ROUND_KEYS) * 512.0;
    eprintln!("{rounds} rounds: {:.2} bytes allocated for each byte of its values", allocated / values);
    assert!(report.health.lost.values().any(|count| *count > 0) || allocated > 0.9 * values, "{allocated} of {values}");
}

/// Fails unless the exit code and the summary report the drops.
#[track_caller]
fn assert_honest(report: &Report, code: Option<i32>, stdout: &str) {
    let lost: u64 = report.health.lost.values().sum();
    let whole = code == Some(0) && lost == 0;
    assert!(whole || code == Some(3) && stdout.contains("incomplete"), "{code:?}: {:?}\n{stdout}", report.health.lost);
}

#[test]
fn a_recording_of_all_processes_is_complete_under_process_churn() {
    let redis = Redis::start();
    let mut spawner = Target::start("spawner.c");
    let mut heapbpf = Heapbpf::new(["--all", "-o", "out.json"]);
    let session = heapbpf.start();
    let first = Resources::of(session.pid());
    let (mut most, mut last) = (first, first);
    let rounds = under_load(&redis, &mut spawner, || {
        last = Resources::of(session.pid());
        most = most.max(last);
    });
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    assert_honest(&report, outcome.status.code(), &outcome.stdout);
    assert_whole_redis(&report, redis.pid(), rounds);
    assert!(!report.process(spawner.pid()).exited);

    // No program lives for a tenth of the time to attach to it, and few others start during the test.
    // The kernel has no arguments of an exiting process any more, and then no allocator either.
    let is_spawned = |command: &str| ["/bin/true", "true", ""].contains(&command);
    let begun = report.targets.iter().filter(|process| is_spawned(&process.command)).count() as u64;
    let skipped = report.others.skipped.iter().filter(|process| is_spawned(&process.command)).count() as u64;
    let short_lived = report.others.short_lived_count;
    let lost = report.health.lost.get("exec_missed").copied().unwrap_or(0);
    let reported = short_lived + begun + skipped + lost;
    assert!(reported >= SPAWNS, "{reported}: {begun} recorded, {lost} lost, {:?}", report.others);
    assert!(short_lived < SPAWNS + SPAWNS / 2 && begun < SPAWNS / 10, "{short_lived}, {begun}");

    let Health { agent_cpu_ns, agent_rss_bytes_max, .. } = report.health;
    eprintln!("{SPAWNS} programs: {:.2} s of CPU", agent_cpu_ns as f64 / 1e9);
    eprintln!("memory: at most {} MiB", agent_rss_bytes_max >> 20);
    eprintln!("descriptors: {} at first, at most {}", first.descriptors, most.descriptors);
    eprintln!("reported: {short_lived} short-lived, {begun} recorded, {lost} lost");
    assert!(most.descriptors < first.descriptors + 200, "{first:?}, {most:?}");
    assert!(last.resident_bytes < first.resident_bytes + (128 << 20), "{first:?}, {last:?}");
    assert!(report.health.agent_rss_bytes_max < 512 << 20, "{}", report.health.agent_rss_bytes_max);
    redis.assert_answers();
    spawner.assert_running();
    assert_no_probes(redis.pid());
    assert_no_probes(spawner.pid());
}

#[test]
fn unselected_processes_run_without_probes() {
    let name = format!("meant-redis-of-{}", std::process::id());
    let redis = Redis::start_as(&name);
    let mut spawner = Target::start("spawner.c");
    let pid = spawner.pid();
    let mut heapbpf = Heapbpf::new(["--cmdline", &name, "-o", "out.json"]);
    let session = heapbpf.start();
    let mut looks = 0;
    let rounds = under_load(&redis, &mut spawner, || {
        assert!(!changed_code(redis.pid()).is_empty(), "it is probed");
        let changed = changed_code(pid);
        assert!(changed.is_empty(), "{changed:?}");
        looks += 1;
    });
    assert!(looks > 10);
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    assert_honest(&report, outcome.status.code(), &outcome.stdout);
    assert_eq!((report.targets.len(), report.targets[0].pid), (1, redis.pid()));
    assert_eq!((report.others.short_lived_count, report.others.skipped_count), (0, 0));
    assert_whole_redis(&report, redis.pid(), rounds);
}
