//! Many leaks: cycles and lists are one entry, and so are leaks of one callsite; the largest are listed, and all are
//! counted.

use std::collections::BTreeSet;
use std::process::Command;

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build};
use heapbpf_tests::unreachable::{Check, Known, Sum};

use super::LEAKS;
use super::runs::{Launch, run_check, run_check_with_output, truth};

/// Starts a program and checks it at its exit; also returns its output.
#[track_caller]
fn launch(arguments: &[&str], options: &str) -> Check {
    let mut launch = Launch::start(options, &build("leaks/crowds.c"), arguments);
    assert_eq!(launch.exit(0), Some(LEAKS), "{}", launch.stderr());
    launch.check("check.json")
}

#[test]
fn a_cycle_of_a_thousand_is_one_leak() {
    let expected = |check: &Check, bytes: u64| {
        let [leak] = check.leaks.as_slice() else { panic!("{:#?}", check.leaks) };
        assert_eq!((leak.cycle_count, leak.size_bytes), (1000, bytes));
        assert_eq!(leak.referenced, Sum::of(999, 999 * bytes));
        assert_eq!((check.leak_count, check.leaked), (1, Sum::of(1000, 1000 * bytes)));
        assert_eq!((check.direct, check.indirect), (Sum::of(1, bytes), Sum::of(999, 999 * bytes)));
        assert_eq!((leak.similar, leak.total_bytes), (Sum::default(), 1000 * bytes));
    };
    expected(&launch(&["circle", "1000"], ""), 88);
    let mut target = Target::spawn(Command::new(build("leaks/crowds.c")).args(["circle", "1000"]));
    let truth = truth(&mut target);
    let check = run_check(&target, "", LEAKS);
    truth.assert_is(&check, Known::Walked);
    expected(&check, 88);
}

#[test]
fn a_list_of_a_hundred_thousand_is_one_leak() {
    let check = launch(&["listed", "100000"], "");
    let [leak] = check.leaks.as_slice() else { panic!("{:#?}", check.leaks) };
    assert_eq!((leak.cycle_count, leak.referenced), (1, Sum::of(99_999, 99_999 * 24)));
    assert_eq!((check.leaked, check.direct), (Sum::of(100_000, 2_400_000), Sum::of(1, 24)));
}

#[test]
fn a_hundred_thousand_of_one_callsite_are_one_leak() {
    let check = launch(&["alike", "100000"], "");
    let [leak] = check.leaks.as_slice() else { panic!("{:#?}", check.leaks) };
    assert_eq!((leak.size_bytes, leak.similar), (40, Sum::of(99_999, 99_999 * 40)));
    assert_eq!((leak.referenced, leak.similar_referenced), (Sum::default(), Sum::default()));
    assert_eq!((check.leak_count, check.leaked, check.direct), (1, Sum::of(100_000, 4_000_000), check.leaked));
}

#[test]
fn leaks_without_stacks_are_grouped_by_size() {
    let mut target = Target::spawn(Command::new(build("leaks/crowds.c")).args(["alike", "100000"]));
    let (check, outcome) = run_check_with_output(&target, "", LEAKS);
    let [leak] = check.leaks.as_slice() else { panic!("{}", check.leak_list()) };
    assert_eq!((leak.size_bytes, leak.usable_size, leak.similar), (40, true, Sum::of(99_999, 99_999 * 40)));
    assert_eq!((check.leak_count, check.leaked, check.direct), (1, Sum::of(100_000, 4_000_000), check.leaked));
    let made: BTreeSet<u64> = truth(&mut target).lost();
    assert_eq!(leak.addresses(), made.into_iter().take(101).collect(), "the first by address");
    assert!(outcome.stdout.contains(&format!("40 usable bytes unreachable at {}", leak.address)), "{}", outcome.stdout);
}

/// The addresses of slabs, and so of their first blocks, are in jemalloc's descriptions of them.
#[test]
fn all_leaks_in_slabs_of_jemalloc_are_found() {
    let program = Recipe::of("leaks/crowds.c").libraries("-ljemalloc").build();
    for snapshot in ["read", "fork"] {
        let mut target = Target::spawn(Command::new(&program).args(["alike", "10000"]));
        let check = run_check(&target, &format!("--snapshot {snapshot}"), LEAKS);
        assert_eq!((check.leaked, check.heap("jemalloc").gaps.len()), (Sum::of(10_000, 480_000), 0));
        assert_eq!(truth(&mut target).lost().len(), 10_000);
    }
}

#[test]
fn leaks_in_a_jemalloc_with_large_blocks_alone_are_found() {
    let program = Recipe::of("leaks/crowds.c").libraries("-ljemalloc").build();
    let target = Target::spawn(Command::new(&program).args(["large", "300"]));
    let check = run_check(&target, "", LEAKS);
    assert_eq!(
        (check.leaked.count, check.heap("jemalloc").precision.as_str()),
        (300, "walked"),
        "{}",
        check.leak_list()
    );
}

#[test]
fn of_a_thousand_callsites_a_hundred_are_listed() {
    let check = launch(&["functions"], "");
    assert_eq!((check.leak_count, check.leaks.len(), check.leaked), (1024, 100, Sum::of(1024, 1024 * 128)));
    assert!(check.leaks.iter().all(|leak| leak.functions()[0].starts_with("f_") && leak.total_bytes == 128));
    let check = launch(&["functions"], "--limit 2000");
    let mut functions: Vec<&str> = check.leaks.iter().map(|leak| leak.functions()[0]).collect();
    functions.sort_unstable();
    functions.dedup();
    assert_eq!((check.leak_count, functions.len()), (1024, 1024));
    assert_eq!(launch(&["functions"], "--limit 0").leaks.len(), 0);
}
