//! The `mmap` heap: every mapping, what remains of it, and no mapping of malloc itself.

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::report::{Ledger, Report};
use heapbpf_tests::target::Target;

const PAGE_BYTES: u64 = 4096;

/// Profiles one command of the target that maps memory.
fn profile(arguments: &str, line: &str) -> (Report, u32, Ledger) {
    let mut target = Target::start("mapper.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("{arguments} -o out.json"));
    let session = heapbpf.start();
    let ledger = target.work(line);
    let _ = session.interrupt().expect_code(0);
    target.assert_running();
    let report = heapbpf.report("out.json");
    report.assert_complete();
    (report, target.pid(), ledger)
}

#[test]
fn mappings_are_counted_to_the_page_and_their_parts() {
    let (report, pid, ledger) = profile("--interval 1 --heap mmap", "go");
    let process = report.process(pid);
    process.assert_matches(&ledger);
    // A surplus would be a file's mapping, a failed call, or a system call that bypasses the C library.
    assert_eq!(process.totals.exact(), ledger.sum());
    assert_eq!(process.totals.peak_bytes.as_u64(), Some(ledger.peak_bytes));
    // Checks the test itself: the target's ledger has entries.
    let maps = ledger.site("maps").counts;
    assert!(maps.live_bytes > 0 && maps.live_bytes < maps.alloc_bytes / 4, "{maps:?}");
    assert!(
        ledger.site("maps_reserve").counts.alloc_bytes == 1 << 40 && ledger.site("moves_over").counts.live_count == 1
    );
}

#[test]
fn the_heap_has_the_mapping_calls_only() {
    let (report, pid, _) = profile("--interval 1 --heap mmap", "go");
    let process = report.process(pid);
    assert_eq!(process.heap_names(), ["mmap"]);
    let mut functions: Vec<&str> = process.heaps[0].hooks.iter().map(|hook| hook.function.as_str()).collect();
    functions.sort_unstable();
    assert_eq!(functions, ["mmap", "mmap64", "mremap", "munmap", "sbrk"]);
    assert!(process.heaps[0].hooks.iter().all(|hook| hook.module.ends_with("/libc.so.6")));
}

#[test]
fn threads_that_reuse_each_others_addresses_are_counted_to_the_page() {
    let (report, pid, ledger) = profile("--interval 1 --heap mmap", "threads");
    report.process(pid).assert_matches(&ledger);
    let counts = ledger.site("maps_in_a_thread").counts;
    assert_eq!((counts.alloc_count, ledger.site("moves_in_a_thread").counts.alloc_count), (16_000, 8_000));
}

#[test]
fn mappings_of_malloc_are_counted_for_malloc() {
    let (report, pid, ledger) = profile("--interval 1 --heap libc --heap mmap", "blocks");
    let process = report.process(pid);
    process.assert_matches(&ledger);
    let maps = ledger.site("maps").counts;
    assert_eq!(process.heap("mmap").totals.exact(), maps);
    assert_eq!(maps.live_bytes, 2 * PAGE_BYTES);
    assert_eq!(process.heap("libc").totals.exact(), ledger.sum_of(|function| function != "maps"));
}

#[test]
fn unsampled_calls_of_malloc_hide_their_mappings_too() {
    let (report, pid, _) = profile("--interval 1GB --heap libc --heap mmap", "blocks");
    let mapped = report.process(pid).heap("mmap").totals.estimates();
    assert_eq!((mapped.alloc_count, mapped.alloc_bytes), (1.0, 2.0 * PAGE_BYTES as f64));
}

#[test]
fn mappings_of_malloc_are_recorded_without_the_libc_heap() {
    let (report, pid, _) = profile("--interval 1 --heap mmap", "block");
    let counts = report.process(pid).exact_under(|function| function == "mallocs_large");
    // The block, and the page that its header is in.
    assert_eq!((counts.live_count, counts.live_bytes), (1, (1 << 20) + PAGE_BYTES));
}
