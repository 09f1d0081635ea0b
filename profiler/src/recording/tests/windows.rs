//! Tests of a recording in windows: amounts add up to those of the whole, however late facts of targets are recorded.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;

use super::*;
use crate::recording::entry::{MappedRange, ModuleFacts, ThreadFacts};
use crate::recording::names::{self, RecordedNames};
use crate::recording::replay::late::LateFacts;
use crate::recording::span::{ReplayedSpan, Span, SpanError};
use crate::snapshot::{Scope, TargetState};

const CHILD: Pid = Pid(17);

/// Events of a child that allocates 100 bytes at 1.5 µs and 200 bytes at 2.5 µs, and exits after 4.5 µs.
fn events() -> Vec<(u64, Entry)> {
    let ledger = LedgerId(2);
    let child = |address, size_bytes, time| {
        let interval = Interval::EXACT;
        (time, Entry::Event(Event::Alloc(Allocation { pid: CHILD, interval, ..allocation(address, size_bytes, time) })))
    };
    let parent = |time| (time, Entry::Event(Event::Alloc(allocation(1000 + time, 1, time))));
    let step = |time, step| (time, Entry::Step(step));
    vec![
        parent(500),
        step(1400, Step::Forked { parent: LedgerId(1), ledger, child: CHILD, is_empty: true }),
        step(1400, Step::Joined { pid: CHILD, ledger }),
        child(1, 100, 1500),
        child(2, 200, 2500),
        parent(3500),
        parent(4500),
        step(4500, Step::Ended { ledger, closed: None }),
        parent(5500),
        parent(6500),
    ]
}

/// Returns the facts that a session writes about the child at one time.
fn facts(begun: bool) -> Vec<Entry> {
    let (ledger, module) = (LedgerId(2), ModuleId(0));
    let facts = TargetFacts::running(CHILD, "child", "child", Beginning::running(MonotonicNanos(1400)));
    let mapped =
        MappedRange { start: TargetAddr(0x1000), end: TargetAddr(0x2000), offset: FileOffset(0), module: Some(module) };
    let path = "/bin/child".to_owned();
    vec![
        fact(Fact::Module(ModuleFacts { id: module, path, build_id: None, file: None, code: Vec::new() })),
        Entry::Step(Step::Mapped { ledger, mappings: vec![mapped] }),
        fact(Fact::Target(ledger, TargetRecord { facts, begun, heaps: Vec::new() })),
        fact(Fact::Thread(ledger, ThreadFacts { tid: Tid(8), name: "eight".into() })),
    ]
}

/// Returns the entries of a recording in which facts of the child come at these times, at which its probes have been attached or
/// not.
fn entries(known: &[(u64, bool)]) -> Vec<Entry> {
    let mut later: Vec<(u64, Entry)> = events();
    for &(time, begun) in known {
        let at = later.partition_point(|(before, _)| *before <= time);
        later.splice(at..at, facts(begun).into_iter().map(|entry| (time, entry)));
    }
    beginning().into_iter().chain(later.into_iter().map(|(_, entry)| entry)).collect()
}

/// Passes the windows of 1 µs to `take`.
fn windows(known: &[(u64, bool)], mut take: impl FnMut(Option<&TargetState>)) {
    let mut late = LateFacts::default();
    let first = entries(known).into_iter().inspect(|entry| late.note(entry));
    let spanned = ReplayedSpan::read(first, Span::default(), false, &mut RecordedNames::new(())).expect("whole");
    let modules = names::find(spanned.modules(), false).modules;
    let again = entries(known).into_iter();
    ReplayedSpan::windows(again, Span::default(), 1000, false, &modules, &late, |window| {
        take(window.targets.iter().find(|target| target.facts.pid == CHILD));
        Ok::<(), SpanError>(())
    })
    .expect("there are few windows");
}

#[test]
fn windows_contain_what_a_target_allocated_before_its_first_facts() {
    for known in [
        &[(1400, true)][..],
        &[(2500, true)],
        &[(4500, true)],
        // The facts come after the window in which the child has exited.
        &[(6500, true)],
        &[(1400, false), (2500, false), (4500, true)],
    ] {
        let mut allocated = Vec::new();
        windows(known, |child| {
            let ledger = child.and_then(|child| Some((child, child.ledger_of(Scope::Window)?)));
            allocated.push(ledger.map(|(child, ledger)| {
                assert_eq!(&*child.threads[&Tid(8)], "eight", "{known:?}");
                assert_eq!(child.space.modules(), [ModuleId(0)], "{known:?}");
                ledger.totals.alloc_bytes.rounded()
            }));
        });
        // Steps have no time: the fork belongs to the window of the event before it.
        assert_eq!(allocated, [Some(0), Some(100), Some(200), Some(0), Some(0), None, None], "{known:?}");
    }
}
