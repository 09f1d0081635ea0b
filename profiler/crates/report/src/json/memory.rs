//! The account of the resident memory in the JSON report.

use std::borrow::Cow;

use heapbpf_base::language::Language;
use heapbpf_base::units::{MappedAmounts, MonotonicNanos};
use heapbpf_ledger::model::{self, HeapBlocks, Inventory, MemoryPart, ObjectType, ObjectTypes, Profile};
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::Hex;

/// Where the resident memory of a process was.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Memory<'a> {
    /// Language runtimes with allocators of their own that the process has loaded.
    pub(super) runtimes: Cow<'a, [Language]>,
    /// Samples, in the order of time.
    pub(super) points: Vec<MemoryPoint<'a>>,
    /// Change from the first to the last sample; null with fewer than two.
    pub(super) growth: Option<MemoryGrowth>,
    /// The mappings with most memory at one of the last samples, by address.
    #[serde(default)]
    pub(super) mappings: Vec<MemoryMapping<'a>>,
    /// Estimated bytes of pages that were given back, or whose program ended, before it was known whether a hooked heap had them; the heap
    /// `pages` is without them.
    #[serde(default)]
    pub(super) undecided_bytes: u64,
    /// Objects in the heaps of language runtimes, by type: the last count of each.
    #[serde(default)]
    pub(super) objects: Vec<Objects<'a>>,
}

/// Objects in the heap of a language runtime, by type.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct Objects<'a> {
    /// The runtime.
    pub(super) language: Language,
    /// Time of the count, in nanoseconds since the Unix epoch.
    pub(super) unix_ns: u64,
    /// Time of the count that growths refer to; null in a first count.
    pub(super) since_unix_ns: Option<u64>,
    /// Types, the largest first.
    pub(super) types: Cow<'a, [ObjectType]>,
    /// Number of types that are not listed.
    pub(super) more_types: u64,
    /// All blocks of the heap.
    pub(super) blocks: HeapBlocks,
    /// Blocks that are neither objects nor tables of them.
    pub(super) other: HeapBlocks,
    /// Blocks that could not be read.
    pub(super) unread: HeapBlocks,
    /// Bytes that the heap has from the system.
    pub(super) reserved_bytes: u64,
    /// One of so many blocks was read: above 1, numbers are estimates.
    pub(super) one_of: u64,
}

/// Memory of a mapping.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct MemoryMapping<'a> {
    /// First address, in hexadecimal.
    pub(super) start: Hex,
    /// Size, in bytes.
    pub(super) size_bytes: u64,
    /// `r`, `w` and `x`, with `-` in place of what is not allowed.
    pub(super) access: Cow<'a, str>,
    /// The path, or what the kernel calls it; empty for anonymous memory without a name.
    pub(super) name: Cow<'a, str>,
    #[serde(flatten)]
    pub(super) amounts: MappedAmounts,
}

/// A sample of the resident memory.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct MemoryPoint<'a> {
    /// Time, in nanoseconds since the Unix epoch.
    pub(super) unix_ns: u64,
    /// Resident set size: the sum of all parts.
    pub(super) rss_bytes: u64,
    /// Resident bytes, each divided by the number of processes that map it.
    pub(super) pss_bytes: u64,
    /// Swapped out bytes.
    pub(super) swap_bytes: u64,
    /// Parts by use.
    pub(super) parts: Cow<'a, [MemoryPart]>,
}

/// Change of the resident memory.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(super) struct MemoryGrowth {
    /// Change of the resident set size.
    pub(super) bytes: i64,
    /// Change of hooked heaps: live blocks, and the rest of their mappings.
    pub(super) hooked_bytes: i64,
    /// It is at least 16 MiB, and hooked heaps explain less than half of it.
    pub(super) unexplained: bool,
    /// The other parts that grew, with their growth, the largest first.
    pub(super) others: Vec<MemoryPart>,
}

pub(super) fn describe<'a>(profile: &Profile, account: &'a model::MemoryAccount) -> Option<Memory<'a>> {
    let point = |point: &'a model::MemoryPoint| MemoryPoint {
        unix_ns: profile.unix_ns(point.time),
        rss_bytes: point.rss_bytes(),
        pss_bytes: point.pss_bytes,
        swap_bytes: point.swap_bytes,
        parts: Cow::Borrowed(&point.parts),
    };
    let growth = |growth: model::MemoryGrowth| MemoryGrowth {
        bytes: growth.bytes,
        hooked_bytes: growth.hooked_bytes,
        unexplained: growth.is_unexplained(),
        others: growth.others,
    };
    (!account.points().is_empty()).then(|| Memory {
        runtimes: Cow::Borrowed(account.runtimes()),
        points: account.points().iter().map(point).collect(),
        growth: account.growth().map(growth),
        mappings: account.mappings().iter().map(mapping).collect(),
        undecided_bytes: account.undecided_bytes(),
        objects: account.objects().iter().map(|counted| objects(profile, counted)).collect(),
    })
}

fn objects<'a>(profile: &Profile, counted: &'a ObjectTypes) -> Objects<'a> {
    Objects {
        language: counted.language,
        unix_ns: profile.unix_ns(counted.time),
        since_unix_ns: counted.since.map(|time| profile.unix_ns(time)),
        types: Cow::Borrowed(&counted.types),
        more_types: counted.more_types,
        blocks: counted.blocks,
        other: counted.other,
        unread: counted.unread,
        reserved_bytes: counted.reserved_bytes,
        one_of: counted.one_of,
    }
}

fn read_objects(objects: &Objects<'_>) -> ObjectTypes {
    ObjectTypes {
        language: objects.language,
        time: MonotonicNanos(objects.unix_ns),
        since: objects.since_unix_ns.map(MonotonicNanos),
        types: objects.types.to_vec(),
        more_types: objects.more_types,
        blocks: objects.blocks,
        other: objects.other,
        unread: objects.unread,
        reserved_bytes: objects.reserved_bytes,
        one_of: objects.one_of.max(1),
    }
}

fn mapping(mapping: &model::MemoryMapping) -> MemoryMapping<'_> {
    let flag = |is_set: bool, letter: char| if is_set { letter } else { '-' };
    let flags = [(mapping.readable, 'r'), (mapping.writable, 'w'), (mapping.executable, 'x')];
    MemoryMapping {
        start: Hex(mapping.start),
        size_bytes: mapping.size_bytes,
        access: flags.into_iter().map(|(is_set, letter)| flag(is_set, letter)).collect::<String>().into(),
        name: Cow::Borrowed(&mapping.name),
        amounts: mapping.amounts,
    }
}

fn read_mapping(mapping: &MemoryMapping<'_>) -> model::MemoryMapping {
    let may = |letter: char| mapping.access.contains(letter);
    model::MemoryMapping {
        start: mapping.start.0,
        size_bytes: mapping.size_bytes,
        readable: may('r'),
        writable: may('w'),
        executable: may('x'),
        name: mapping.name.as_ref().into(),
        amounts: mapping.amounts,
    }
}

pub(super) fn read(memory: Option<Memory<'_>>, inventory: Option<Inventory>) -> model::MemoryAccount {
    let point = |point: MemoryPoint<'_>| model::MemoryPoint {
        time: MonotonicNanos(point.unix_ns),
        pss_bytes: point.pss_bytes,
        swap_bytes: point.swap_bytes,
        parts: point.parts.into_owned(),
    };
    let undecided_bytes = memory.as_ref().map(|memory| memory.undecided_bytes);
    let objects = memory.as_ref().map(|memory| memory.objects.iter().map(read_objects).collect()).unwrap_or_default();
    let (points, runtimes, mappings) = memory
        .map(|memory| {
            let mappings: Vec<_> = memory.mappings.iter().map(read_mapping).collect();
            (memory.points, memory.runtimes.into_owned(), mappings)
        })
        .unwrap_or_default();
    let mut account = model::MemoryAccount::default();
    account.extend(model::MemoryFacts {
        points: points.into_iter().map(point).collect(),
        runtimes,
        mappings,
        inventory,
        undecided_bytes,
        objects,
    });
    account
}
