//! Libraries that are loaded in turn at one address: a slot that was the allocator's becomes another function's.

use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::stubs::slots_to_stubs;
use heapbpf_tests::target::Target;

use super::{EXACT, assert_unharmed, start, wait_until};

const ROUNDS: usize = 5;

fn host() -> Target {
    Target::spawn(&mut Command::new(Recipe::of("reloading.c").flags("-rdynamic").libraries("-ldl").build()))
}

/// Both libraries, whose slots mean different functions.
fn libraries(flags: &str) -> [PathBuf; 2] {
    ["", "-DLARGE"].map(|size| Recipe::of("reloaded.c").flags(&format!("-shared -fPIC -O2 {size} {flags}")).build())
}

/// The target verifies each call.
#[track_caller]
fn check(flags: &str, how: &str, waits: bool) {
    let (mut target, libraries) = (host(), libraries(flags));
    let (_heapbpf, session) = start(&target, EXACT);
    for library in libraries.iter().cycle().take(2 * ROUNDS) {
        target.work(&format!("{how} {}", library.display()));
        target.work("call 100");
        if waits {
            let prefix = format!("{}+", library.display());
            let leads = |slots: Vec<String>| slots.iter().any(|slot| slot.starts_with(&prefix));
            wait_until("its slots lead to stubs", || slots_to_stubs(target.pid()).is_ok_and(leads));
        }
        target.work("call 100");
        target.work("unload");
    }
    // Stacks through a library that is gone may be cut.
    let outcome = session.interrupt();
    assert!(matches!(outcome.status.code(), Some(0 | 3)), "{outcome:?}");
    target.work(&format!("{how} {}", libraries[0].display()));
    target.work("call 100");
    assert_unharmed(&mut target);
}

#[test]
fn calls_of_libraries_at_one_address_reach_their_functions() {
    check("", "now", true);
}

#[test]
fn calls_of_lazily_bound_libraries_at_one_address_reach_their_functions() {
    check("-Wl,-z,lazy", "lazy", true);
}

#[test]
fn calls_of_libraries_with_read_only_slots_at_one_address_reach_their_functions() {
    check("-Wl,-z,now", "now", true);
}

/// The libraries have gone before heapbpf inspects them.
#[test]
fn calls_of_short_lived_libraries_reach_their_functions() {
    check("-Wl,-z,lazy", "lazy", false);
}
