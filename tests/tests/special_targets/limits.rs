//! Limits on heapbpf itself: memory, descriptors, and CPU.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use heapbpf_tests::cgroup::Group;
use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Process;
use heapbpf_tests::target::Target;

use super::{FAILED, assert_keeps, assert_unharmed, prepared};

/// Records with this maximum number of descriptors. Returns the names of what was lost.
fn lost_with(descriptors: u32, code: i32) -> Vec<String> {
    let mut target = Target::start("service.c");
    let mut heapbpf = prepared(&format!("ulimit -n {descriptors}"), target.pid(), "--interval 1 -o out.json");
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(code);
    let report = heapbpf.report("out.json");
    assert_keeps(report.process(target.pid()));
    assert_unharmed(&mut target);
    report.health.lost.into_keys().collect()
}

#[test]
fn ninety_six_descriptors_suffice() {
    assert_eq!(lost_with(96, 0), [""; 0]);
}

/// They do not suffice for the programs that follow forks.
#[test]
fn with_sixty_four_descriptors_the_target_alone_is_recorded() {
    assert_eq!(lost_with(64, 3), ["unmonitored"]);
}

#[test]
fn twenty_descriptors_are_an_error_with_that_reason() {
    let mut target = Target::start("service.c");
    let outcome = prepared("ulimit -n 20", target.pid(), "--interval 1 --duration 1s -o out.json").run();
    let text = outcome.expect_error(FAILED);
    assert!(text.contains("too many open files") && text.contains("ulimit -n"), "{text}");
    assert_unharmed(&mut target);
}

/// A control group with a memory limit, without swap.
fn memory_group(limit: &str) -> Group {
    let name = format!("heapbpf-memory-{}", std::process::id());
    let first = Group::of_hierarchy("memory", &name);
    let file = if first.is_some() { "memory.limit_in_bytes" } else { "memory.max" };
    let group = first.unwrap_or_else(|| Group::unified(&name));
    let file = group.directory().join(file);
    fs::write(&file, limit).unwrap_or_else(|error| panic!("`{}`: {error}", file.display()));
    group
}

#[test]
fn sixty_four_mebibytes_are_an_error_with_that_reason() {
    let mut target = Target::start("service.c");
    let group = memory_group("64M");
    let enter = format!("echo $$ > {}", group.processes().display());
    let mut heapbpf = prepared(&enter, target.pid(), "--interval 1 --duration 1s -o out.json");
    // The kernel takes as much to verify the programs, and would kill heapbpf.
    let text = heapbpf.run().expect_error(FAILED);
    assert!(text.contains("not enough kernel memory") && text.contains("64.0 MiB"), "{text}");
    assert!(heapbpf.files().is_empty(), "{:?}", heapbpf.files());
    assert_unharmed(&mut target);
}

#[test]
fn ninety_two_mebibytes_suffice() {
    let mut target = Target::start("service.c");
    let group = memory_group("92M");
    let enter = format!("echo $$ > {}", group.processes().display());
    let small = "--ring-size 256KiB --unwind-memory 4MiB --live-blocks 4096 --interval 1 -o out.json";
    let mut heapbpf = prepared(&enter, target.pid(), small);
    let session = heapbpf.start();
    target.work("keep 1000 25");
    let _ = session.interrupt().expect_code(0);
    assert_keeps(heapbpf.report("out.json").process(target.pid()));
    assert_unharmed(&mut target);
}

/// The recording ends before the group is out of memory, of which the program dies in the end.
#[test]
fn a_program_that_fills_its_group_is_reported() {
    // Builds without optimisation use more.
    let group = memory_group(if cfg!(debug_assertions) { "192M" } else { "128M" });
    let program = Recipe::of("leaking_away.c").build();
    let options = format!("--interval 1 -o out.json -- {}", program.display());
    let mut command = Command::new("sh");
    let enter = format!("echo $$ > {}", group.processes().display());
    command.args(["-c", &format!("{enter}; exec {} {options}", binary().display())]);
    let mut heapbpf = Heapbpf::with_command(command);
    let outcome = heapbpf.run();
    assert!(outcome.stderr.contains("kernel maps are smaller"), "{}", outcome.stderr);
    let report = heapbpf.report("out.json");
    let [process] = report.targets.as_slice() else { panic!("{:?}", report.targets) };
    let leaked =
        process.callsites.iter().filter(|it| it.stack.iter().any(|it| it.function.as_deref() == Some("leaks")));
    let bytes: f64 = leaked.filter_map(|it| it.totals.live_bytes.as_f64()).sum();
    assert!(bytes > 8e6, "{bytes} of {:?}", process.totals);
    assert!(outcome.stderr.contains("control group has only"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the control group of heapbpf had only"), "{}", outcome.stderr);
}

/// Callsites that would fill the group when the report is written are counted together.
#[test]
fn a_program_with_many_callsites_is_reported_from_a_small_group() {
    const CALLSITES: u64 = 1 << 17;
    let group = memory_group(if cfg!(debug_assertions) { "192M" } else { "128M" });
    let program = Recipe::of("callsites.c").build();
    // The program itself leaves the group.
    let outside = group.directory().parent().expect("it has a parent").join("cgroup.procs");
    let leave = format!("echo $$ > {}; exec {} {CALLSITES} 0", outside.display(), program.display());
    let enter = format!("echo $$ > {}", group.processes().display());
    let mut command = Command::new("sh");
    let line = format!("{enter}; exec {} --interval 1 -o out.json -o out.svg -- sh -c '{leave}'", binary().display());
    command.args(["-c", &line]);
    let mut heapbpf = Heapbpf::with_command(command);
    let outcome = heapbpf.run();
    assert!(outcome.stderr.contains("callsites are kept apart"), "{}", outcome.stderr);
    let report = heapbpf.report("out.json");
    let made = |process: &Process| process.totals.exact().alloc_count;
    let process = report.targets.iter().max_by_key(|process| made(process)).expect("it was recorded");
    // Where the ring buffer was full, the report states what is missing.
    assert!(made(process) + report.health.lost.values().sum::<u64>() >= CALLSITES, "{:?}", report.health.lost);
    assert!(process.callsites.len() < 1 << 16, "{}", process.callsites.len());
}

/// Under load, for longer than the ring buffer lasts.
#[test]
fn a_session_that_was_stopped_for_twenty_seconds_reports_its_drops() {
    let mut target = Target::start("flood.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--interval 1 --on-overload drop --ring-size 1MiB -o out.json");
    let session = heapbpf.start();
    session.halt();
    let ledger = thread::scope(|scope| {
        let load = scope.spawn(|| target.work("3"));
        thread::sleep(Duration::from_secs(20));
        load.join().expect("it does not panic")
    });
    session.resume();
    let outcome = session.interrupt().expect_code(3);
    let report = heapbpf.report("out.json");
    let truth = ledger.sum();
    let recorded = report.process(target.pid()).totals.exact();
    let dropped = report.health.lost.get("ring_full").copied().unwrap_or_default();
    assert!(dropped > 0 && outcome.stdout.contains("incomplete"), "{:?}\n{}", report.health.lost, outcome.stdout);
    assert!(recorded.alloc_count <= truth.alloc_count, "{recorded:?} of {truth:?}");
    let missing = truth.alloc_count + truth.free_count - recorded.alloc_count - recorded.free_count;
    assert!(missing <= dropped, "{missing} calls are missing, {dropped} records were dropped");
    // Live blocks are resynced from the kernel's live set.
    assert_eq!(recorded.live_bytes, truth.live_bytes, "{:?}", report.health);
    target.assert_running();
}
