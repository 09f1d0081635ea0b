//! The heap `pages`: resident memory belongs to the stack that touched it first, exactly where every page is recorded.

use heapbpf_tests::heapbpf::{Heapbpf, Outcome, Session};
use heapbpf_tests::report::{Counts, Process, Report};
use heapbpf_tests::target::Target;

const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;

const EXACT: &str = "--heap pages --interval 1";

struct Recording {
    heapbpf: Heapbpf,
    session: Session,
    target: Target,
}

impl Recording {
    /// Begins to record a target that has done what the first lines say.
    fn begin(before: &[&str], options: &str) -> Self {
        let mut target = Target::start("touching.c");
        before.iter().for_each(|line| target.run_command(line));
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("{options} -o out.json"));
        let session = heapbpf.start();
        Self { heapbpf, session, target }
    }

    fn end(self) -> (Report, u32, Outcome) {
        let Self { heapbpf, session, mut target } = self;
        let outcome = session.interrupt();
        target.assert_running();
        (heapbpf.report("out.json"), target.pid(), outcome)
    }

    /// Has the target do what the lines say, and ends.
    fn run(mut self, lines: &[&str]) -> (Report, u32) {
        lines.iter().for_each(|line| self.target.run_command(line));
        let (report, pid, outcome) = self.end();
        let _ = outcome.expect_code(0);
        (report, pid)
    }
}

fn record(lines: &[&str]) -> (Report, u32) {
    Recording::begin(&[], EXACT).run(lines)
}

fn under(process: &Process, function: &str) -> Counts {
    process.exact_under(|name| name == function)
}

fn live_bytes(process: &Process, function: &str) -> u64 {
    under(process, function).live_bytes
}

#[test]
fn pages_belong_to_who_touched_them_first() {
    let (report, pid) = record(&["touch 24", "again 24"]);
    let process = report.process(pid);
    assert_eq!(process.heap_names(), ["pages"]);
    let touched = under(process, "touches");
    assert_eq!((touched.live_bytes, touched.live_count), (24 * MIB, 24 * MIB / PAGE_BYTES));
    assert_eq!((touched.alloc_bytes, touched.free_bytes), (24 * MIB, 0));
    assert_eq!(under(process, "touches_again").alloc_bytes, 0);
}

#[test]
fn pages_that_are_given_back_are_free_and_may_get_another_owner() {
    let (report, pid) = record(&["touch 24", "return 16", "again 4"]);
    let process = report.process(pid);
    let touched = under(process, "touches");
    assert_eq!((touched.alloc_bytes, touched.live_bytes, touched.free_bytes), (24 * MIB, 8 * MIB, 16 * MIB));
    assert_eq!(live_bytes(process, "touches_again"), 4 * MIB);
}

#[test]
fn huge_pages_belong_to_their_first_touch() {
    let (report, pid) = record(&["huge 24"]);
    assert_eq!(live_bytes(report.process(pid), "touches_huge"), 24 * MIB);
}

/// Memory that is only read is not resident, shared memory is no process's own, and the kernel's writes are its caller's.
#[test]
fn only_what_a_process_writes_is_its_own() {
    let (report, pid) = record(&["read 8", "share 4", "receive 24", "copy 4"]);
    let process = report.process(pid);
    assert_eq!(live_bytes(process, "reads"), 0);
    assert_eq!(live_bytes(process, "shares"), 0);
    assert_eq!(live_bytes(process, "receives"), 24 * MIB);
    assert_eq!(live_bytes(process, "copies"), 4 * MIB);
}

/// A read maps the zero page, so that the first write meets a page that is present.
#[test]
fn memory_that_was_read_belongs_to_who_writes_it() {
    let (report, pid) = record(&["read 8", "again 8"]);
    assert_eq!(live_bytes(report.process(pid), "touches_again"), 8 * MIB);
}

#[test]
fn threads_that_touch_a_page_at_once_count_it_once() {
    let (report, pid) = record(&["together 24"]);
    assert_eq!(live_bytes(report.process(pid), "touches_together"), 24 * MIB);
}

#[test]
fn a_copy_in_a_forked_child_belongs_to_who_writes_it() {
    let (report, pid) = record(&["touch 16", "fork 0"]);
    assert_eq!(live_bytes(report.process(pid), "touches"), 16 * MIB, "a copy has the owner of what it copies");
    assert_eq!(under(report.process(pid), "touches_again").alloc_bytes, 0);
    let child = report.child_of(pid);
    assert_eq!(under(child, "touches_again").alloc_bytes, 8 * MIB);
    assert_eq!(under(child, "touches"), Counts::default(), "what it has not written is its parent's");
}

/// The memory from before shares huge ranges with that from after.
#[test]
fn pages_from_before_have_no_owner() {
    let recording = Recording::begin(&["touch 15", "huge 5"], EXACT);
    let (report, pid) = recording.run(&["touch 15", "huge 5", "receive 3"]);
    let process = report.process(pid);
    assert_eq!(live_bytes(process, "touches"), 15 * MIB);
    assert_eq!(live_bytes(process, "receives"), 3 * MIB);
    let huge = live_bytes(process, "touches_huge");
    assert!((5 * MIB..=6 * MIB).contains(&huge), "{huge}: the last of the huge pages is used half");
}

#[test]
fn a_launched_program_has_all_of_its_pages() {
    let mut heapbpf = Heapbpf::new(
        ["--heap", "pages", "--interval", "1", "-o", "out.json", "--", "/usr/bin/python3", "-c"].into_iter().chain([
            "x = bytearray(50 << 20); x[::4096] = b'1' * (50 << 8); import os, signal; os.kill(os.getppid(), 0)",
        ]),
    );
    let _ = heapbpf.run().expect_code(0);
    let process = &heapbpf.report("out.json").targets[0];
    let peak = process.totals.peak_bytes.as_u64().expect("exact");
    assert!(peak >= 50 * MIB, "{peak}");
}

/// Estimates of a heap that is sampled by address are within their intervals, whatever the seed of the session.
#[test]
fn sampled_pages_are_estimated_within_their_interval() {
    for _ in 0..3 {
        let recording = Recording::begin(&[], "--heap pages --heap-interval pages=64KiB");
        let (report, pid) = recording.run(&["touch 96", "huge 32", "return 32"]);
        let process = report.process(pid);
        for (function, bytes) in [("touches", 64 * MIB), ("touches_huge", 32 * MIB)] {
            let estimate = process.estimates_under(|name| name == function).live_bytes;
            // Six standard deviations of a Poisson number of samples.
            let (bytes, interval) = (bytes as f64, 65_536.0);
            assert!((estimate - bytes).abs() < 6.0 * (bytes * interval).sqrt(), "{function}: {estimate} of {bytes}");
        }
    }
}

#[test]
fn beside_other_heaps_no_byte_counts_twice() {
    let mut target = Target::start("resident.c");
    let mut heapbpf = Heapbpf::with_pages(target.pid(), "-o out.json");
    let session = heapbpf.start();
    ["blocks 48", "maps 32", "blocks 16"].iter().for_each(|line| target.run_command(line));
    let outcome = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    let process = report.process(target.pid());
    let estimate = |heap: &str| process.heap(heap).totals.estimates().live_bytes / MIB as f64;
    let (blocks, pages) = (estimate("libc"), estimate("pages"));
    assert!((blocks - 64.0).abs() < 4.0, "{blocks}");
    // 256 samples: five standard deviations.
    assert!((pages - 32.0).abs() < 10.0, "{pages}");
    assert!(outcome.stdout.contains("live blocks: pages 32."), "{}", outcome.stdout);
}

/// What a recording contains gives the report that was written live.
#[test]
fn recordings_have_pages() {
    let mut target = Target::start("touching.c");
    let mut heapbpf = Heapbpf::of(target.pid(), &format!("{EXACT} -o out.json -o out.heapbpf"));
    let session = heapbpf.start();
    ["touch 8", "return 4", "again 2", "huge 4"].iter().for_each(|line| target.run_command(line));
    let _ = session.interrupt().expect_code(0);
    let [recording, again] = ["out.heapbpf", "again.json"].map(|name| heapbpf.file(name));
    let convert = ["convert".as_ref(), recording.as_os_str(), "-o".as_ref(), again.as_os_str()];
    let _ = Heapbpf::new(convert).run().expect_code(0);
    let [live, replayed] = ["out.json", "again.json"].map(|name| heapbpf.report(name));
    let [live, replayed] = [&live, &replayed].map(|report| report.process(target.pid()));
    assert_eq!(live.totals.exact(), replayed.totals.exact());
    for function in ["touches", "touches_again", "touches_huge"] {
        assert_eq!(under(live, function), under(replayed, function), "{function}");
    }
}

#[test]
fn every_process_has_pages() {
    // Has no allocator that could be hooked.
    let mut target = Target::start("bare.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--heap pages -d 300ms -o out.json");
    let outcome = heapbpf.run().expect_code(0);
    target.assert_running();
    assert!(outcome.stdout.contains("hooks: none; resident pages are recorded"), "{}", outcome.stdout);
}
