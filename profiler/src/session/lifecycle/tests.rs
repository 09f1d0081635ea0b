//! Which changes are due when, and which make others void. No process is involved, but for one that is a target.

use std::process::Command;

use super::*;
use crate::units::MonotonicNanos;

fn lifecycle(grace: Duration) -> Lifecycle {
    Lifecycle {
        follow_forks: true,
        grace,
        live_max: 100,
        changes: VecDeque::new(),
        borrowers: BTreeMap::new(),
        beginners: Vec::new(),
        settling: BTreeMap::new(),
        looked: Instant::now(),
    }
}

fn exec(pid: u32, nanos: u64) -> Exec {
    Exec { pid: Pid(pid), by_other_thread: false, time: MonotonicNanos(nanos) }
}

/// Pids of the execs that are due, in order.
fn due(lifecycle: &mut Lifecycle) -> Vec<u32> {
    std::iter::from_fn(|| lifecycle.take_due())
        .map(|change| match change {
            Change::Began(exec, Origin::Executed, None) => exec.pid.0,
            _ => panic!("another change"),
        })
        .collect()
}

#[test]
fn without_grace_changes_are_due_at_once_and_in_order() {
    let (mut lifecycle, mut targets) = (lifecycle(Duration::ZERO), Targets::default());
    for pid in [3, 1, 2] {
        lifecycle.executed(exec(pid, 0), &mut targets);
    }
    assert!(lifecycle.is_waiting());
    assert_eq!(due(&mut lifecycle), [3, 1, 2]);
    assert!(!lifecycle.is_waiting());
    assert_eq!(lifecycle.next_due(), None);
}

#[test]
fn the_last_exec_of_a_process_is_the_one_that_counts() {
    for grace in [Duration::ZERO, Duration::from_secs(3600)] {
        let (mut lifecycle, mut targets) = (lifecycle(grace), Targets::default());
        for nanos in [1, 2, 3] {
            lifecycle.executed(exec(7, nanos), &mut targets);
        }
        assert!(lifecycle.awaits(Pid(7)) && !lifecycle.awaits(Pid(8)));
        assert_eq!(lifecycle.changes.len(), 1);
        assert!(matches!(lifecycle.changes[0].1, Change::Began(Exec { time: MonotonicNanos(3), .. }, _, None)));
        assert_eq!(lifecycle.next_due().is_some_and(|due| due > Instant::now()), !grace.is_zero());
        assert_eq!(due(&mut lifecycle), if grace.is_zero() { vec![7] } else { vec![] });
    }
}

#[test]
fn who_borrows_memory_and_ends_is_forgotten() {
    let (mut lifecycle, mut targets) = (lifecycle(Duration::ZERO), Targets::default());
    for pid in [4, 5, 6] {
        lifecycle.borrowers.insert(Pid(pid), Descent { requested: pid == 5 });
    }
    lifecycle.executed(exec(5, 1), &mut targets);
    assert!(matches!(lifecycle.take_due(), Some(Change::Began(_, _, Some(Descent { requested: true })))));
    assert_eq!(lifecycle.take_ended_borrowers(|pid| pid == Pid(4)), [Pid(4)]);
    assert_eq!(lifecycle.take_ended_borrowers(|pid| pid != Pid(6)), []);
}

#[test]
fn forks_of_strangers_change_nothing() {
    let (mut lifecycle, mut targets) = (lifecycle(Duration::ZERO), Targets::default());
    for shares_memory in [true, false] {
        let fork = Fork { parent: Pid(1), child: Pid(2), time: MonotonicNanos(0), shares_memory };
        lifecycle.forked(fork, &mut targets);
    }
    assert!(!lifecycle.is_waiting());
    assert_eq!(lifecycle.borrowers, BTreeMap::new());
}

#[test]
fn a_targets_child_that_shares_its_memory_is_kept_until_it_is_another_program() {
    let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
    let target = Target::open(Pid(child.id()), Origin::Running, None);
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    let mut target = target.expect("it can be read");
    target.requested = true;
    let (mut lifecycle, mut targets) = (lifecycle(Duration::ZERO), Targets::default());
    let fork = Fork { parent: target.pid, child: Pid(2), time: MonotonicNanos(0), shares_memory: true };
    targets.add(target);
    lifecycle.follow_forks = false;
    lifecycle.forked(fork, &mut targets);
    assert_eq!(lifecycle.borrowers, BTreeMap::new());
    lifecycle.follow_forks = true;
    lifecycle.forked(fork, &mut targets);
    assert_eq!(lifecycle.borrowers, BTreeMap::from([(Pid(2), Descent { requested: true })]));
    assert!(!lifecycle.is_waiting());
    lifecycle.executed(exec(2, 1), &mut targets);
    assert_eq!(lifecycle.borrowers, BTreeMap::new());
    assert!(matches!(lifecycle.take_due(), Some(Change::Began(_, _, Some(Descent { requested: true })))));
}

#[test]
fn who_has_just_begun_is_looked_at_until_it_is_settled() {
    let mut lifecycle = lifecycle(Duration::ZERO);
    lifecycle.settle(Pid(5));
    assert!(!lifecycle.is_overdue(Pid(5)) && lifecycle.is_overdue(Pid(6)));
    assert!(lifecycle.next_due().is_some());
    assert_eq!(lifecycle.take_settling(true), [Pid(5)]);
    lifecycle.settled(Pid(5));
    assert_eq!(lifecycle.take_settling(true), []);
    assert_eq!(lifecycle.next_due(), None);
}
