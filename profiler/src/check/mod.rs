//! A leak check: from a heap snapshot to an unreachable-blocks report.
//!
//! ```text
//! heap snapshot ─▶ walk ─▶ known blocks ─▶ mark ─▶ fold ─▶ suppress ─▶ symbolize ─▶ report::unreachable
//! ```

use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::HeapId;
use heapbpf_base::memory::{Span, joined, without};
use heapbpf_ledger::details::Details;
use heapbpf_ledger::leak::blocks::{Block, BlockId, Blocks};
use heapbpf_ledger::leak::fold::{BlockTotals, Folded, RootLeak, fold};
use heapbpf_ledger::leak::mark::{Roots, mark, mark_also};
use heapbpf_ledger::model::{Frame, FrameId, Leaks, Profile};
use heapbpf_ledger::snapshot::{CallsiteSnapshot, SelectedBlock, Stack, TargetSnapshot};
use heapbpf_ledger::totals::Totals;
use heapbpf_linux::proc::maps::{Region, region_of};
use heapbpf_report::suppressions::Suppressions;
use heapbpf_report::unreachable::{
    CONTENTS_BYTES_MAX, HeapKnowledge, Leak, Precision, Unreachable, displayed_rows, merge,
};
use profiler_common::stack::StackEnd;
use rustc_hash::FxHashMap;

use crate::collect::roots::root_spans;
use crate::collect::{CollectError, Method, ThreadState};
use crate::snapshot::{HeapFacts, Scope, Snapshot, TargetState};
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;
use crate::symbolize::trim::Trim;
use crate::symbolize::types::TypeNames;
use crate::walk::Walk;

pub(crate) mod absence;
mod exit_frames;
pub(crate) mod heap_snapshot;

use exit_frames::dead_frames;
use heap_snapshot::{HeapSnapshot, RecordedBlock};

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub limit: usize,
    pub suppressions: Suppressions,
    pub with_contents: bool,
    pub trim: Trim,
}

/// Runs a leak check. Fails with [`CollectError::CopyKilled`] if the copy was killed: without its pointers, blocks would seem
/// unreachable.
pub(crate) fn check(
    mut snapshot: HeapSnapshot,
    plan: &Plan,
    resolver: &dyn Resolve,
) -> Result<Unreachable, CollectError> {
    snapshot.recorded.sort_unstable_by_key(|block| block.address);
    let memory = &*snapshot.collected.memory;
    let mut known = KnownBlocks::of(&snapshot.recorded, &snapshot.walks, &snapshot.collected.regions);
    known.blocks.find_empty_arrays(memory);
    let marks = mark(&known.blocks, &roots(&snapshot, &known), memory);
    let mut folded = fold(&known.blocks, &marks, memory);
    let profiles = LeakedProfiles::new(&snapshot);
    let mut suppressed = BlockTotals::default();
    if !plan.suppressions.is_empty() {
        // Suppressions match untrimmed stacks.
        let (profile, indices) = profiles.profile(&known.blocks, &folded.unreached, resolver, Trim::NOTHING);
        let ids = suppressed_of(&known.blocks, &folded, &profile, &indices, &plan.suppressions);
        // Blocks reachable from a suppressed one are suppressed too.
        let words = ids.iter().map(|id| known.blocks.get(*id).start.0).collect();
        mark_also(&marks, &known.blocks, words, memory);
        let rest = fold(&known.blocks, &marks, memory);
        suppressed = folded.leaked.without(rest.leaked);
        folded = rest;
    }
    let (profile, indices) = profiles.profile(&known.blocks, &folded.unreached, resolver, plan.trim);
    let state = &snapshot.state.targets[0];
    let mut entries = Entries {
        snapshot: &snapshot,
        blocks: &known.blocks,
        types: TypeNames::new(&snapshot.collected.regions, &state.space, &snapshot.state.modules),
        profile: &profile,
        indices: &indices,
        rows: displayed_rows(&profile),
        plan,
    };
    let leaks: Vec<Leak> =
        folded.roots.iter().filter_map(|root| entries.leak(root, folded.members[root.members.start])).collect();
    let (leaks, leak_count) = merge(leaks, plan.limit);
    if !memory.is_there() {
        return Err(CollectError::CopyKilled(snapshot.collected.pid));
    }
    Ok(Unreachable {
        taken_unix_ns: snapshot.state.ended_unix_ns,
        pause_ns: u64::try_from(snapshot.collected.pause.as_nanos()).unwrap_or(u64::MAX),
        method: match snapshot.collected.method {
            Method::Read => "read",
            Method::Fork => "fork",
        },
        watched_ns: snapshot.coverage.map(|coverage| coverage.duration_ns),
        at_exit: snapshot.at_exit,
        signal: signal(&snapshot),
        unchecked_children: snapshot.unchecked_children,
        known: BlockTotals::of(&known.blocks, known.blocks.ids()),
        leaked: folded.leaked,
        direct: folded.direct,
        suppressed,
        heaps: heaps(&snapshot, &known),
        caveats: caveats(&snapshot, &known, &folded),
        leaks,
        leak_count,
        profile,
    })
}

/// The signal that killed an exiting program, if any.
fn signal(snapshot: &HeapSnapshot) -> Option<String> {
    let mut signals = snapshot.collected.threads.iter().filter_map(ThreadState::fatal_signal);
    signals.next().filter(|_| snapshot.at_exit)
}

fn roots(snapshot: &HeapSnapshot, known: &KnownBlocks) -> Roots {
    let collected = &snapshot.collected;
    let ranges = root_spans(&collected.threads, &collected.regions, &*collected.memory, &known.heap_areas);
    let ranges = without(ranges, &joined(dead_frames(snapshot)));
    let registers = collected.threads.iter().flat_map(|thread| thread.registers.iter().copied());
    Roots { ranges, words: registers.chain(collected.kernel_words.iter().copied()).collect() }
}

fn suppressed_of(
    blocks: &Blocks,
    folded: &Folded,
    profile: &Profile,
    indices: &[u32],
    suppressions: &Suppressions,
) -> Vec<BlockId> {
    let matches = |stack: &[FrameId]| suppressions.matches_stack(stack, &profile.frames);
    let callsites = &profile.targets[0].callsites;
    let known: Vec<u32> = callsites
        .iter()
        .zip(indices)
        .filter(|(callsite, index)| **index < WALKED && matches(&callsite.stack))
        .map(|(_, index)| *index)
        .collect();
    let is_known = |id: &&BlockId| known.binary_search(&blocks.get(**id).origin).is_ok();
    folded.unreached.iter().filter(is_known).copied().collect()
}

struct Entries<'a> {
    snapshot: &'a HeapSnapshot,
    blocks: &'a Blocks,
    types: TypeNames<'a>,
    profile: &'a Profile,
    /// Index of each callsite of the profile in the ledger.
    indices: &'a [u32],
    /// Row of each callsite of the profile.
    rows: Vec<usize>,
    plan: &'a Plan,
}

impl Entries<'_> {
    fn leak(&mut self, root: &RootLeak, first: BlockId) -> Option<Leak> {
        let block = self.blocks.get(first);
        let callsite = self.indices.binary_search(&block.origin).ok()?;
        let mut contents = vec![0; usize::try_from(block.size_bytes).unwrap_or(usize::MAX).min(CONTENTS_BYTES_MAX)];
        let memory = &*self.snapshot.collected.memory;
        let length = if self.plan.with_contents { memory.read(block.start, &mut contents) } else { 0 };
        let stack = self.profile.targets.first().and_then(|target| target.callsites.get(callsite));
        let stack = stack.map_or(&[][..], |callsite| &callsite.stack);
        contents.truncate(length);
        Some(Leak {
            address: block.start.0,
            size_bytes: block.size_bytes,
            usable_size: block.origin.checked_sub(WALKED).is_some_and(|walk| self.has_usable_sizes(walk)),
            callsite: self.rows.get(callsite).copied().unwrap_or(callsite),
            watched: block.origin < WALKED,
            type_name: self.types.of(memory.word(block.start), stack, &self.profile.frames),
            age_ns: self.snapshot.born(block.start).map(|born| self.snapshot.now.0.saturating_sub(born.0)),
            contents,
            cycle_count: root.members.len() as u64,
            referenced: root.reached.without(BlockTotals { count: 1, bytes: block.size_bytes }),
            similar: BlockTotals::default(),
            similar_addresses: Vec::new(),
            similar_referenced: BlockTotals::default(),
        })
    }

    fn has_usable_sizes(&self, walk: u32) -> bool {
        self.snapshot.walks.get(walk as usize).is_some_and(|walk| !walk.has_exact_sizes)
    }
}

const NOT_WALKED: &str = "the allocator's own bookkeeping: memory outside of known blocks counts as roots, so blocks that free memory or the allocator points to count as reachable";

fn heaps(snapshot: &HeapSnapshot, known: &KnownBlocks) -> Vec<HeapKnowledge> {
    let state = &snapshot.state.targets[0];
    let is_complete = snapshot.coverage.is_some_and(|coverage| coverage.is_complete);
    let heap_of: FxHashMap<u32, HeapId> =
        state.ledger.callsites.iter().map(|callsite| (callsite.index, callsite.heap)).collect();
    let mut sums: FxHashMap<HeapId, BlockTotals> = FxHashMap::default();
    let mut of_walks = vec![BlockTotals::default(); snapshot.walks.len()];
    for block in known.blocks.ids().map(|id| known.blocks.get(id)) {
        let walk = block.origin.checked_sub(WALKED).and_then(|number| of_walks.get_mut(number as usize));
        let sum = match (walk, heap_of.get(&block.origin)) {
            (Some(sum), _) => sum,
            (None, Some(heap)) => sums.entry(*heap).or_default(),
            (None, None) => continue,
        };
        *sum = *sum + BlockTotals { count: 1, bytes: block.size_bytes };
    }
    let precision = if is_complete { Precision::Watched } else { Precision::Partial };
    let knowledge = |name: &str, precision, known: Option<&BlockTotals>| HeapKnowledge {
        name: name.to_owned(),
        precision,
        known: known.copied().unwrap_or_default(),
        gaps: Vec::new(),
    };
    let recorded = state.heaps.iter().map(|heap| knowledge(&heap.name, precision, sums.get(&heap.id)));
    let mut heaps: Vec<HeapKnowledge> = recorded.collect();
    for heap in heaps.iter_mut().filter(|heap| snapshot.walks.iter().all(|walk| walk.heap != heap.name)) {
        heap.gaps.push(NOT_WALKED.to_owned());
    }
    for (walk, walked) in snapshot.walks.iter().zip(of_walks) {
        let index = heaps.iter().position(|heap| heap.name == walk.heap).unwrap_or_else(|| {
            heaps.push(knowledge(walk.heap, Precision::Partial, None));
            heaps.len() - 1
        });
        let heap = &mut heaps[index];
        heap.known = heap.known + walked;
        heap.gaps.clone_from(&walk.gaps);
        if heap.precision == Precision::Partial && walk.gaps.is_empty() {
            heap.precision = Precision::Walked;
        }
    }
    heaps
}

const BUSY: &str = "a thread was running allocator code in each heap snapshot: a block that is being allocated or freed may be reported as leaked";

fn caveats(snapshot: &HeapSnapshot, known: &KnownBlocks, folded: &Folded) -> Vec<String> {
    let bounded = folded.roots.iter().filter(|root| root.is_lower_bound).count();
    let (lost, unread) = (snapshot.state.health.lost_of_targets(), snapshot.collected.unread_bytes);
    let (stale, overlapping) = (known.stale_count, known.overlapping_count);
    let secret = snapshot.collected.regions.iter().filter(|region| region.is_secret());
    let secret_bytes = secret.fold(0_u64, |sum, region| sum.saturating_add(region.size_bytes()));
    let is_busy = snapshot.walks.iter().any(|walk| walk.busy);
    let caveats = [
        (
            bounded > 0,
            format!("counting what is reachable from {bounded} entries was aborted: their sums are lower bounds"),
        ),
        (
            lost > 0,
            format!(
                "{lost} events were dropped: blocks allocated then have no stack, and are unknown where the heap was not walked"
            ),
        ),
        (
            unread > 0,
            format!(
                "{unread} bytes of its memory could not be read: blocks reachable only from there are reported as leaked"
            ),
        ),
        (
            secret_bytes > 0,
            format!(
                "{secret_bytes} bytes of secret memory (memfd_secret) cannot be read: blocks reachable only from there are reported as leaked"
            ),
        ),
        (stale > 0, format!("{stale} blocks were freed, alone or with their heap, without a record, and are left out")),
        (is_busy, BUSY.to_owned()),
        (overlapping > 0, format!("{overlapping} blocks overlap others, and are left out")),
    ];
    caveats.into_iter().filter_map(|(applies, text)| applies.then_some(text)).collect()
}

/// Origins from here on are those of walked blocks: the index of the walk is added.
const WALKED: u32 = u32::MAX - 0xff;

/// Recorded and walked blocks. A walked heap is authoritative: recorded blocks that it does not contain were freed.
struct KnownBlocks {
    /// Origins are the callsites of recorded blocks, or [`WALKED`] and above.
    blocks: Blocks,
    /// Memory that only blocks and allocators use: outside of blocks it does not contain roots.
    heap_areas: Vec<Span>,
    /// Number of recorded blocks that are not in the walked heap, or not mapped any more.
    stale_count: usize,
    overlapping_count: usize,
}

impl KnownBlocks {
    /// Combines recorded and walked blocks. `recorded` must be sorted by address.
    fn of(recorded: &[RecordedBlock], walks: &[Walk], regions: &[Region]) -> Self {
        let mut heap_areas: Vec<Span> = walks.iter().flat_map(|walk| walk.areas.iter().cloned()).collect();
        heap_areas.sort_by_key(|area| area.start);
        let mut blocks = Vec::with_capacity(recorded.len());
        let mut stale_count = 0;
        let is_confirmed = |address: TargetAddr| {
            walks.iter().any(|walk| walk.blocks.binary_search_by_key(&address, |block| block.start).is_ok())
        };
        for block in recorded {
            // An unmapped block was freed with its heap.
            let is_unmapped = region_of(regions, block.address).is_none();
            if is_unmapped || contains(&heap_areas, block.address) && !is_confirmed(block.address) {
                stale_count += 1;
            } else {
                blocks.push(Block { start: block.address, size_bytes: block.size_bytes, origin: block.callsite });
            }
        }
        for (walk, number) in walks.iter().zip(WALKED..) {
            for block in &walk.blocks {
                if recorded.binary_search_by_key(&block.start, |known| known.address).is_err() {
                    blocks.push(Block { start: block.start, size_bytes: block.size_bytes, origin: number });
                }
            }
        }
        let (blocks, overlapping_count) = Blocks::new(blocks);
        Self { blocks, heap_areas, stale_count, overlapping_count }
    }
}

fn contains(areas: &[Range<TargetAddr>], address: TargetAddr) -> bool {
    let behind = areas.partition_point(|area| area.start <= address);
    areas[..behind].last().is_some_and(|area| area.contains(&address))
}

/// Name of the frame that stands for the stack of blocks allocated before recording started.
const UNRECORDED: &str = "[allocated before recording started]";

/// Name of the frame that stands for the stack of blocks without a record although all calls were recorded: the C library's own.
const UNHOOKED: &str = "[allocation not recorded]";

/// Profiles with the leaked blocks as only live blocks, and a callsite per walked heap for blocks without a record.
struct LeakedProfiles<'a> {
    snapshot: &'a HeapSnapshot,
    state: TargetState,
    with_walked: TargetSnapshot,
}

impl<'a> LeakedProfiles<'a> {
    fn new(snapshot: &'a HeapSnapshot) -> Self {
        let mut state = snapshot.state.targets[0].clone();
        let mut with_walked = (*state.ledger).clone();
        for (walk, index) in snapshot.walks.iter().zip(WALKED..) {
            let heap = heap_of(walk, &mut state.heaps);
            with_walked.callsites.push(CallsiteSnapshot {
                index,
                stack: Some(Stack { frames: Arc::default(), end: StackEnd::Complete }),
                heap,
                thread: None,
                inherited: false,
                totals: Totals::default(),
                details: Details::default(),
            });
        }
        // Leaked blocks have no history.
        state.growths = Leaks::default();
        state.curve = Vec::new();
        state.timeline = Arc::default();
        state.older = None;
        Self { snapshot, state, with_walked }
    }

    /// Returns a profile of these blocks, and the callsites' indices in the order of its callsites.
    fn profile(&self, blocks: &Blocks, leaked: &[BlockId], resolver: &dyn Resolve, trim: Trim) -> (Profile, Vec<u32>) {
        let picked = leaked.iter().map(|&id| {
            let Block { start, size_bytes, origin } = blocks.get(id);
            SelectedBlock { callsite: origin, size_bytes, born: self.snapshot.born(start) }
        });
        let part = self.with_walked.of_blocks(picked, self.snapshot.now);
        let indices: Vec<u32> = part.callsites.iter().map(|callsite| callsite.index).collect();
        let state = TargetState { ledger: Arc::new(part), ..self.state.clone() };
        let snapshot = Snapshot { targets: vec![state], ..self.snapshot.state.clone() };
        let mut profile = profile(&snapshot, Scope::Whole, resolver, trim);
        self.name_unrecorded(&mut profile, &indices);
        profile.targets[0].leaks = None;
        profile.unreachable = true;
        (profile, indices)
    }

    fn name_unrecorded(&self, profile: &mut Profile, indices: &[u32]) {
        let reason = match self.snapshot.coverage {
            Some(coverage) if coverage.is_complete => UNHOOKED,
            _ => UNRECORDED,
        };
        let frame = FrameId(u32::try_from(profile.frames.len()).unwrap_or(u32::MAX));
        profile.frames.push(Frame { function: Some(reason.into()), ..Frame::default() });
        for (callsite, index) in profile.targets[0].callsites.iter_mut().zip(indices) {
            if *index >= WALKED {
                callsite.stack = vec![frame];
            }
        }
    }
}

fn heap_of(walk: &Walk, heaps: &mut Vec<HeapFacts>) -> HeapId {
    if let Some(heap) = heaps.iter().find(|heap| heap.name == walk.heap) {
        return heap.id;
    }
    let free = (0..=u8::MAX).map(HeapId).find(|id| heaps.iter().all(|heap| heap.id != *id)).unwrap_or(HeapId(u8::MAX));
    heaps.push(HeapFacts {
        id: free,
        name: walk.heap.to_owned(),
        interval_bytes: 1,
        interval_bytes_max: 1,
        hooks: Vec::new(),
    });
    free
}

#[cfg(test)]
mod tests;
