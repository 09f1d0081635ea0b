//! Targets under seccomp: a forbidden system call would kill them, even if it is injected.

use heapbpf_tests::target::Target;

use super::{FAILED, LEAKS_FOUND, assert_unharmed, leaks, record_exactly};

/// Records, and checks for leaks with both kinds of snapshot.
fn check(confinement: &str) {
    let mut target = Target::start("confined.c");
    target.work(confinement);
    record_exactly(&mut target);
    let found = leaks(target.pid(), "").expect_code(LEAKS_FOUND);
    assert!(found.stdout.contains("25000 bytes in 25 allocations unreachable"), "{}", found.stdout);
    let refused = leaks(target.pid(), "--snapshot fork").expect_error(FAILED);
    assert!(refused.contains("seccomp") && refused.contains("--snapshot read"), "{refused}");
    assert_unharmed(&mut target);
}

#[test]
fn seccomp_strict_mode() {
    check("strict");
}

#[test]
fn a_seccomp_filter_that_kills() {
    check("filter");
}
