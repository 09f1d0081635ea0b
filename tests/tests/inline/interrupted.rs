//! Threads that a signal has interrupted in a stub, and whose handler returns there after heapbpf has detached.

use std::process::Command;

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::Target;

use super::{assert_unharmed, start};

/// Offsets from the start of a stub: behind its first instruction, and anywhere.
const OFFSETS: [(u64, u64); 2] = [(5, 8), (1, 63)];
/// Threads held at a time, of eight.
const HELD: usize = 2;

#[test]
fn threads_return_into_stubs_after_the_session() {
    let mut target = Target::spawn(&mut Command::new(Recipe::of("held_in_stub.c").libraries("-lrt").build()));
    for (from, to) in OFFSETS {
        let (_heapbpf, session) = start(&target, "--engine inline --interval 64KiB -o out.json");
        target.work(&format!("catch {HELD} {from} {to}"));
        let _ = session.interrupt().expect_counted();
        target.work("release");
        assert_unharmed(&mut target);
    }
    target.exit(0);
}
