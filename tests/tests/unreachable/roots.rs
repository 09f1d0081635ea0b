//! One block that is referenced from a kind of root, leaked, and freed: the process is checked after each step.

use heapbpf_tests::target::Target;
use heapbpf_tests::unreachable::Sum;

use super::runs::{Launch, run_check};
use super::{CLEAN, LEAKS};
use heapbpf_tests::target::build;

/// Size of the block.
const BYTES: u64 = 256;
/// Usable size of glibc's smallest chunk for it.
const USABLE_BYTES: u64 = 264;

#[track_caller]
fn check(place: &str) {
    let mut target = Target::start("leaks/holder.c");
    target.run_command(&format!("hold {place}"));
    let held = run_check(&target, "", CLEAN);
    assert_eq!((held.leak_count, held.leaked), (0, Sum::default()));
    target.run_command(&format!("clear {place}"));
    let cleared = run_check(&target, "", LEAKS);
    assert_eq!((cleared.leak_count, cleared.leaked), (1, Sum::of(1, USABLE_BYTES)), "{:#?}", cleared.leaks);
    assert_eq!(cleared.known, held.known);
    target.run_command(&format!("free {place}"));
    let freed = run_check(&target, "", CLEAN);
    assert_eq!(freed.leak_count, 0);
    assert!(freed.known.count < held.known.count, "{:?}, {:?}", freed.known, held.known);
    target.exit(0);
}

#[test]
fn the_stack() {
    check("stack");
}

#[test]
fn a_global() {
    check("global");
}

#[test]
fn thread_local_storage() {
    check("tls");
}

#[test]
fn a_register() {
    check("register");
}

#[test]
fn all_kinds_of_roots_in_a_recorded_program() {
    let mut launch = Launch::start("", &build("leaks/holder.c"), &[]);
    let places = ["stack", "global", "tls", "register"];
    let each = |launch: &mut Launch, order: &str| {
        places.iter().for_each(|place| launch.target.run_command(&format!("{order} {place}")))
    };
    for order in ["hold", "clear", "free"] {
        each(&mut launch, order);
        launch.check_now();
    }
    each(&mut launch, "hold");
    assert_eq!(launch.exit(7), Some(7), "{}", launch.stderr());
    let files = ["check.0001.json", "check.0002.json", "check.0003.json", "check.json", "stderr"];
    assert_eq!(launch.files(), files);
    for clean in ["check.0001.json", "check.0003.json", "check.json"] {
        let check = launch.check(clean);
        assert_eq!((check.leak_count, check.leaked), (0, Sum::default()), "{clean}");
    }
    let lost = launch.check("check.0002.json");
    assert_eq!((lost.leak_count, lost.leaked), (4, Sum::of(4, 4 * BYTES)));
    for place in places {
        let leak = lost.leak_of(&format!("for_{place}"));
        assert_eq!((leak.size_bytes, leak.watched), (BYTES, true));
        assert!(leak.age_ns.is_some_and(|age| age < 120_000_000_000), "{leak:?}");
    }
}

#[test]
fn a_second_snapshot_has_the_same_leaks() {
    let mut target = Target::start("leaks/holder.c");
    target.run_command("hold global");
    target.run_command("clear global");
    let (first, second) = (run_check(&target, "--contents", LEAKS), run_check(&target, "--contents", LEAKS));
    assert_eq!((first.known, first.leaked, first.direct), (second.known, second.leaked, second.direct));
    let addresses = |check: &heapbpf_tests::unreachable::Check| -> Vec<u64> {
        check.leaks.iter().map(|leak| leak.address()).collect()
    };
    assert_eq!(addresses(&first), addresses(&second));
    assert_eq!(first.leaks[0].contents.as_deref(), Some("00".repeat(32).as_str()));
    target.run_command("free global");
    target.exit(0);
}
