//! Unreachable blocks of a process, and how similar ones are merged for a report. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use rustc_hash::FxHashMap;

pub(crate) use crate::leak::fold::BlockTotals;
use crate::model::{CallsiteProfile, Profile, TargetProfile, TypeEvidence, TypeName};

pub(crate) mod json;
pub(crate) mod text;

/// The result of a leak check of one process.
#[derive(Clone, Debug)]
pub(crate) struct Unreachable {
    /// The leaked blocks by callsite: a profile of one target whose live blocks are the leaked ones.
    pub profile: Profile,
    /// When the process was stopped, in nanoseconds since the Unix epoch.
    pub taken_unix_ns: u64,
    /// Duration of the stop.
    pub pause_ns: u64,
    /// How its memory was captured: `read` or `fork`.
    pub method: &'static str,
    /// How long allocations were recorded before, in nanoseconds; `None` if they were not.
    pub watched_ns: Option<u64>,
    /// The check ran at the exit of the process.
    pub at_exit: bool,
    /// All known blocks.
    pub known: BlockTotals,
    /// Unreachable blocks, without suppressed ones.
    pub leaked: BlockTotals,
    /// Leaked blocks that no other leaked block references, apart from cycles.
    pub direct: BlockTotals,
    /// Direct leaks that suppressions match, and everything that is reachable from them only.
    pub suppressed: BlockTotals,
    pub heaps: Vec<HeapKnowledge>,
    /// Limitations of the result: memory that could not be read, lost events and the like.
    pub caveats: Vec<String>,
    /// Entries, the largest first, up to the requested limit.
    pub leaks: Vec<Leak>,
    /// Number of entries without the limit.
    pub leak_count: u64,
}

/// How completely the blocks of a heap are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeapKnowledge {
    pub name: String,
    pub precision: Precision,
    pub known: BlockTotals,
    /// Parts that could not be walked, each with the reason.
    pub gaps: Vec<String>,
}

/// How the blocks of a heap were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Complete: the allocation of every block was recorded.
    Watched,
    /// Complete: from the allocator's own data structures; blocks whose allocation was recorded have a stack.
    Walked,
    /// Only blocks whose allocation was recorded. The rest of the heap counts as roots: older blocks, and everything they reference, are
    /// assumed to be reachable.
    Partial,
}

/// A directly leaked block, or a cycle of leaked blocks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Leak {
    /// Address of the block; of a cycle, its first block by address.
    pub address: u64,
    pub size_bytes: u64,
    /// Index into the callsites of the profile's target.
    pub callsite: usize,
    /// The allocation was recorded, so the callsite has a stack.
    pub watched: bool,
    /// Type of the object, if it is known.
    pub type_name: Option<TypeName>,
    /// Age, if the allocation was recorded.
    pub age_ns: Option<u64>,
    /// First bytes of the block: at most [`CONTENTS_BYTES_MAX`].
    pub contents: Vec<u8>,
    /// Number of blocks of the cycle; 1 if it is none.
    pub cycle_count: u64,
    /// Blocks reachable from it, without the block itself.
    pub referenced: BlockTotals,
    /// Further leaks merged into this entry.
    pub similar: BlockTotals,
    /// Blocks reachable from those.
    pub similar_referenced: BlockTotals,
}

/// Maximum number of bytes of a leaked block that are shown.
pub(crate) const CONTENTS_BYTES_MAX: usize = 32;

impl Unreachable {
    /// Leaked blocks that other leaked blocks reference.
    pub(crate) fn indirect(&self) -> BlockTotals {
        BlockTotals {
            count: self.leaked.count.saturating_sub(self.direct.count),
            bytes: self.leaked.bytes.saturating_sub(self.direct.bytes),
        }
    }

    pub(crate) fn target(&self) -> Option<&TargetProfile> {
        self.profile.targets.first()
    }

    /// `None` if the leak is of another check.
    pub(crate) fn callsite(&self, leak: &Leak) -> Option<&CallsiteProfile> {
        self.target()?.callsites.get(leak.callsite)
    }
}

impl Leak {
    /// A recorded block that references nothing.
    #[cfg(test)]
    pub(crate) fn single(address: u64, size_bytes: u64, callsite: usize) -> Self {
        Self {
            address,
            size_bytes,
            callsite,
            watched: true,
            type_name: None,
            age_ns: None,
            contents: Vec::new(),
            cycle_count: 1,
            referenced: BlockTotals::default(),
            similar: BlockTotals::default(),
            similar_referenced: BlockTotals::default(),
        }
    }

    /// Bytes of the block, of similar leaks, and of everything reachable from them: the sort key of entries.
    pub(crate) fn total_bytes(&self) -> u64 {
        [self.referenced.bytes, self.similar.bytes, self.similar_referenced.bytes]
            .iter()
            .fold(self.size_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Properties that merged leaks have in common.
#[derive(PartialEq, Eq, Hash)]
struct MergeKey {
    callsite: usize,
    watched: bool,
    vtable: Option<Arc<str>>,
}

impl MergeKey {
    /// `None` for blocks with neither a stack nor a type: they all have the same callsite.
    fn of(leak: &Leak) -> Option<Self> {
        let known = leak.type_name.as_ref().filter(|known| known.evidence == TypeEvidence::Vtable);
        let vtable = known.map(|known| Arc::clone(&known.name));
        (leak.watched || vtable.is_some()).then_some(Self { callsite: leak.callsite, watched: leak.watched, vtable })
    }
}

/// Merges similar leaks. Returns at most `limit` entries and the number without the limit.
///
/// Leaks of one callsite are one entry, which has the address of the first one, unless their virtual tables show different types. Blocks
/// without a stack are merged by virtual table only. Entries are sorted by [`total_bytes`](Leak::total_bytes), the largest first, then by
/// address.
pub(crate) fn merge(leaks: Vec<Leak>, limit: usize) -> (Vec<Leak>, u64) {
    let mut indices: FxHashMap<MergeKey, usize> = FxHashMap::default();
    let mut entries: Vec<Leak> = Vec::new();
    for leak in leaks {
        let index = MergeKey::of(&leak).map(|key| *indices.entry(key).or_insert(entries.len()));
        match index.and_then(|index| entries.get_mut(index)) {
            Some(first) => absorb(first, &leak),
            None => entries.push(leak),
        }
    }
    entries.sort_by_key(|leak| (Reverse(leak.total_bytes()), leak.address));
    let count = entries.len() as u64;
    entries.truncate(limit);
    (entries, count)
}

fn absorb(first: &mut Leak, other: &Leak) {
    add(&mut first.similar, BlockTotals { count: 1, bytes: other.size_bytes });
    add(&mut first.similar, other.similar);
    add(&mut first.similar_referenced, other.referenced);
    add(&mut first.similar_referenced, other.similar_referenced);
}

fn add(sum: &mut BlockTotals, other: BlockTotals) {
    sum.count = sum.count.saturating_add(other.count);
    sum.bytes = sum.bytes.saturating_add(other.bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::TypeName;

    fn typed(leak: Leak, name: &str, evidence: TypeEvidence) -> Leak {
        Leak { type_name: Some(TypeName { name: name.into(), evidence }), ..leak }
    }

    fn unwatched(leak: Leak) -> Leak {
        Leak { watched: false, ..leak }
    }

    /// Entries' addresses with how many are similar.
    fn check(leaks: Vec<Leak>, expected: &[(u64, u64)]) {
        let (entries, count) = merge(leaks, usize::MAX);
        let found: Vec<(u64, u64)> = entries.iter().map(|leak| (leak.address, leak.similar.count)).collect();
        assert_eq!(found, expected);
        assert_eq!(count, expected.len() as u64);
    }

    #[test]
    fn leaks_of_one_callsite_are_merged_into_the_first() {
        check(
            vec![Leak::single(16, 8, 0), Leak::single(32, 64, 1), Leak::single(48, 8, 0), Leak::single(64, 40, 0)],
            &[(32, 0), (16, 2)],
        );
        let holding = |leak: Leak| Leak { referenced: BlockTotals { count: 2, bytes: 100 }, ..leak };
        let (entries, _) =
            merge(vec![holding(Leak::single(16, 8, 0)), holding(Leak::single(48, 24, 0)), Leak::single(64, 40, 0)], 1);
        let first = &entries[0];
        assert_eq!(first.referenced, BlockTotals { count: 2, bytes: 100 });
        assert_eq!(first.similar, BlockTotals { count: 2, bytes: 64 });
        assert_eq!(first.similar_referenced, BlockTotals { count: 2, bytes: 100 });
        assert_eq!(first.total_bytes(), 8 + 100 + 64 + 100);
    }

    #[test]
    fn blocks_without_a_stack_are_merged_by_virtual_table_only() {
        let (by_vtable, by_stack) = (TypeEvidence::Vtable, TypeEvidence::Stack);
        check((1..4).map(|at| unwatched(Leak::single(16 * at, 8, 0))).collect(), &[(16, 0), (32, 0), (48, 0)]);
        let of = |at: u64, name: &str, evidence| typed(unwatched(Leak::single(at, 8, 0)), name, evidence);
        check(vec![of(16, "Foo", by_vtable), of(32, "Bar", by_vtable), of(48, "Foo", by_vtable)], &[(16, 1), (32, 0)]);
        check(vec![of(16, "Foo", by_stack), of(32, "Foo", by_stack)], &[(16, 0), (32, 0)]);
        // A recorded block of the same type is not merged with those without a stack.
        check(vec![of(16, "Foo", by_vtable), typed(Leak::single(32, 8, 0), "Foo", by_vtable)], &[(16, 0), (32, 0)]);
    }

    #[test]
    fn a_callsite_with_several_types_has_an_entry_for_each() {
        let of = |at: u64, name: &str| typed(Leak::single(at, 8, 7), name, TypeEvidence::Vtable);
        check(vec![of(16, "Circle"), of(32, "Square"), of(48, "Circle")], &[(16, 1), (32, 0)]);
    }

    #[test]
    fn the_limit_keeps_the_largest() {
        let leaks: Vec<Leak> = (0..1024_u32).map(|at| Leak::single(u64::from(at) * 64, 32, at as usize)).collect();
        let (entries, count) = merge(leaks, 100);
        assert_eq!((entries.len(), count), (100, 1024));
        assert!(entries.is_sorted_by_key(|leak| leak.address), "ties are sorted by address");
        assert_eq!(merge(vec![Leak::single(16, 1, 0)], 0), (Vec::new(), 1));
    }

    proptest! {
        #[test]
        fn merging_preserves_sums(sizes in proptest::collection::vec((1..1000_u64, 0..4_usize, any::<bool>()), 0..200)) {
            let leaks: Vec<Leak> = (1..).zip(&sizes).map(|(at, &(size_bytes, callsite, watched))| {
                let referenced = BlockTotals { count: 1, bytes: size_bytes * 2 };
                Leak { watched, referenced, ..Leak::single(at * 4096, size_bytes, callsite) }
            }).collect();
            let (entries, _) = merge(leaks, usize::MAX);
            prop_assert!(entries.is_sorted_by_key(|leak| (Reverse(leak.total_bytes()), leak.address)));
            let whole: u64 = entries.iter().map(Leak::total_bytes).sum();
            prop_assert_eq!(whole, sizes.iter().map(|(size, ..)| size * 3).sum::<u64>());
            let count: u64 = entries.iter().map(|leak| 1 + leak.similar.count).sum();
            prop_assert_eq!(count, sizes.len() as u64);
        }
    }
}
