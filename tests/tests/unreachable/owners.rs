//! Objects, containers and owners of C++ and Rust: one entry for each leaked one, with all blocks reachable from it,
//! and its type if it is known.

use std::process::Command;

use heapbpf_tests::target::{Target, build};
use heapbpf_tests::unreachable::{Check, Known, Sum, Truth};

use super::LEAKS;
use super::runs::{Launch, run_check, truth};

/// Checks it at its exit, recorded, and while it runs, without recording.
#[track_caller]
fn check(source: &str) -> (Truth, Check) {
    let program = build(source);
    let mut launch = Launch::start("", &program, &[]);
    let made = truth(&mut launch.target);
    launch.check_now();
    assert_eq!(launch.exit(0), Some(LEAKS), "{}", launch.stderr());
    let check = launch.check("check.0001.json");
    made.assert_entries(&check, Known::Watched);
    made.assert_entries(&launch.check("check.json"), Known::Watched);

    let mut target = Target::spawn(&mut Command::new(&program));
    let walked = run_check(&target, "", LEAKS);
    truth(&mut target).assert_entries(&walked, Known::Walked);
    let counts = |check: &Check| (check.leaked.count, check.direct.count, check.leak_count);
    assert_eq!(counts(&walked), counts(&check));
    (made, check)
}

#[track_caller]
fn assert_type(check: &Check, function: &str, expected: Option<(&str, &str)>) {
    let leak = check.leak_of(function);
    let told = leak.type_name.as_ref().map(|it| (it.name.as_str(), it.evidence.as_str()));
    assert_eq!(told, expected, "{function}: {:?}", leak.functions());
}

#[test]
fn of_cpp() {
    let (_, check) = check("leaks/containers.cpp");
    // Ten nodes, with a name and a list each: see `fill`.
    let table = check.leak_of("table_lost");
    assert_eq!(table.referenced.count, 30);
    // Nodes point to their parents, the topmost to the table itself.
    assert_eq!(table.cycle_count, 11);
    let circle = check.leak_of("owners_in_a_circle");
    assert_eq!((circle.cycle_count, circle.referenced), (2, Sum::of(1, circle.size_bytes)));
    assert_eq!(check.leak_count, 5, "{:#?}", check.leaks);
    assert_type(&check, "animal_lost", Some(("zoo::Animal", "vtable")));
    assert_type(&check, "pet_lost", Some(("zoo::Pet", "vtable")));
    assert_type(&check, "grains_lost", Some(("zoo::Grain", "stack")));
}

#[test]
fn of_rust() {
    let (_, check) = check("leaks/owners.rs");
    // The list, and twelve of its elements.
    let boxes = check.leak_of("boxes_lost");
    assert_eq!(boxes.referenced, Sum::of(13, 12 * 8 + 12 * 40));
    for function in ["links_lost", "peers_lost"] {
        let circle = check.leak_of(function);
        assert_eq!((circle.cycle_count, circle.referenced), (2, Sum::of(1, circle.size_bytes)));
    }
    assert_eq!((check.leak_count, check.leaked.count), (3, 18));
}
