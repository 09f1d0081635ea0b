//! Targets with very many threads, mappings or children, with another word size, and with their own clocks.

use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build};

use super::{FAILED, LEAKS_FOUND, assert_keeps, assert_unharmed, leaks, record_exactly};

#[track_caller]
fn check(preparation: &str) {
    let mut target = Target::start("wide.c");
    target.work(preparation);
    record_exactly(&mut target);
    for arguments in ["", "--snapshot fork"] {
        let found = leaks(target.pid(), arguments).expect_code(LEAKS_FOUND);
        assert!(found.stdout.contains("25000 bytes in 25 allocations unreachable"), "{}", found.stdout);
    }
    assert_unharmed(&mut target);
}

#[test]
fn five_thousand_threads() {
    check("threads 5000");
}

/// The kernel's default limit is 65,530 (`vm.max_map_count`).
#[test]
fn sixty_thousand_mappings() {
    check("mappings 60000");
}

/// As many as 500 forks per second create in 10 s, as fast as the machine allows.
#[test]
fn thousands_of_short_lived_children() {
    const FORKS: u64 = 5000;
    let mut target = Target::start("forks.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work(&format!("fork 4 {}", FORKS / 4));
    let outcome = session.interrupt();
    let report = heapbpf.report("out.json");
    let lost: u64 = report.health.lost.values().sum();
    let ended = report.others.short_lived_count;
    let is_whole = lost == 0 && ended <= 9 * (report.targets.len() as u64 + report.others.folded_count);
    assert_eq!(outcome.status.code(), Some(if is_whole { 0 } else { 3 }), "{:?}\n{}", report.health, outcome.stdout);
    let children = report.targets.iter().filter(|process| process.pid != target.pid()).count() as u64;
    let counted = children + ended + report.others.folded_count + report.others.skipped_count;
    assert!(counted + lost >= FORKS, "{counted} of {FORKS}: {:?}, {:?}", report.others, report.health);
    assert!(target.work("fork 1 1").sites.iter().all(|site| site.counts.alloc_count == 0), "children's calls");
    target.assert_running();
}

#[test]
fn a_32_bit_program_is_refused_by_that_name() {
    let program =
        Recipe::of("narrow.c").compiler("gcc").flags("-m32 -nostdlib -static -ffreestanding -fno-pie").build();
    let mut target = Target::spawn(&mut Command::new(program));
    target.run_command("x");
    let text = Heapbpf::of(target.pid(), "--interval 1 --duration 1s -o out.json").run().expect_error(FAILED);
    assert!(text.contains("64-bit") && text.contains("narrow"), "{text}");
    for arguments in ["", "--snapshot fork"] {
        let text = leaks(target.pid(), arguments).expect_error(FAILED);
        assert!(text.contains("32-bit"), "{text}");
    }
    target.run_command("x");
    target.assert_running();
}

/// Its monotonic clock is ten days ahead of heapbpf's.
#[test]
fn a_target_in_a_time_namespace() {
    let mut command = Command::new("unshare");
    command.args(["--time", "--monotonic", "864000", "--boottime", "864000", "--fork", "--kill-child"]);
    let mut target = Target::spawn(command.arg(build("service.c")));
    let pid = target.child_pid();
    let mut heapbpf = Heapbpf::of(pid, "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    let report = heapbpf.report("out.json");
    report.assert_complete();
    let process = report.process(pid);
    assert_keeps(process);
    let within = report.started_unix_ns..=report.ended_unix_ns;
    assert!(
        process.totals.peak_unix_ns.is_some_and(|peak| within.contains(&peak)),
        "{:?} of {within:?}",
        process.totals
    );
    assert_eq!(target.work("keep 10 2").site("keeps").counts.alloc_bytes, 20);
}
