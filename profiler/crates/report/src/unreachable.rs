//! Unreachable blocks of a process, how similar ones are merged for a report, and its JSON. `docs/leaks.schema.json` is
//! generated from these types: the doc comment of a type or a field is its description there. Pure.

use std::cmp::Reverse;
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::ReportError;
use super::json::health::Health;
use super::json::schema::Frame;
use super::json::values::Hex;
use super::plain_json::write_line;
use super::tables::{Each, hex};
pub use heapbpf_ledger::leak::fold::BlockTotals;
use heapbpf_ledger::model::{
    self, CallsiteProfile, Frame as FrameProfile, Profile, TargetProfile, TypeEvidence, TypeName,
};

pub mod text;

/// The result of a leak check of one process.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Unreachable {
    /// The leaked blocks by callsite: a profile of one target whose live blocks are the leaked ones.
    #[serde(skip)]
    pub profile: Profile,
    /// When the process was stopped, in nanoseconds since the Unix epoch.
    pub taken_unix_ns: u64,
    /// How long the process was stopped.
    pub pause_ns: u64,
    /// How its memory was captured: `read` while it was stopped, or in a copy made by a `fork`.
    pub method: &'static str,
    /// How long allocations had been recorded; null where they were not.
    pub watched_ns: Option<u64>,
    /// The program was exiting, and was checked before its memory was released.
    pub at_exit: bool,
    /// The signal that killed the exiting program, such as `SIGSEGV`; null where it was not killed.
    pub signal: Option<String>,
    /// Number of processes that the launched command has created: they were not checked.
    pub unchecked_children: u64,
    /// All known allocations.
    pub known: BlockTotals,
    /// Unreachable allocations, without suppressed ones.
    pub leaked: BlockTotals,
    /// Leaked allocations that no other leaked allocation references. Of a cycle, which nothing else references, the first
    /// allocation by address counts as direct.
    pub direct: BlockTotals,
    /// Allocations that suppressions match, and those reachable from these alone.
    pub suppressed: BlockTotals,
    /// How completely each heap is known.
    pub heaps: Vec<HeapKnowledge>,
    /// Limitations of the result, as text.
    pub caveats: Vec<String>,
    /// The largest leaks, by falling `total_bytes`.
    #[serde(skip)]
    pub leaks: Vec<Leak>,
    /// Number of leaks, including unlisted ones; similar leaks count once.
    pub leak_count: u64,
}

/// How completely the allocations of a heap are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct HeapKnowledge {
    /// Name of the heap.
    pub name: String,
    /// `watched`: all allocations were recorded. `walked`: all were found in the allocator's metadata; recorded ones have a
    /// stack. `partial`: only recorded ones are known; the rest of the heap counts as reachable.
    pub precision: Precision,
    /// Known allocations of the heap.
    pub known: BlockTotals,
    /// What could not be scanned, and why, as text.
    pub gaps: Vec<String>,
}

/// How the blocks of a heap were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(test, derive(JsonSchema), schemars(inline))]
pub enum Precision {
    Watched,
    Walked,
    /// Older blocks, and everything they reference, are assumed to be reachable.
    Partial,
}

/// An unreachable allocation, or several that reference each other in a cycle, with similar ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Leak {
    /// Start address; of a cycle, that of the first allocation by address.
    #[serde(skip)]
    pub address: u64,
    /// Size of the allocation.
    pub size_bytes: u64,
    /// The size is the one that the allocator reserved (`malloc_usable_size`): the requested size is unknown.
    pub usable_size: bool,
    /// Index into the callsites of the profile's target.
    #[serde(skip)]
    pub callsite: usize,
    /// The allocation was recorded. Without that, it has no stack.
    pub watched: bool,
    /// Type of the object in the allocation; null where unknown.
    #[serde(rename = "type")]
    pub type_name: Option<TypeName>,
    /// Age at the check, in nanoseconds; null where the allocation was not recorded.
    pub age_ns: Option<u64>,
    /// First bytes of the block: at most [`CONTENTS_BYTES_MAX`].
    #[serde(skip)]
    pub contents: Vec<u8>,
    /// Number of allocations in the cycle; 1 without a cycle.
    pub cycle_count: u64,
    /// Everything reachable from the allocation, without itself. Allocations reachable from several leaks count for each.
    pub referenced: BlockTotals,
    /// Further leaks of the same callsite, or without a stack, of the same type or size.
    pub similar: BlockTotals,
    /// Start addresses of similar leaks, in hexadecimal: the first 100 at most.
    #[serde(serialize_with = "in_hexadecimal")]
    #[cfg_attr(test, schemars(with = "Vec<Hex>"))]
    pub similar_addresses: Vec<u64>,
    /// Everything reachable from the similar leaks.
    pub similar_referenced: BlockTotals,
}

pub const CONTENTS_BYTES_MAX: usize = 32;

const SIMILAR_ADDRESSES_MAX: usize = 100;

impl Unreachable {
    /// Leaked blocks that other leaked blocks reference.
    pub fn indirect(&self) -> BlockTotals {
        self.leaked.without(self.direct)
    }

    pub fn target(&self) -> Option<&TargetProfile> {
        self.profile.targets.first()
    }

    /// `None` if the leak is of another check.
    pub(crate) fn callsite(&self, leak: &Leak) -> Option<&CallsiteProfile> {
        self.target()?.callsites.get(leak.callsite)
    }
}

impl Leak {
    /// Bytes of the block, of similar leaks, and of everything reachable from them: the sort key of entries.
    pub(crate) fn total_bytes(&self) -> u64 {
        [self.referenced.bytes, self.similar.bytes, self.similar_referenced.bytes]
            .iter()
            .fold(self.size_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// For each callsite of a profile's target the first one that a report displays in the same way: of the same heap, with
/// frames of the same functions and lines. An unrolled loop has several calls in one line. Without a line, calls differ
/// by their offset in the module.
pub fn displayed_rows(profile: &Profile) -> Vec<usize> {
    let mut numbers: FxHashMap<FrameKey<'_>, usize> = FxHashMap::default();
    let frames: Vec<usize> = profile
        .frames
        .iter()
        .map(|frame| {
            let next = numbers.len();
            *numbers.entry(FrameKey::of(frame)).or_insert(next)
        })
        .collect();
    let mut rows: FxHashMap<(usize, Vec<usize>), usize> = FxHashMap::default();
    let callsites = profile.targets.first().map_or(&[][..], |target| &target.callsites);
    let row = |(index, callsite): (usize, &CallsiteProfile)| {
        let stack = callsite.stack.iter().filter_map(|id| frames.get(id.0 as usize).copied());
        *rows.entry((callsite.heap, stack.collect())).or_insert(index)
    };
    callsites.iter().enumerate().map(row).collect()
}

#[derive(PartialEq, Eq, Hash)]
struct FrameKey<'a> {
    function: Option<&'a str>,
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
    /// 0 if the line is known.
    offset: u64,
}

impl<'a> FrameKey<'a> {
    fn of(frame: &'a FrameProfile) -> Self {
        let (function, module) = (frame.function.as_deref(), frame.module.as_deref());
        let is_placed = function.is_some() && frame.file.is_some() && frame.line.is_some();
        let known = frame.function_start.or(frame.module_offset);
        let offset = if is_placed { 0 } else { known.unwrap_or(frame.address) };
        Self { function, module, file: frame.file.as_deref(), line: frame.line, inlined: frame.inlined, offset }
    }
}

#[derive(PartialEq, Eq, Hash)]
struct MergeKey {
    callsite: usize,
    watched: bool,
    vtable: Option<Arc<str>>,
    /// Of blocks with neither a stack nor a type, which all have the same callsite: size and number in a cycle.
    class: Option<(u64, u64)>,
}

impl MergeKey {
    fn of(leak: &Leak) -> Self {
        let known = leak.type_name.as_ref().filter(|known| known.evidence == TypeEvidence::Vtable);
        let vtable = known.map(|known| Arc::clone(&known.name));
        let class = (!leak.watched && vtable.is_none()).then_some((leak.size_bytes, leak.cycle_count));
        Self { callsite: leak.callsite, watched: leak.watched, vtable, class }
    }
}

/// At most `limit` entries, and the number without the limit. Leaks of one callsite are one entry, with the first
/// one's address, unless their virtual tables show different types; blocks without a stack are merged by virtual table,
/// or by size. Sorted by [`total_bytes`](Leak::total_bytes), the largest first, then by address.
pub fn merge(leaks: Vec<Leak>, limit: usize) -> (Vec<Leak>, u64) {
    let mut indices: FxHashMap<MergeKey, usize> = FxHashMap::default();
    let mut entries: Vec<Leak> = Vec::new();
    for leak in leaks {
        let index = *indices.entry(MergeKey::of(&leak)).or_insert(entries.len());
        match entries.get_mut(index) {
            Some(first) => {
                first.similar = first.similar + BlockTotals { count: 1, bytes: leak.size_bytes } + leak.similar;
                if first.similar_addresses.len() < SIMILAR_ADDRESSES_MAX {
                    first.similar_addresses.push(leak.address);
                }
                first.similar_referenced = first.similar_referenced + leak.referenced + leak.similar_referenced;
            }
            None => entries.push(leak),
        }
    }
    entries.sort_by_key(|leak| (Reverse(leak.total_bytes()), leak.address));
    let count = entries.len() as u64;
    entries.truncate(limit);
    (entries, count)
}

fn in_hexadecimal<S: Serializer>(addresses: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(|address| Hex(*address)))
}

/// Version of the shape. Raised by incompatible changes; a new field alone does not raise it.
const VERSION: u32 = 1;

/// `contents`: include the blocks' first bytes, as far as they are known.
pub fn write_json(check: &Unreachable, contents: bool, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let target = check.target();
    let report = ReportFields {
        version: VERSION,
        kind: "leaks",
        pid: target.map_or(0, |target| target.facts.pid.0),
        command: target.map_or("", |target| &target.facts.command),
        interval_bytes: check.profile.interval_bytes,
        check,
        indirect: check.indirect(),
        leaks: Each(|| check.leaks.iter().map(|leak| LeakFields::new(check, leak, contents))),
        health: &check.profile.health,
    };
    Ok(write_line(&report, out)?)
}

/// What `heapbpf leaks -o FILE.json` writes: one check of one process. Fields may be added. Times are in nanoseconds.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct ReportFields<'a, Leaks = Vec<LeakFields<'a>>> {
    /// Version of this shape. Raised by incompatible changes; a new field alone does not raise it.
    version: u32,
    /// `leaks`. Reports of profiles have no kind.
    kind: &'static str,
    /// Process id.
    pid: u32,
    /// `argv[0]`.
    command: &'a str,
    /// Mean bytes between recorded allocations; 1 where every allocation is recorded.
    interval_bytes: u64,
    #[serde(flatten)]
    check: &'a Unreachable,
    /// The leaked allocations that are not direct ones.
    indirect: BlockTotals,
    /// The largest leaks up to `--limit`, by falling `total_bytes`.
    #[cfg_attr(test, schemars(with = "Vec<LeakFields<'_>>"))]
    leaks: Leaks,
    /// Drops, and the cost of profiling.
    #[serde(serialize_with = "Health::serialize")]
    #[cfg_attr(test, schemars(with = "Health"))]
    health: &'a model::Health,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct LeakFields<'a> {
    /// Start address, in hexadecimal; of a cycle, that of the first allocation by address.
    address: Hex,
    /// Name of the heap.
    heap: Option<&'a str>,
    /// Frames, leaf first.
    stack: Vec<Frame<'a>>,
    #[serde(flatten)]
    leak: &'a Leak,
    /// The first bytes, 32 at most, two hexadecimal digits each; null where not requested or unknown.
    contents: Option<String>,
    /// Bytes of the allocation, of similar ones, and of everything reachable from these. Leaks are sorted by it.
    total_bytes: u64,
}

impl<'a> LeakFields<'a> {
    fn new(check: &'a Unreachable, leak: &'a Leak, contents: bool) -> Self {
        let callsite = check.callsite(leak);
        let heap = callsite.and_then(|callsite| check.target()?.heaps.get(callsite.heap));
        let has_contents = contents && !leak.contents.is_empty();
        Self {
            address: Hex(leak.address),
            heap: heap.map(|heap| heap.name.as_str()),
            stack: Frame::of_stack(&check.profile, callsite.map_or(&[], |callsite| &callsite.stack)),
            leak,
            contents: has_contents.then(|| hex(&leak.contents)),
            total_bytes: leak.total_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_ledger::model::TypeName;
    use proptest::prelude::*;

    use super::*;

    impl Leak {
        /// A recorded block that references nothing.
        pub(crate) fn single(address: u64, size_bytes: u64, callsite: usize) -> Self {
            Self {
                address,
                size_bytes,
                usable_size: false,
                callsite,
                watched: true,
                type_name: None,
                age_ns: None,
                contents: Vec::new(),
                cycle_count: 1,
                referenced: BlockTotals::default(),
                similar: BlockTotals::default(),
                similar_addresses: Vec::new(),
                similar_referenced: BlockTotals::default(),
            }
        }
    }

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
    fn the_addresses_of_similar_leaks_are_listed_up_to_a_limit() {
        let (entries, _) = merge((1..=200).map(|at| Leak::single(16 * at, 8, 0)).collect(), 1);
        let expected: Vec<u64> = (2..=101).map(|at| 16 * at).collect();
        assert_eq!((entries[0].similar.count, &entries[0].similar_addresses), (199, &expected));
    }

    #[test]
    fn blocks_without_a_stack_are_merged_by_virtual_table_or_size() {
        let (by_vtable, by_stack) = (TypeEvidence::Vtable, TypeEvidence::Stack);
        check((1..4).map(|at| unwatched(Leak::single(16 * at, 8 * at, 0))).collect(), &[(48, 0), (32, 0), (16, 0)]);
        check((1..4).map(|at| unwatched(Leak::single(16 * at, 8, 0))).collect(), &[(16, 2)]);
        let cycle = |at: u64| Leak { cycle_count: 2, ..unwatched(Leak::single(at, 8, 0)) };
        check(vec![unwatched(Leak::single(16, 8, 0)), cycle(32), cycle(48)], &[(32, 1), (16, 0)]);
        check(vec![unwatched(Leak::single(16, 8, 0)), unwatched(Leak::single(32, 8, 1))], &[(16, 0), (32, 0)]);
        let of = |at: u64, name: &str, evidence| typed(unwatched(Leak::single(at, 8, 0)), name, evidence);
        check(vec![of(16, "Foo", by_vtable), of(32, "Bar", by_vtable), of(48, "Foo", by_vtable)], &[(16, 1), (32, 0)]);
        check(vec![of(16, "Foo", by_stack), of(32, "Bar", by_stack)], &[(16, 1)]);
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
