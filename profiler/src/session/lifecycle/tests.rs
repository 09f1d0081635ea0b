//! Tests of due times of changes, and of which changes supersede others.

use std::process::Command;

use heapbpf_base::ids::LedgerId;
use heapbpf_base::units::MonotonicNanos;

use super::*;
use crate::process::selection::Selection;
use crate::session::target::Target;

fn exec(pid: u32, nanos: u64) -> Exec {
    Exec { pid: Pid(pid), by_other_thread: false, time: MonotonicNanos(nanos) }
}

/// Returns the pids of the execs that are due, in order.
fn due(lifecycle: &mut Lifecycle) -> Vec<u32> {
    std::iter::from_fn(|| lifecycle.take_due(|_| true))
        .map(|change| match change {
            ProcessChange::Started(exec, Origin::Executed, None) => exec.pid.0,
            _ => panic!("another change"),
        })
        .collect()
}

#[test]
fn without_grace_changes_are_due_at_once_and_in_order() {
    let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
    for pid in [3, 1, 2] {
        lifecycle.executed(exec(pid, 0), &mut processes, Duration::ZERO);
    }
    assert!(lifecycle.is_waiting());
    assert!(matches!(
        lifecycle.take_due(|pid| pid == Pid(2)),
        Some(ProcessChange::Started(Exec { pid: Pid(2), .. }, ..))
    ));
    assert!(lifecycle.take_due(|pid| pid == Pid(2)).is_none());
    assert_eq!(due(&mut lifecycle), [3, 1]);
    assert!(!lifecycle.is_waiting());
    assert_eq!(lifecycle.next_due(), None);
}

#[test]
fn the_last_exec_of_a_process_supersedes_earlier_ones() {
    for grace in [Duration::ZERO, Duration::from_secs(3600)] {
        let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
        for nanos in [1, 2, 3] {
            lifecycle.executed(exec(7, nanos), &mut processes, grace);
        }
        assert!(lifecycle.awaits(Pid(7)) && !lifecycle.awaits(Pid(8)));
        assert_eq!(lifecycle.changes.len(), 1);
        assert!(matches!(
            lifecycle.changes[0].1,
            ProcessChange::Started(Exec { time: MonotonicNanos(3), .. }, _, None)
        ));
        assert_eq!(lifecycle.next_due().is_some_and(|due| due > Instant::now()), !grace.is_zero());
        assert_eq!(due(&mut lifecycle), if grace.is_zero() { vec![7] } else { vec![] });
    }
}

#[test]
fn exited_vfork_children_are_removed() {
    let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
    for pid in [4, 5, 6] {
        lifecycle.vfork_children.insert(Pid(pid), ParentTarget { requested: pid == 5 });
    }
    lifecycle.executed(exec(5, 1), &mut processes, Duration::ZERO);
    assert!(matches!(
        lifecycle.take_due(|_| true),
        Some(ProcessChange::Started(_, _, Some(ParentTarget { requested: true })))
    ));
    assert_eq!(lifecycle.take_exited_vfork_children(|pid| pid == Pid(4)), [Pid(4)]);
    assert_eq!(lifecycle.take_exited_vfork_children(|pid| pid != Pid(6)), []);
}

/// The kernel side reports forks of targets only. A target can end before its last forks are read.
#[test]
fn children_of_ended_targets_are_followed() {
    let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
    let mut fork = |shares_memory| {
        let fork = Fork { parent: Pid(1), child: Pid(2), time: MonotonicNanos(5), shares_memory };
        lifecycle.forked(fork, &mut processes, &SessionConfig::default());
        (lifecycle.take_due(|_| true), lifecycle.vfork_children.len())
    };
    assert!(matches!(fork(true), (None, 1)), "it runs in its parent's memory");
    let (Some(ProcessChange::Started(started, origin, parent)), _) = fork(false) else { panic!("it is not followed") };
    assert_eq!((started.pid, started.time, origin), (Pid(2), MonotonicNanos(5), Origin::Forked(Pid(1))));
    assert!(parent.is_some_and(|parent| parent.requested));
}

/// A chain of programs, each started by `vfork`, of which none is a target yet when it starts the next one.
#[test]
fn children_of_vfork_are_followed_while_their_parents_exec_is_pending() {
    let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
    let config = SessionConfig::default();
    let grace = Duration::from_secs(100);
    let time = MonotonicNanos(0);
    let pending = Exec { pid: Pid(1), by_other_thread: false, time };
    let started = ProcessChange::Started(pending, Origin::Executed, Some(ParentTarget { requested: true }));
    lifecycle.changes.push_back((Instant::now() + grace, started));
    for (parent, child) in [(1, 2), (2, 3)] {
        let fork = Fork { parent: Pid(parent), child: Pid(child), time, shares_memory: true };
        lifecycle.forked(fork, &mut processes, &config);
        lifecycle.executed(exec(child, 1), &mut processes, grace);
        let (_, change) = lifecycle.changes.back().expect("it is pending");
        assert!(
            matches!(change, ProcessChange::Started(exec, Origin::Executed, Some(ParentTarget { requested: true }))
            if exec.pid == Pid(child))
        );
    }
}

/// A program that matches a pattern makes no target of what it executes, also while its own exec is pending.
#[test]
fn children_of_a_pending_match_are_not_requested() {
    let (mut lifecycle, processes) = (Lifecycle::new(), ProcessTable::default());
    let matched = Exec { pid: Pid(1), by_other_thread: false, time: MonotonicNanos(0) };
    lifecycle.changes.push_back((Instant::now(), ProcessChange::Started(matched, Origin::Executed, None)));
    assert_eq!(lifecycle.parent_target(Pid(1), &processes), ParentTarget { requested: false });
}

#[test]
fn vfork_children_of_targets_are_kept_until_they_exec() {
    let mut child = Command::new("sleep").arg("100").spawn().expect("sleep starts");
    let target = Target::open(Pid(child.id()), Origin::Running, None);
    child.kill().expect("it is our child");
    child.wait().expect("it is our child");
    let mut target = target.expect("it can be read");
    target.requested = true;
    let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
    let fork = Fork { parent: target.pid, child: Pid(2), time: MonotonicNanos(0), shares_memory: true };
    processes.add(target);
    lifecycle.forked(fork, &mut processes, &SessionConfig { follow_forks: false, ..SessionConfig::default() });
    assert_eq!(lifecycle.vfork_children, BTreeMap::new());
    lifecycle.forked(fork, &mut processes, &SessionConfig::default());
    assert_eq!(lifecycle.vfork_children, BTreeMap::from([(Pid(2), ParentTarget { requested: true })]));
    assert!(!lifecycle.is_waiting());
    lifecycle.executed(exec(2, 1), &mut processes, Duration::ZERO);
    assert_eq!(lifecycle.vfork_children, BTreeMap::new());
    assert!(matches!(
        lifecycle.take_due(|_| true),
        Some(ProcessChange::Started(_, _, Some(ParentTarget { requested: true })))
    ));
}

/// A process whose exec has failed, or that was to call a function in the memory of its parent.
#[test]
fn processes_that_end_in_the_memory_of_others_are_counted_once() {
    let (mut lifecycle, mut processes) = (Lifecycle::new(), ProcessTable::default());
    let config = SessionConfig::default();
    let fork =
        |child, shares_memory| Fork { parent: Pid(1), child: Pid(child), time: MonotonicNanos(0), shares_memory };
    for child in [2, 3, 4, 5] {
        lifecycle.forked(fork(child, true), &mut processes, &config);
    }
    lifecycle.executed(exec(2, 1), &mut processes, Duration::ZERO);
    assert_eq!(lifecycle.take_exited_vfork_children(|pid| pid == Pid(3)), [Pid(3)]);
    assert_eq!(lifecycle.borrowed_count, 1);
    // Its exec is read after its end was found.
    lifecycle.executed(exec(3, 1), &mut processes, Duration::ZERO);
    assert_eq!(lifecycle.borrowed_count, 0);
    // The number is another process's now, which shares no memory.
    lifecycle.forked(fork(4, false), &mut processes, &config);
    assert_eq!(lifecycle.take_exited_vfork_children(|_| true), [Pid(5)]);
    assert_eq!(lifecycle.take_exited_vfork_children(|_| true), []);
    assert_eq!(lifecycle.borrowed_count, 2);
}

#[test]
fn new_processes_are_polled_until_they_are_hooked() {
    let mut lifecycle = Lifecycle::new();
    lifecycle.poll_for_hooks(Pid(5));
    assert!(!lifecycle.is_overdue(Pid(5)) && lifecycle.is_overdue(Pid(6)));
    assert!(lifecycle.next_due().is_some());
    assert_eq!(lifecycle.due_for_hooks(true), [Pid(5)]);
    lifecycle.stop_polling(Pid(5));
    assert_eq!(lifecycle.due_for_hooks(true), []);
    assert_eq!(lifecycle.next_due(), None);
}

#[test]
fn scans_repeat_where_processes_must_grow_to_match() {
    for (all, min_rss_bytes, expected) in [(true, 1, true), (true, 0, false), (false, 1, false)] {
        let selection = Selection { all, min_rss_bytes, ..Selection::default() };
        let config = SessionConfig { selection, ..SessionConfig::default() };
        let mut lifecycle = Lifecycle::new();
        assert!(!lifecycle.is_scan_due(&config));
        lifecycle.next_scan = Instant::now();
        assert_eq!(lifecycle.is_scan_due(&config), expected, "{all} {min_rss_bytes}");
        assert!(!lifecycle.is_scan_due(&config));
    }
}

#[test]
fn children_that_share_memory_are_found_once() {
    let mut lifecycle = Lifecycle::new();
    let long_ago = Instant::now().checked_sub(2 * BORROWED_MAX).expect("this machine has run for longer");
    let later = Instant::now() + Duration::from_secs(3600);
    for (child, of, since) in [(4, 1, long_ago), (5, 1, later), (6, 2, long_ago)] {
        lifecycle.borrowers.insert(Pid(child), Borrower { since, ..Borrower::of(Pid(of)) });
    }
    let parent_of_6_waits = |_: Pid, of: Pid| of == Pid(1);
    assert_eq!(lifecycle.take_sharing(parent_of_6_waits), [], "seen once");
    assert_eq!(lifecycle.take_sharing(parent_of_6_waits), [(Pid(4), Pid(1))]);
    assert_eq!(lifecycle.take_sharing(|_, _| true), []);
    assert_eq!(lifecycle.take_sharing(parent_of_6_waits), [], "it waits after all");
    assert_eq!(lifecycle.take_sharing(|_, _| true), []);
    assert_eq!(lifecycle.take_sharing(|_, _| true), [(Pid(6), Pid(2))]);
    assert_eq!((lifecycle.sharing_count(), lifecycle.borrowers.len()), (2, 1));
}

/// A pass that has thinned blocks of a process knows those of the program that ran when it began.
#[test]
fn the_oldest_ledger_of_replaced_programs_is_found() {
    let mut lifecycle = Lifecycle::new();
    for (pid, ledger) in [(1, 10), (2, 20), (1, 11)] {
        let mut before = Box::new(Ledger::new(Pid(pid)));
        before.record_as(LedgerId(ledger));
        lifecycle.changes.push_back((Instant::now(), ProcessChange::Executed(exec(pid, 1), before)));
    }
    let found: Vec<_> = lifecycle.replaced().into_iter().map(|(pid, ledger)| (pid, ledger.id())).collect();
    assert_eq!(found, [(Pid(1), Some(LedgerId(10))), (Pid(2), Some(LedgerId(20)))]);
}
