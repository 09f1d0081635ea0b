//! A real program under load: redis with jemalloc.

use std::{fs, thread};

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::kernel::{assert_no_probes, changed_code};
use heapbpf_tests::redis::Redis;

#[test]
fn redis_under_load_is_profiled_without_drops() {
    let redis = Redis::start();
    let mut heapbpf = Heapbpf::of(redis.pid(), "-o out.svg -o out.json");
    let session = heapbpf.start();
    redis.set_keys(20_000);
    let _ = session.interrupt().expect_code(0);
    redis.assert_answers();
    assert_no_probes(redis.pid());

    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(redis.pid());
    assert!(!process.exited);
    let jemalloc = process
        .heaps
        .iter()
        .find(|heap| heap.name == "jemalloc")
        .unwrap_or_else(|| panic!("no jemalloc among {:?}", process.heaps));
    for function in ["malloc", "calloc", "realloc", "free"] {
        let hook = jemalloc.hooks.iter().find(|hook| hook.function == function);
        let hook = hook.unwrap_or_else(|| panic!("`{function}` is not among {:?}", jemalloc.hooks));
        assert!(hook.attached && hook.module.ends_with("/libjemalloc.so.2"), "{hook:?}");
    }

    // 20,000 random keys out of 10,000 hit some 8,600 different ones, each with 512 bytes to keep.
    let totals = jemalloc.totals.estimates();
    assert!(totals.live_bytes > 8_000.0 * 512.0, "{totals:?}");
    assert!(totals.alloc_count > 20_000.0, "{totals:?}");

    // Debian's redis-server is a link to redis-check-rdb, and it overwrites its arguments.
    let own = |frame: &heapbpf_tests::report::Frame| {
        frame.module.as_deref().is_some_and(|module| module.ends_with("/redis-server")) && frame.function.is_some()
    };
    let mut named: Vec<&str> = process
        .callsites
        .iter()
        .flat_map(|callsite| &callsite.stack)
        .filter(|frame| own(frame))
        .filter_map(|frame| frame.function.as_deref())
        .collect();
    named.sort_unstable();
    named.dedup();
    assert!(!named.is_empty(), "no function of redis has a name");
    let svg = text(&heapbpf.file("out.svg"));
    assert!(named.iter().any(|name| svg.contains(name)), "none of {named:?} is in the SVG");
}

#[test]
fn redis_survives_the_death_of_the_profiler_under_load() {
    let redis = Redis::start();
    let mut heapbpf = Heapbpf::of(redis.pid(), "-o out.json");
    let session = heapbpf.start();
    assert!(!changed_code(redis.pid()).is_empty(), "there were no probes");
    thread::scope(|scope| {
        let load = scope.spawn(|| redis.set_keys(20_000));
        session.kill();
        load.join().expect("redis answered all requests");
    });
    redis.assert_answers();
    assert_no_probes(redis.pid());
    assert!(fs::exists(redis.socket()).expect("the directory is ours"));
}
