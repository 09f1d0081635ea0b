//! One check for leaks: from a look at a process to what a report tells.
//!
//! ```text
//! look ─▶ walk ─▶ known blocks ─▶ mark ─▶ fold ─▶ suppress ─▶ name ─▶ report::unreachable
//! ```

use rustc_hash::FxHashMap;

use crate::collect::roots::root_spans;
use crate::collect::{CollectError, Method};
use crate::ids::HeapId;
use crate::leak::blocks::{BlockId, Blocks};
use crate::leak::fold::{Folded, RootLeak, Sum, fold};
use crate::leak::mark::{Roots, mark, mark_also};
use crate::model::{FrameId, Profile};
use crate::report::suppressions::Suppressions;
use crate::report::unreachable::merge;
use crate::report::unreachable::{CONTENTS_BYTES_MAX, HeapKnowledge, Leak, Precision, Unreachable};
use crate::symbolize::Resolve;
use crate::symbolize::types::TypeNames;

mod books;
mod known;
pub(crate) mod look;
pub(crate) mod unwatched;

use books::Books;
use known::{Known, WALKED};
use look::Look;

/// What is to be told.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Most entries.
    pub limit: usize,
    /// Stacks that are known to leak.
    pub suppressions: Suppressions,
    /// Contents of blocks are told.
    pub with_contents: bool,
    /// The runtime's plumbing is left out of stacks.
    pub trims: bool,
}

/// Finds unreachable blocks.
///
/// # Errors
///
/// [`CollectError::CopyKilled`]: pointers are missing then, and blocks would seem unreachable.
pub(crate) fn check(mut look: Look, plan: &Plan, resolver: &dyn Resolve) -> Result<Unreachable, CollectError> {
    look.watched.sort_unstable_by_key(|block| block.address);
    let memory = &*look.collected.memory;
    let known = Known::of(&look.watched, &look.walks, &look.collected.regions);
    let marks = mark(&known.blocks, &roots(&look, &known), memory);
    let mut folded = fold(&known.blocks, &marks, memory);
    let books = Books::new(&look);
    let mut suppressed = Sum::default();
    if !plan.suppressions.is_empty() {
        // Of whole stacks, whatever is shown of them.
        let (profile, indices) = books.profile(&known.blocks, &folded.unreached, resolver, false);
        let ids = suppressed_of(&known.blocks, &folded, &profile, &indices, &plan.suppressions);
        // What a suppressed block holds is suppressed with it.
        let words = ids.iter().map(|id| known.blocks.get(*id).start.0).collect();
        mark_also(&marks, &known.blocks, words, memory);
        let rest = fold(&known.blocks, &marks, memory);
        suppressed = Sum {
            count: folded.leaked.count.saturating_sub(rest.leaked.count),
            bytes: folded.leaked.bytes.saturating_sub(rest.leaked.bytes),
        };
        folded = rest;
    }
    let (profile, indices) = books.profile(&known.blocks, &folded.unreached, resolver, plan.trims);
    let state = &look.snapshot.targets[0];
    let mut entries = Entries {
        look: &look,
        books: &books,
        blocks: &known.blocks,
        types: TypeNames::new(&look.collected.regions, &state.space, &look.snapshot.modules),
        profile: &profile,
        indices: &indices,
        plan,
    };
    let leaks: Vec<Leak> = folded.roots.iter().filter_map(|root| entries.leak(root)).collect();
    let (leaks, leak_count) = merge(leaks, plan.limit);
    if !memory.is_there() {
        return Err(CollectError::CopyKilled(look.collected.pid));
    }
    Ok(Unreachable {
        taken_unix_ns: look.snapshot.ended_unix_ns,
        pause_ns: u64::try_from(look.collected.pause.as_nanos()).unwrap_or(u64::MAX),
        method: match look.collected.method {
            Method::Read => "read",
            Method::Fork => "fork",
        },
        watched_ns: look.watching.map(|watching| watching.duration_ns),
        at_exit: look.at_exit,
        known: sum_of(&known.blocks),
        leaked: folded.leaked,
        direct: folded.direct,
        suppressed,
        heaps: heaps(&look, &known),
        caveats: caveats(&look, &known, &folded),
        leaks,
        leak_count,
        profile,
    })
}

/// Where reaching begins.
fn roots(look: &Look, known: &Known) -> Roots {
    let collected = &look.collected;
    let ranges = root_spans(&collected.threads, &collected.regions, &*collected.memory, &known.heap_areas);
    let registers = collected.threads.iter().flat_map(|thread| thread.registers.iter().copied());
    Roots { ranges, words: registers.chain(collected.kernel_words.iter().copied()).collect() }
}

/// Leaked blocks whose stacks a suppression matches.
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

/// Makes entries of root leaks.
struct Entries<'a> {
    look: &'a Look,
    books: &'a Books<'a>,
    blocks: &'a Blocks,
    types: TypeNames<'a>,
    profile: &'a Profile,
    /// Of the profile's callsites.
    indices: &'a [u32],
    plan: &'a Plan,
}

impl Entries<'_> {
    fn leak(&mut self, root: &RootLeak) -> Option<Leak> {
        let block = self.blocks.get(*root.members.first()?);
        let callsite = self.indices.binary_search(&block.origin).ok()?;
        let mut contents = vec![0; usize::try_from(block.size_bytes).unwrap_or(usize::MAX).min(CONTENTS_BYTES_MAX)];
        let memory = &*self.look.collected.memory;
        let length = if self.plan.with_contents { memory.read(block.start, &mut contents) } else { 0 };
        let stack = self.profile.targets.first().and_then(|target| target.callsites.get(callsite));
        let stack = stack.map_or(&[][..], |callsite| &callsite.stack);
        contents.truncate(length);
        Some(Leak {
            address: block.start.0,
            size_bytes: block.size_bytes,
            callsite,
            watched: block.origin < WALKED,
            type_name: self.types.of(memory.word(block.start), stack, &self.profile.frames),
            age_ns: self.books.born(block.start).map(|born| self.look.now.0.saturating_sub(born.0)),
            contents,
            cycle_count: root.members.len() as u64,
            referenced: Sum {
                count: root.reached.count.saturating_sub(1),
                bytes: root.reached.bytes.saturating_sub(block.size_bytes),
            },
            similar: Sum::default(),
            similar_referenced: Sum::default(),
        })
    }
}

fn sum_of(blocks: &Blocks) -> Sum {
    let mut sum = Sum::default();
    for id in blocks.ids() {
        sum.count += 1;
        sum.bytes = sum.bytes.saturating_add(blocks.get(id).size_bytes);
    }
    sum
}

/// What it means that nobody reads an allocator's bookkeeping.
const NOT_WALKED: &str = "the allocator's own bookkeeping: its memory that is in no known block counts as roots, so that what free memory or the allocator happens to point at is taken for held";

/// What is known of each heap's blocks, those with probes first.
fn heaps(look: &Look, known: &Known) -> Vec<HeapKnowledge> {
    let state = &look.snapshot.targets[0];
    let is_complete = look.watching.is_some_and(|watching| watching.is_complete);
    let heap_of: FxHashMap<u32, HeapId> =
        state.books.callsites.iter().map(|callsite| (callsite.index, callsite.heap)).collect();
    let mut sums: FxHashMap<HeapId, Sum> = FxHashMap::default();
    let mut of_walks = vec![Sum::default(); look.walks.len()];
    for block in known.blocks.ids().map(|id| known.blocks.get(id)) {
        let walk = block.origin.checked_sub(WALKED).and_then(|number| of_walks.get_mut(number as usize));
        let sum = match (walk, heap_of.get(&block.origin)) {
            (Some(sum), _) => sum,
            (None, Some(heap)) => sums.entry(*heap).or_default(),
            (None, None) => continue,
        };
        *sum = *sum + Sum { count: 1, bytes: block.size_bytes };
    }
    let mut heaps: Vec<HeapKnowledge> = state
        .heaps
        .iter()
        .map(|heap| HeapKnowledge {
            name: heap.name.clone(),
            precision: if is_complete { Precision::Watched } else { Precision::Partial },
            known: sums.get(&heap.id).copied().unwrap_or_default(),
            gaps: Vec::new(),
        })
        .collect();
    for heap in heaps.iter_mut().filter(|heap| look.walks.iter().all(|walk| walk.heap != heap.name)) {
        heap.gaps.push(NOT_WALKED.to_owned());
    }
    for (walk, unwatched) in look.walks.iter().zip(of_walks) {
        let place = heaps.iter().position(|heap| heap.name == walk.heap).unwrap_or_else(|| {
            heaps.push(HeapKnowledge {
                name: walk.heap.to_owned(),
                precision: Precision::Partial,
                known: Sum::default(),
                gaps: Vec::new(),
            });
            heaps.len() - 1
        });
        let heap = &mut heaps[place];
        heap.known = heap.known + unwatched;
        heap.gaps.clone_from(&walk.gaps);
        if heap.precision == Precision::Partial && walk.gaps.is_empty() {
            heap.precision = Precision::Walked;
        }
    }
    heaps
}

/// What weakens the result.
fn caveats(look: &Look, known: &Known, folded: &Folded) -> Vec<String> {
    let mut caveats = Vec::new();
    let bounded = folded.roots.iter().filter(|root| root.is_lower_bound).count();
    if bounded > 0 {
        caveats.push(format!(
            "what hangs on {bounded} entries was not followed to its end: their sums are at least what is told"
        ));
    }
    let lost = look.snapshot.health.lost_total();
    if lost > 0 {
        caveats.push(format!(
            "{lost} events were lost: blocks that were made then have no stack, and are not known where the heap was not walked"
        ));
    }
    let unread = look.collected.unread_bytes;
    if unread > 0 {
        caveats.push(format!("{unread} bytes of its memory could not be read: what only those hold is told as leaked"));
    }
    if known.stale_count > 0 {
        let count = known.stale_count;
        caveats
            .push(format!("{count} blocks were freed, or their heap was, without that being seen, and are left out"));
    }
    if look.walks.iter().any(|walk| walk.busy) {
        caveats.push("a thread was in the middle of the allocator's work at each look: a block may be told as leaked that is just being made or freed".to_owned());
    }
    if known.overlapping_count > 0 {
        caveats.push(format!("{} blocks lie in others, and are left out", known.overlapping_count));
    }
    caveats
}

#[cfg(test)]
mod tests;
