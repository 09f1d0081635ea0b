//! Checks for unreachable blocks, made by hand: their text, their JSON, and the schema of that.

use heapbpf_base::testing::schema::{check_reports, check_schema};
use heapbpf_ledger::model::{FrameId, Health, Loss, Profile, TypeEvidence, TypeName};
use profiler_common::stack::StackEnd;
use serde_json::Value;

use super::{check_golden, schema};
use crate::suppressions::Suppressions;
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::unreachable::text::{Style, write_text};
use crate::unreachable::{BlockTotals, HeapKnowledge, Leak, Precision, ReportFields, Unreachable, merge, write_json};

const TAKEN_UNIX_NS: u64 = 1_795_255_230_500_000_000;

fn sum(count: u64, bytes: u64) -> BlockTotals {
    BlockTotals { count, bytes }
}

fn named(name: &str, precision: Precision, known: BlockTotals, gaps: &[&str]) -> HeapKnowledge {
    let gaps = gaps.iter().map(|&gap| gap.to_owned()).collect();
    HeapKnowledge { name: name.to_owned(), precision, known, gaps }
}

fn leak(address: u64, size_bytes: u64, callsite: usize) -> Leak {
    let contents = (0..=255).take(size_bytes.min(32) as usize).collect();
    Leak { age_ns: Some(12_340_000_000), contents, ..Leak::single(address, size_bytes, callsite) }
}

fn typed(name: &str, evidence: TypeEvidence) -> Option<TypeName> {
    Some(TypeName { name: name.into(), evidence })
}

/// A program with three callsites: one of C, one of C++ with an inlined call, one of blocks without a stack.
fn profile() -> Profile {
    let mut frames = Frames::default();
    let cached = "/usr/bin/cached";
    let main = frames.placed("main", cached, "/src/main.c", 12);
    let insert = frames.placed("cache_insert", cached, "/src/cache.c", 42);
    let push = frames.inlined("std::vector<Foo>::push_back", cached, "/usr/include/c++/14/vector", 1280);
    let nameless = frames.nameless(Some(cached), Some(0x1234));
    let complete = Some(StackEnd::Complete);
    let callsites = vec![
        callsite(&[insert, main], complete, 0, taken(1, 2, 4096, 0)),
        callsite(&[push, nameless, main], complete, 0, taken(1, 2, 48, 0)),
        callsite(&[], None, 1, taken(1, 2, 64, 0)),
    ];
    let heaps = vec![profiles::heap("libc", &[("malloc", None)]), profiles::heap("jemalloc", &[("malloc", None)])];
    let health = Health { events: 7, lost: vec![(Loss::from("ring_full".to_owned()), 3)], ..Health::default() };
    profiles::profile(1, vec![profiles::target(900, "cached", cached, heaps, callsites)], frames, health)
}

/// Launched: all blocks were seen to be made.
fn launched(leaks: Vec<Leak>, limit: usize, leaked: BlockTotals, direct: BlockTotals) -> Unreachable {
    let (leaks, leak_count) = merge(leaks, limit);
    Unreachable {
        profile: profile(),
        taken_unix_ns: TAKEN_UNIX_NS,
        pause_ns: 12_300_000,
        method: "read",
        watched_ns: Some(30_500_000_000),
        at_exit: false,
        signal: None,
        unchecked_children: 0,
        known: sum(12_345, 1 << 20),
        leaked,
        direct,
        suppressed: BlockTotals::default(),
        heaps: vec![named("libc", Precision::Watched, sum(12_345, 1 << 20), &[])],
        caveats: Vec::new(),
        leaks,
        leak_count,
    }
}

fn none() -> Unreachable {
    launched(Vec::new(), 100, BlockTotals::default(), BlockTotals::default())
}

/// No heap could be walked.
fn nothing() -> Unreachable {
    let mut check = none();
    check.profile = profiles::nobody();
    check.known = BlockTotals::default();
    check.watched_ns = None;
    check.heaps = vec![named(
        "jemalloc",
        Precision::Partial,
        BlockTotals::default(),
        &["its bookkeeping is of no known version"],
    )];
    check
}

fn one() -> Unreachable {
    launched(vec![leak(0x7f00_1000_0010, 4096, 0)], 100, sum(1, 4096), sum(1, 4096))
}

/// A cycle of three that references a fourth.
fn cycle() -> Unreachable {
    let cycle = Leak { cycle_count: 3, referenced: sum(3, 120), ..leak(0x7f00_1000_0010, 24, 1) };
    let cycle = Leak { type_name: typed("Foo", TypeEvidence::Vtable), ..cycle };
    let mut check = launched(vec![cycle], 100, sum(4, 144), sum(1, 24));
    (check.at_exit, check.method) = (true, "fork");
    check.signal = Some("SIGABRT".to_owned());
    check.unchecked_children = 3;
    check
}

/// Many of one callsite, more entries than the limit, and some that are suppressed.
fn similar() -> Unreachable {
    let vector = |at: u64| Leak {
        type_name: typed("Foo", TypeEvidence::Stack),
        referenced: sum(2, 64),
        ..leak(0x7f00_2000_0000 + at * 0x40, 48, 1)
    };
    let mut leaks: Vec<Leak> = (0..1024).map(vector).collect();
    leaks.push(leak(0x7f00_1000_0010, 20, 0));
    let mut check = launched(leaks, 1, sum(3073, 114_708), sum(1025, 49_172));
    check.suppressed = sum(5, 5_000);
    check
}

/// Attached to: blocks without stacks, a heap that is known in part, gaps, and names and bytes that mean harm.
fn hostile() -> Unreachable {
    let mut check = launched(Vec::new(), 100, sum(3, 200), sum(3, 200));
    let frames = &mut check.profile.frames;
    frames[1].function = Some("two\nlines\u{1b}[31m\u{202e}".into());
    frames[1].file = Some("/src/\r\n#0 0x1 in main".into());
    frames[0].module = Some("\u{1b}]0;title\u{7}".into());
    check.profile.targets[0].facts.command = "\u{1b}[2J`rm`\n".to_owned();
    check.profile.interval_bytes = 4096;
    let unwatched =
        |at: u64, size_bytes: u64| Leak { watched: false, usable_size: true, age_ns: None, ..leak(at, size_bytes, 2) };
    let evil = "evil\n\u{1b}[0m<".to_owned() + &"a".repeat(10_000) + ">";
    let leaks = vec![
        Leak { contents: b"\x1b[31m\r\n\0\x7f\xff\"\\".to_vec(), ..unwatched(0x10, 12) },
        Leak { type_name: typed(&evil, TypeEvidence::Vtable), ..unwatched(0x40, 40) },
        leak(0x80, 148, 0),
        // Of another check.
        Leak { callsite: 99, contents: Vec::new(), ..leak(u64::MAX - 8, 1, 0) },
    ];
    (check.leaks, check.leak_count) = merge(leaks, 100);
    check.heaps = vec![
        named("li\u{1b}bc", Precision::Walked, sum(12_000, 1 << 19), &["arena at 0x7f00: its\nchunks make no sense"]),
        named("jemalloc", Precision::Partial, sum(345, 1 << 19), &[]),
    ];
    check.caveats = (0..12).map(|at| format!("page {at} could not be read\u{1b}[0m")).collect();
    check
}

fn all() -> [(&'static str, Unreachable); 6] {
    [
        ("none", none()),
        ("nothing", nothing()),
        ("one", one()),
        ("cycle", cycle()),
        ("similar", similar()),
        ("hostile", hostile()),
    ]
}

fn text(check: &Unreachable, style: Style) -> String {
    let mut out = Vec::new();
    write_text(check, style, &mut out).expect("a vector takes all bytes");
    String::from_utf8(out).expect("it is text")
}

fn json(check: &Unreachable, contents: bool) -> String {
    let mut out = Vec::new();
    write_json(check, contents, &mut out).expect("a vector takes all bytes");
    String::from_utf8(out).expect("it is text")
}

fn value(check: &Unreachable, contents: bool) -> Value {
    serde_json::from_str(&json(check, contents)).expect("it is JSON")
}

const PLAIN: Style = Style { width: None, colour: false, contents: true };

#[test]
fn goldens() {
    for (name, check) in all() {
        check_golden(&format!("unreachable/{name}.txt"), &text(&check, PLAIN));
        check_golden(&format!("unreachable/{name}.json"), &json(&check, true));
    }
}

#[test]
fn the_last_line_has_the_numbers_for_scripts() {
    let check = |check: &Unreachable, expected: &str| assert_eq!(text(check, PLAIN).lines().last(), Some(expected));
    check(&none(), "0 bytes in 0 allocations unreachable out of 1048576 bytes in 12345 allocations");
    check(&similar(), "114708 bytes in 3073 allocations unreachable out of 1048576 bytes in 12345 allocations");
    let narrow = Style { width: Some(80), colour: true, ..PLAIN };
    assert_eq!(text(&similar(), narrow).lines().last(), text(&similar(), PLAIN).lines().last());
}

#[test]
fn lines_fit_the_terminal_and_escapes_are_optional() {
    for (name, check) in all() {
        let plain = text(&check, Style { width: Some(80), ..PLAIN });
        assert!(!plain.chars().any(|c| c.is_control() && c != '\n'), "{name}: {plain:?}");
        let lines = plain.lines().count();
        // Frames are broken by the terminal: where a call is written matters more than a straight margin.
        let fit = |line: &str| line.chars().count() <= 80 || line.starts_with("    #");
        assert!(plain.lines().take(lines - 1).all(fit), "{name}: {plain}");
        let coloured = text(&check, Style { width: Some(80), colour: true, ..PLAIN });
        assert!(coloured.contains("\u{1b}[1m"), "{name}: {coloured:?}");
    }
}

#[test]
fn contents_are_optional() {
    let plain = text(&one(), Style { contents: false, ..PLAIN });
    assert!(!plain.contains("contents") && !plain.contains("00 01 02"), "{plain}");
    assert_eq!(value(&one(), false)["leaks"][0]["contents"], Value::Null);
    let contents = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    assert_eq!(value(&one(), true)["leaks"][0]["contents"], contents);
}

#[test]
fn similar_leaks_and_those_beyond_the_limit_are_counted() {
    let report = value(&similar(), true);
    assert_eq!(report["leak_count"], 2);
    assert_eq!(report["leaks"].as_array().map(Vec::len), Some(1));
    let leak = &report["leaks"][0];
    assert_eq!(leak["similar"]["count"], 1023);
    assert_eq!(leak["similar_referenced"]["bytes"], 1023 * 64);
    assert_eq!(leak["total_bytes"], 1024 * (48 + 64));
    assert!(text(&similar(), PLAIN).contains("1 more leak not shown"));
}

#[test]
fn a_suppression_matches_any_frame_of_a_stack_or_a_type() {
    let profile = profile();
    let check = |pattern: &str, callsite: usize, expected: bool| {
        let suppressions = Suppressions::parse(pattern).expect("a good line");
        let stack: &[FrameId] = &profile.targets[0].callsites[callsite].stack;
        assert_eq!(suppressions.matches_stack(stack, &profile.frames), expected, "{pattern} of {callsite}");
    };
    check("leak:^main$", 0, true);
    check("leak:cache.c", 0, true);
    check("leak:cache.c", 1, false);
    check("leak:*", 1, true);
    // There is no frame to match.
    check("leak:*", 2, false);
    let suppressions = Suppressions::parse("leak:^app::Cache").expect("a good line");
    assert!(suppressions.matches_name("app::Cache<int>") && !suppressions.matches_name("Cache"));
}

#[test]
fn every_report_matches_the_schema() {
    let leaks = check_schema::<ReportFields<'_>>("leaks", "heapbpf's JSON report of unreachable allocations");
    let reports: Vec<Value> = all().iter().flat_map(|(_, check)| [value(check, true), value(check, false)]).collect();
    let profiles = schema::report_schema();
    let with_verdict = &profiles["$defs"]["HealthAndVerdict"]["properties"];
    let health = leaks["$defs"]["Health"]["properties"].as_object().expect("properties by name");
    for (name, property) in health {
        assert_eq!(property, &with_verdict[name], "`{name}` is one shape in all reports");
    }
    let mut profiles = profiles.clone();
    profiles["$defs"]["Health"] = leaks["$defs"]["Health"].clone();
    check_reports(&leaks, &reports, &profiles);
    assert_eq!(leaks["$defs"]["Frame"], profiles["$defs"]["Frame"], "a frame is one shape in all reports");
}
