//! Modules that are loaded and unloaded while slots lead to stubs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::Counts;
use heapbpf_tests::stubs::slots_to_stubs;
use heapbpf_tests::target::Target;

use super::{EXACT, assert_passed, assert_unharmed, engine, finish, start, wait_until};

/// A library that calls the program's allocator, through slots of its own.
fn plugin(flags: &str) -> PathBuf {
    Recipe::of("plugin.c").flags(&format!("-shared -fPIC -DNO_HEAP {flags}")).build()
}

fn host() -> Target {
    Target::spawn(&mut Command::new(Recipe::of("host.c").libraries("-ldl").build()))
}

/// Slots of a library that lead to stubs.
#[track_caller]
fn slots_of(target: &Target, library: &Path) -> usize {
    let prefix = format!("{}+", library.display());
    slots_to_stubs(target.pid()).expect("it runs").iter().filter(|slot| slot.starts_with(&prefix)).count()
}

#[track_caller]
fn load(target: &mut Target, library: &Path) {
    target.work(&format!("load {}", library.display()));
}

#[track_caller]
fn wait_for_slots(target: &Target, library: &Path) {
    wait_until("its slots lead to stubs", || slots_of(target, library) > 0);
}

/// Before its slots lead to stubs, its calls meet the ordinary probe.
#[test]
fn a_library_loaded_later_is_counted_from_its_first_call() {
    for flags in ["", "-Wl,-z,now", "-fno-plt"] {
        let (mut target, library) = (host(), plugin(flags));
        let (heapbpf, session) = start(&target, EXACT);
        // So many that the library's first calls, which pass no stub, are few.
        target.work("keep 16 6000");
        load(&mut target, &library);
        target.work("use 100 30");
        wait_for_slots(&target, &library);
        target.work("use 100 3000");
        target.work("resize 500");
        target.work("free");
        target.work("copy 2000");
        let report = finish(&heapbpf, session, &mut target);
        let functions = report.process(target.pid()).exact_by_leaf();
        assert_eq!(functions["keeps"], Counts::kept(6000, 96_000), "{flags}");
        let freed = |count: u64, bytes: u64| Counts {
            free_count: count,
            free_bytes: bytes,
            live_count: 0,
            live_bytes: 0,
            ..Counts::kept(count, bytes)
        };
        assert_eq!(functions["plugin_keeps"], freed(3030, 303_000), "{flags}");
        assert_eq!(functions["plugin_resizes"], freed(3030, 3030 * 500), "{flags}");
        let copies = report.process(target.pid()).exact_under(|function| function == "plugin_copies");
        assert_eq!(copies, Counts::kept(2000, 200_000), "{flags}");
        let engine = engine(&report);
        assert_eq!(engine.targets, 1, "{flags}: {engine:?}");
        assert!(engine.passed_calls >= 6000 + 3000 + 2000, "{flags}: {engine:?}");
    }
}

#[test]
fn a_library_loaded_at_the_same_place_again_gets_stubs_again() {
    let (mut target, library) = (host(), plugin(""));
    let (heapbpf, session) = start(&target, EXACT);
    for _ in 0..4 {
        load(&mut target, &library);
        wait_for_slots(&target, &library);
        target.work("use 100 1000");
        target.work("free");
        target.work("unload");
    }
    let report = finish(&heapbpf, session, &mut target);
    let counts = report.process(target.pid()).exact_by_leaf()["plugin_keeps"];
    assert_eq!((counts.alloc_count, counts.free_count), (4000, 4000));
    assert_passed(&report, 1);
}

/// Returns the range of a library's mappings.
#[track_caller]
fn range_of(pid: u32, library: &Path) -> (u64, u64) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let lines = maps.lines().filter(|line| line.ends_with(library.to_str().expect("plain")));
    let ranges: Vec<(u64, u64)> = lines
        .map(|line| {
            let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
            (u64::from_str_radix(start, 16).expect("a number"), u64::from_str_radix(end, 16).expect("a number"))
        })
        .collect();
    (ranges.first().expect("it is mapped").0, ranges.last().expect("it is mapped").1)
}

/// Neither missing memory nor other memory at its place is written to.
#[test]
fn slots_of_an_unloaded_library_are_not_restored() {
    for is_occupied in [false, true] {
        let (mut target, library) = (host(), plugin(""));
        let (heapbpf, session) = start(&target, EXACT);
        load(&mut target, &library);
        wait_for_slots(&target, &library);
        target.work("use 100 30");
        target.work("free");
        let (begin, end) = range_of(target.pid(), &library);
        target.work("unload");
        if is_occupied {
            target.work(&format!("occupy {begin:x} {:x}", end - begin));
        }
        target.work("keep 10 20");
        let report = finish(&heapbpf, session, &mut target);
        target.work("intact");
        assert_eq!(report.process(target.pid()).exact_by_leaf()["keeps"], Counts::kept(20, 200));
        target.work("keep 10 20");
        assert_unharmed(&mut target);
    }
}

/// A library with an allocator of its own, whose functions have the names of the C library's.
#[test]
fn a_library_with_its_own_allocator_is_counted_in_its_own_heap() {
    let mut target = host();
    let library = Recipe::of("plugin.c").flags("-shared -fPIC -Wl,-Bsymbolic").build();
    let (heapbpf, mut session) = start(&target, &format!("-v {EXACT}"));
    load(&mut target, &library);
    session.wait_for("more hooks");
    target.work("use 100 30");
    target.work("keep 1000 15");
    let report = finish(&heapbpf, session, &mut target);
    let process = report.process(target.pid());
    assert_eq!(process.heap("plugin").totals.exact(), Counts::kept(30, 3000));
    assert_eq!(process.exact_by_leaf()["keeps"], Counts::kept(15, 15_000));
}

/// A program that copies the address of malloc while its slots are changed copies a stub's: that must work for ever, and its
/// calls count in every later session.
#[test]
fn copied_addresses_work_after_the_session() {
    let mut target = host();
    for (number, engine) in ["inline", "inline", "trap", "inline"].into_iter().enumerate() {
        let arguments = format!("--engine {engine} --interval 1 -o out.json");
        let (heapbpf, session) = start(&target, &arguments);
        if number == 0 {
            target.work("take");
        }
        target.work("call 100 500");
        target.work("keep 10 700");
        let report = finish(&heapbpf, session, &mut target);
        let functions = report.process(target.pid()).exact_by_leaf();
        assert_eq!(functions["calls_taken"], Counts::kept(500, 50_000), "session {number}, {engine}");
        assert_eq!(functions["keeps"], Counts::kept(700, 7000), "session {number}, {engine}");
        assert_eq!(target.work("call 100 500").site("calls_taken").counts.alloc_count, 500);
        target.assert_running();
    }
}
