//! Where the resident memory of a process is, over the course of a recording.

use std::sync::Arc;

use heapbpf_base::language::Language;
use heapbpf_base::units::{MappedAmounts, MonotonicNanos};
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::object_types::ObjectTypes;

/// At most [`POINTS_MAX`](Self::POINTS_MAX) points: then every other one is dropped, except the first and the last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAccount {
    /// By ascending time. The first is from when recording of the process started.
    points: Vec<MemoryPoint>,
    /// Language runtimes with allocators of their own that the process has loaded.
    runtimes: Vec<Language>,
    /// By address, of one of the last samples. Not in the fold of a recording, whose facts repeat them.
    #[serde(skip)]
    mappings: Vec<MemoryMapping>,
    /// `None` where none was requested. Follows the other state in a fold.
    #[serde(skip)]
    inventory: Option<Inventory>,
    #[serde(skip)]
    undecided_bytes: u64,
    /// The last count of each runtime.
    #[serde(skip)]
    objects: Vec<ObjectTypes>,
}

/// The blocks from before the recording, found by walking the heap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Inventory {
    /// Number of blocks that were live when the recording started.
    pub blocks: u64,
    /// Their bytes: usable sizes, which can exceed the requested ones.
    pub bytes: u64,
    /// Mean bytes between those that are tracked; 1 where all are.
    pub interval_bytes: u64,
    /// How long the process was stopped, in nanoseconds.
    pub pause_ns: u64,
    /// Heaps, or parts of heaps, that could not be walked, and why.
    pub gaps: Vec<String>,
    /// Why there is no inventory.
    pub error: Option<String>,
}

/// End of the gap of a heap whose allocator heapbpf does not know.
const UNSUPPORTED: &str = " cannot be walked";

impl Inventory {
    /// The gap of a heap whose allocator heapbpf does not know.
    pub fn unsupported(heap: &str) -> String {
        format!("heap {heap}{UNSUPPORTED}")
    }

    /// Whether blocks may be missing of a heap whose allocator heapbpf knows.
    pub fn is_incomplete(&self) -> bool {
        self.error.is_none() && !self.gaps.iter().all(|gap| gap.ends_with(UNSUPPORTED))
    }
}

/// Parts sum to the resident set size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryPoint {
    pub time: MonotonicNanos,
    pub pss_bytes: u64,
    pub swap_bytes: u64,
    /// By class, then by name. Without those of 0 bytes.
    pub parts: Vec<MemoryPart>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct MemoryPart {
    /// What the memory is used for.
    pub class: MemoryClass,
    /// Name of the heap, or of the mappings; null for classes that have none.
    pub name: Option<Arc<str>>,
    /// Resident bytes.
    pub bytes: u64,
}

/// Memory of a mapping that is resident or swapped out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMapping {
    pub start: u64,
    pub size_bytes: u64,
    pub readable: bool,
    pub writable: bool,
    pub executable: bool,
    /// The path, or what the kernel calls it; empty for anonymous memory without a name.
    pub name: Arc<str>,
    pub amounts: MappedAmounts,
}

/// What resident memory is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub enum MemoryClass {
    /// Live blocks of a hooked heap: those of the profile.
    LiveBlocks,
    /// The rest of a hooked heap's mappings: free memory, bookkeeping, and blocks from before the recording.
    HeapOverhead,
    /// Mappings with the name of an allocator that is not hooked, and what heapbpf has mapped.
    OtherAllocator,
    /// Anonymous executable memory.
    GeneratedCode,
    Stacks,
    /// Private mappings of files, and zero-initialised variables behind them: code and data.
    Files,
    /// Shared memory, and shared mappings of files.
    Shared,
    /// Anonymous memory of unknown use.
    Unexplained,
}

/// Additions to a [`MemoryAccount`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryFacts {
    pub points: Vec<MemoryPoint>,
    pub runtimes: Vec<Language>,
    /// Replace the known ones; empty if they are not sampled.
    #[serde(default)]
    pub mappings: Vec<MemoryMapping>,
    #[serde(default)]
    pub inventory: Option<Inventory>,
    /// Replaces the known number; `None` if it has not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undecided_bytes: Option<u64>,
    /// Replace those of the same runtimes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ObjectTypes>,
}

/// Change of the resident memory between two points.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGrowth {
    /// Of the resident set size.
    pub bytes: i64,
    /// Of hooked heaps: live blocks and overhead.
    pub hooked_bytes: i64,
    /// The other parts that grew, the largest first.
    pub others: Vec<MemoryPart>,
}

/// Name of the heap of resident pages, which no function allocates.
pub(super) const PAGES: &str = "pages";

/// Smallest growth that hooked heaps should explain, in bytes.
const GROWTH_BYTES_MIN: i64 = 16 << 20;

impl MemoryClass {
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether the memory belongs to a heap whose allocations are recorded.
    pub fn is_hooked(self) -> bool {
        matches!(self, Self::LiveBlocks | Self::HeapOverhead)
    }

    /// Whether the heap of resident pages has the memory, where it is recorded.
    fn has_pages(self) -> bool {
        matches!(self, Self::Stacks | Self::GeneratedCode)
    }

    /// In reports for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::LiveBlocks => "live blocks",
            Self::HeapOverhead => "free or from before",
            Self::OtherAllocator => "other allocator",
            Self::GeneratedCode => "generated code",
            Self::Stacks => "stacks",
            Self::Files => "files",
            Self::Shared => "shared memory",
            Self::Unexplained => "unexplained",
        }
    }
}

impl MemoryPart {
    pub fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("{}: {}", self.class.title(), name),
            None => self.class.title().to_owned(),
        }
    }
}

impl MemoryMapping {
    /// 4 for readable, 2 for writable, 1 for executable, as in memory-infra and Perfetto.
    pub fn protection_flags(&self) -> u32 {
        let flags = [(self.readable, 4), (self.writable, 2), (self.executable, 1)];
        flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
    }
}

impl MemoryPoint {
    pub fn rss_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    fn bytes_of(&self, class: MemoryClass, name: Option<&str>) -> u64 {
        let same = self.parts.iter().filter(|part| part.class == class && part.name.as_deref() == name);
        same.map(|part| part.bytes).fold(0, u64::saturating_add)
    }
}

impl MemoryAccount {
    pub const POINTS_MAX: usize = 64;
    pub const MAPPINGS_MAX: usize = 512;
    const PARTS_MAX: usize = 256;
    const GAPS_MAX: usize = 16;

    pub fn points(&self) -> &[MemoryPoint] {
        &self.points
    }

    pub fn runtimes(&self) -> &[Language] {
        &self.runtimes
    }

    pub fn mappings(&self) -> &[MemoryMapping] {
        &self.mappings
    }

    pub fn inventory(&self) -> Option<&Inventory> {
        self.inventory.as_ref()
    }

    /// Estimated bytes of pages that were given back, or whose program ended, before it was known whether a hooked heap had them: the heap
    /// `pages` is without them.
    pub fn undecided_bytes(&self) -> u64 {
        self.undecided_bytes
    }

    /// Objects in the heaps of its runtimes, by type: the last count of each.
    pub fn objects(&self) -> &[ObjectTypes] {
        &self.objects
    }

    /// Limits what it takes from a file.
    pub fn extend(&mut self, facts: MemoryFacts) {
        if let Some(mut inventory) = facts.inventory {
            inventory.gaps.truncate(Self::GAPS_MAX);
            self.inventory = Some(inventory);
        }
        self.undecided_bytes = facts.undecided_bytes.unwrap_or(self.undecided_bytes);
        for mut counted in facts.objects {
            counted.bound();
            self.objects.retain(|known| known.language != counted.language);
            self.objects.push(counted);
        }
        for runtime in facts.runtimes {
            if !self.runtimes.contains(&runtime) {
                self.runtimes.push(runtime);
            }
        }
        if !facts.mappings.is_empty() {
            self.mappings = facts.mappings;
            self.mappings.truncate(Self::MAPPINGS_MAX);
        }
        for mut point in facts.points {
            point.parts.truncate(Self::PARTS_MAX);
            self.add(point);
        }
    }

    /// Of an account from a file.
    pub fn is_sound(&self) -> bool {
        self.points.len() <= Self::POINTS_MAX
            && self.points.is_sorted_by_key(|point| point.time)
            && self.points.iter().all(|point| point.parts.len() <= Self::PARTS_MAX)
    }

    /// Replaces a point with the same time, otherwise appends.
    fn add(&mut self, point: MemoryPoint) {
        if let Some(known) = self.points.iter_mut().find(|known| known.time == point.time) {
            *known = point;
            return;
        }
        if self.points.len() == Self::POINTS_MAX {
            let mut index = 0;
            let last = self.points.len() - 1;
            self.points.retain(|_| {
                index += 1;
                index == last + 1 || (index - 1) % 2 == 0
            });
        }
        let at = self.points.partition_point(|known| known.time < point.time);
        self.points.insert(at, point);
    }

    /// From the last point at or before `start`, or the first one, to the last one at or before `end`.
    pub fn within(&self, start: MonotonicNanos, end: MonotonicNanos) -> Self {
        let first = self.points.partition_point(|point| point.time <= start).saturating_sub(1);
        let behind = self.points.partition_point(|point| point.time <= end);
        let points = self.points.get(first..behind).unwrap_or_default().to_vec();
        let objects = self.objects.iter().filter(|counted| counted.time <= end).cloned().collect();
        Self { points, objects, ..self.clone() }
    }

    /// `None` with fewer than two points.
    pub fn growth(&self) -> Option<MemoryGrowth> {
        let [first, .., last] = self.points.as_slice() else { return None };
        let change = |before: u64, after: u64| after.cast_signed().saturating_sub(before.cast_signed());
        let has_pages = last.parts.iter().any(MemoryPart::is_of_pages);
        let is_hooked = |part: &&MemoryPart| part.class.is_hooked() || has_pages && part.class.has_pages();
        let hooked = |point: &MemoryPoint| -> u64 {
            let parts = point.parts.iter().filter(is_hooked);
            parts.map(|part| part.bytes).fold(0, u64::saturating_add)
        };
        let grown = last.parts.iter().filter(|part| !is_hooked(part)).filter_map(|part| {
            let bytes = part.bytes.checked_sub(first.bytes_of(part.class, part.name.as_deref()))?;
            (bytes > 0).then(|| MemoryPart { bytes, ..part.clone() })
        });
        let mut others: Vec<MemoryPart> = grown.collect();
        others.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        Some(MemoryGrowth {
            bytes: change(first.rss_bytes(), last.rss_bytes()),
            hooked_bytes: change(hooked(first), hooked(last)),
            others,
        })
    }

    /// `None` below what varies anyway.
    pub fn large_growth(&self) -> Option<MemoryGrowth> {
        self.growth().filter(|growth| growth.bytes >= GROWTH_BYTES_MIN)
    }

    /// The growth of which hooked heaps explain less than half.
    pub fn unexplained_growth(&self) -> Option<MemoryGrowth> {
        self.growth().filter(MemoryGrowth::is_unexplained)
    }
}

impl MemoryPart {
    /// Whether it is the live part of the heap of resident pages, which is there if that heap is recorded.
    fn is_of_pages(&self) -> bool {
        self.class == MemoryClass::LiveBlocks && self.name.as_deref() == Some(PAGES)
    }
}

impl MemoryGrowth {
    pub fn unexplained_bytes(&self) -> u64 {
        u64::try_from(self.bytes.saturating_sub(self.hooked_bytes.max(0))).unwrap_or(0)
    }

    /// From 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn unexplained_share(&self) -> f64 {
        self.unexplained_bytes() as f64 / self.bytes.max(1) as f64
    }

    /// It is large, and hooked heaps explain less than half of it.
    pub fn is_unexplained(&self) -> bool {
        self.bytes >= GROWTH_BYTES_MIN && self.hooked_bytes < self.bytes / 2
    }
}
