//! Checks of synthetic processes.

use std::time::Duration;

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::{ModuleId, Pid, Tid};
use heapbpf_base::memory::Copied;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Beginning, Health, Leaks, Others};
use heapbpf_linux::proc::maps::RegionKind;

use super::heap_snapshot::Coverage;
use super::*;
use crate::collect::{Collected, ThreadState};
use crate::object::module::{Module, Modules};
use crate::process::address_space::AddressSpace;
use crate::snapshot::{Base, TargetFacts};
use crate::symbolize::ResolvedFrame;
use crate::walk::scene::WalkedBlock;

/// Checks a process whose memory stays readable.
fn check(heap_snapshot: HeapSnapshot, plan: &Plan, resolver: &dyn Resolve) -> Unreachable {
    super::check(heap_snapshot, plan, resolver).expect("readable")
}

/// Address of a module's data; the heap's follows.
const DATA: u64 = 0x1_0000;
const HEAP: u64 = 0x10_0000;
const HEAP_BYTES: u64 = 0x1000;

const NOW: MonotonicNanos = MonotonicNanos(100 << 24);

/// A resolver that resolves nothing.
struct Nameless;

impl Resolve for Nameless {
    fn resolve(&self, _: ModuleId, _: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
        offsets.iter().map(|_| Arc::default()).collect()
    }
}

fn region(start: u64, size_bytes: u64) -> Region {
    Region::synthetic(start, size_bytes, RegionKind::Anonymous { name: None })
}

/// Memory that contains these words, and zeros elsewhere.
fn memory(words: &[(u64, u64)]) -> Copied {
    let piece = |start: u64| {
        let mut bytes = vec![0; usize::try_from(HEAP_BYTES).expect("small")];
        for (address, word) in words.iter().filter(|(address, _)| (start..start + HEAP_BYTES).contains(address)) {
            let at = usize::try_from(address - start).expect("small");
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        (TargetAddr(start), bytes.into_boxed_slice())
    };
    Copied::new([piece(DATA), piece(HEAP)])
}

fn walk_of(blocks: &[(u64, u64)]) -> Walk {
    let block = |&(start, size_bytes): &(u64, u64)| WalkedBlock { start: TargetAddr(start), size_bytes };
    let areas = vec![TargetAddr(HEAP)..TargetAddr(HEAP + HEAP_BYTES)];
    Walk { heap: "libc", blocks: blocks.iter().map(block).collect(), areas, ..Walk::default() }
}

/// Returns a callsite with one frame, whose address, and so its name, is 0x100 plus the callsite's number.
fn callsite(index: u32) -> CallsiteSnapshot {
    let frames: Arc<[TargetAddr]> = Arc::new([TargetAddr(0x100 + u64::from(index))]);
    CallsiteSnapshot {
        index,
        stack: Some(Stack { frames, end: StackEnd::Complete }),
        heap: HeapId(0),
        thread: None,
        inherited: false,
        totals: Totals::default(),
        details: Details::default(),
    }
}

/// A process with four callsites.
fn snapshot(is_complete: bool) -> Snapshot {
    let pid = Pid(7);
    let ledger = TargetSnapshot {
        pid,
        totals: Totals::default(),
        heaps: vec![(HeapId(0), Totals::default())],
        callsites: (0..4).map(callsite).collect(),
    };
    let beginning = Beginning { from_first_call: is_complete, ..Beginning::running(NOW) };
    let state = TargetState {
        facts: TargetFacts::running(pid, "synthetic", "synthetic", beginning),
        space: Arc::new(AddressSpace::new(pid)),
        threads: Arc::default(),
        heaps: vec![HeapFacts {
            id: HeapId(0),
            name: "libc".to_owned(),
            interval_bytes: 1,
            interval_bytes_max: 1,
            hooks: Vec::new(),
        }],
        ledger: Arc::new(ledger),
        growths: Leaks::default(),
        curve: Vec::new(),
        timeline: Arc::default(),
        memory: Arc::default(),
        until: NOW,
        older: None,
        base: Base::Beginning,
    };
    Snapshot {
        interval_bytes: 1,
        started_unix_ns: 0,
        started_monotonic_ns: 0,
        ended_unix_ns: 5,
        older_than: None,
        window: None,
        targets: vec![state],
        others: Others::default(),
        modules: Modules::default(),
        health: Health::default(),
    }
}

fn heap_snapshot(memory: Copied, watched: &[(u64, u64, u32)], walks: Vec<Walk>, is_complete: bool) -> HeapSnapshot {
    let thread = ThreadState {
        tid: Tid(7),
        registers: Vec::new(),
        instruction: TargetAddr(0),
        stack_pointer: TargetAddr(0),
        thread_pointer: TargetAddr(0),
        in_syscall: true,
        exit_status: None,
    };
    let block = |&(address, size_bytes, callsite): &(u64, u64, u32)| {
        RecordedBlock::new(TargetAddr(address), size_bytes, callsite, MonotonicNanos(90 << 24))
    };
    HeapSnapshot {
        collected: Collected {
            pid: Pid(7),
            threads: vec![thread],
            regions: vec![region(DATA, HEAP_BYTES), region(HEAP, HEAP_BYTES)],
            memory: Box::new(memory),
            kernel_words: Vec::new(),
            pause: Duration::from_millis(3),
            method: Method::Read,
            unread_bytes: 0,
        },
        walks,
        state: snapshot(is_complete),
        now: NOW,
        recorded: watched.iter().map(block).collect(),
        coverage: Some(Coverage { duration_ns: 9, is_complete }),
        at_exit: false,
        unchecked_children: 0,
    }
}

fn plan(suppressions: &str) -> Plan {
    let suppressions = Suppressions::parse(suppressions).expect("good lines");
    Plan { limit: 100, suppressions, with_contents: true, trim: Trim::NOTHING }
}

/// Returns of each leak the address, the bytes, the number of similar leaks, and whether its allocation was recorded.
fn told(found: &Unreachable) -> Vec<(u64, u64, u64, bool)> {
    found.leaks.iter().map(|leak| (leak.address, leak.size_bytes, leak.similar.count, leak.watched)).collect()
}

#[test]
fn blocks_reachable_from_data_are_live_and_others_are_reported() {
    let memory = memory(&[(DATA + 8, HEAP + 0x10), (HEAP + 0x10, HEAP + 0x108)]);
    let watched = [(HEAP + 0x200, 32, 2), (HEAP + 0x10, 16, 0), (HEAP + 0x100, 16, 1), (HEAP + 0x300, 8, 2)];
    let found = check(heap_snapshot(memory, &watched, Vec::new(), true), &plan(""), &Nameless);
    assert_eq!(told(&found), [(HEAP + 0x200, 32, 1, true)], "the other one is of the same callsite");
    assert_eq!((found.known, found.leaked), (BlockTotals { count: 4, bytes: 72 }, BlockTotals { count: 2, bytes: 40 }));
    assert_eq!(found.leaks[0].age_ns, Some((10 << 24) - (1 << 23)), "to the middle of a tick");
    assert_eq!(found.profile.targets[0].totals.live_bytes().rounded(), 40);
    assert_eq!(found.heaps[0].precision, Precision::Watched);
    assert_eq!(found.heaps[0].gaps.len(), 1, "nobody reads its bookkeeping");
}

#[test]
fn free_memory_of_walked_heaps_is_not_a_root() {
    // This word is in no block, and points at one.
    let words = [(HEAP + 0x800, HEAP + 0x10)];
    let watched = [(HEAP + 0x10, 16, 0)];
    let found = check(heap_snapshot(memory(&words), &watched, Vec::new(), true), &plan(""), &Nameless);
    assert_eq!(told(&found), [], "its state is unknown");
    let walks = vec![walk_of(&[(HEAP + 0x10, 24)])];
    let found = check(heap_snapshot(memory(&words), &watched, walks, true), &plan(""), &Nameless);
    assert_eq!(told(&found), [(HEAP + 0x10, 16, 0, true)]);
}

#[test]
fn walked_blocks_have_no_stacks_and_freed_ones_are_left_out() {
    let watched = [(HEAP + 0x10, 16, 0), (HEAP + 0x400, 16, 1)];
    let walks = vec![walk_of(&[(HEAP + 0x10, 24), (HEAP + 0x100, 40)])];
    let found = check(heap_snapshot(memory(&[]), &watched, walks, false), &plan(""), &Nameless);
    assert_eq!(told(&found), [(HEAP + 0x100, 40, 0, false), (HEAP + 0x10, 16, 0, true)]);
    assert_eq!(found.heaps[0].precision, Precision::Walked);
    assert_eq!(found.caveats, ["1 blocks were freed, alone or with their heap, without a record, and are left out"]);
    let names: Vec<_> = found.profile.frames.iter().filter_map(|frame| frame.function.as_deref()).collect();
    assert_eq!(names, [UNRECORDED]);
}

#[test]
fn limitations_of_the_result_are_listed() {
    let mut heap_snapshot = heap_snapshot(memory(&[]), &[(HEAP + 0x10, 16, 0)], Vec::new(), false);
    heap_snapshot.state.health.add_loss(heapbpf_ledger::model::Loss::RingFull, 7);
    heap_snapshot.collected.unread_bytes = 4096;
    let found = check(heap_snapshot, &plan(""), &Nameless);
    let starts: Vec<_> = found.caveats.iter().map(|caveat| caveat.split(' ').next().expect("words")).collect();
    assert_eq!(starts, ["7", "4096"], "{:?}", found.caveats);
    assert_eq!(found.heaps[0].precision, Precision::Partial);
}

#[test]
fn blocks_reachable_from_a_suppressed_one_are_suppressed() {
    let memory = memory(&[(HEAP + 0x10, HEAP + 0x100)]);
    let watched = [(HEAP + 0x10, 16, 0), (HEAP + 0x100, 32, 1), (HEAP + 0x200, 8, 2)];
    let found = check(heap_snapshot(memory, &watched, Vec::new(), true), &plan("leak:nothing"), &Nameless);
    assert_eq!(told(&found).len(), 2);
    assert_eq!(found.leaks[0].referenced, BlockTotals { count: 1, bytes: 32 });
    assert_eq!((found.leaked.count, found.direct.count, found.suppressed), (3, 2, BlockTotals::default()));
}

#[test]
fn blocks_of_removed_heaps_are_left_out_and_heaps_add_up() {
    // The second block lies where nothing is mapped, the third in the first.
    let watched = [(HEAP + 0x10, 32, 0), (HEAP + 0x10_0000, 16, 1), (HEAP + 0x18, 8, 1), (HEAP + 0x100, 0, 1)];
    let found = check(heap_snapshot(memory(&[]), &watched, Vec::new(), true), &plan(""), &Nameless);
    assert_eq!(found.known.count, 2);
    assert_eq!(
        found.heaps.iter().map(|heap| heap.known).fold(BlockTotals::default(), |all, heap| all + heap),
        found.known
    );
    assert_eq!(found.leaked, found.known);
    assert_eq!(found.profile.targets[0].totals.live_bytes().rounded(), found.leaked.bytes);
    assert_eq!(found.caveats.len(), 2, "{:?}", found.caveats);
}

#[test]
fn blocks_referenced_by_the_kernel_are_reachable() {
    let watched = [(HEAP + 0x10, 32, 0), (HEAP + 0x100, 16, 1)];
    let mut given = heap_snapshot(memory(&[]), &watched, Vec::new(), true);
    given.collected.kernel_words = vec![7, HEAP + 0x10];
    assert_eq!(told(&check(given, &plan(""), &Nameless)), [(HEAP + 0x100, 16, 0, true)]);
}
