//! Kernel memory of the maps, computed from their sizes: it is not in the agent's resident size, and before Linux 6.4 the kernel
//! reports the maximum size of a map. Tested against what a newer kernel reports.

use profiler_common::counter::Counter;
use profiler_common::hook::NestedCallers;
use profiler_common::limits::{
    CODE_FILES_MAX, EXECS_SEEN, HOOKS_MAX, INFLIGHT_BUCKETS, INFLIGHT_WAYS, LIVE_FILTER_SLOTS, MAPPINGS_MAX,
    PAGE_BYTES, PROCESSES_MAX, RAW_STACK_PAGES_MAX, RULE_CACHE_SLOTS, SCRATCH_SHARED, STACK_BUCKETS, STACK_FRAMES_MAX,
    STACK_WAYS, TARGETS_MAX, UNWIND_PAGES_MAX, UNWIND_RULES_MAX,
};
use profiler_common::live::LiveBlock;
use profiler_common::mapped::MappingState;
use profiler_common::rule_cache::CachedRule;
use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};

/// Size of a live block: key, value and kernel header, in a slab of this size.
pub(crate) const LIVE_BLOCK_BYTES: u64 = 96;

/// Size of a hash map's bucket (`struct bucket`) and of an element's header (`struct htab_elem`), in
/// [kernel/bpf/hashtab.c](https://github.com/torvalds/linux/blob/v6.12/kernel/bpf/hashtab.c).
const BUCKET_BYTES: u64 = 16;
const ELEMENT_BYTES: u64 = 48;

const WORD_BYTES: u64 = 8;
/// Size of the kernel side's `Inflight`.
const INFLIGHT_BYTES: u64 = 40 + size_of::<LiveBlock>() as u64;
/// Bytes of a value of the map of processes, of whole words.
const PROCESS_BYTES: u64 = size_of::<ProcessMappings>().next_multiple_of(8) as u64;
/// Size of a scratch area without the stack window and the frames. 1 KiB of it is the window of an interpreter's frames, 512 B
/// the header of a code blob of HotSpot.
const SCRATCH_REST_BYTES: u64 = 2728;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelMaps {
    pub ring_bytes: u64,
    pub live_blocks_max: u64,
    pub row_cells: u64,
    /// Number of possible CPUs.
    pub cpus: u64,
    /// Whether the live set takes the memory of its maximum from the start, as before Linux 6.1.
    pub is_preallocated: bool,
}

/// Capacity of the live set. Where the kernel allocates it at the start, it takes at most a quarter of the available memory.
pub(crate) fn live_blocks_max(wanted: u32, is_preallocated: bool, available_bytes: Option<u64>) -> u32 {
    let affordable = available_bytes.filter(|_| is_preallocated).map(|bytes| bytes / 4 / LIVE_BLOCK_BYTES);
    affordable.map_or(wanted, |blocks| wanted.min(u32::try_from(blocks.max(1)).unwrap_or(u32::MAX)))
}

const RING: &str = "--ring-size";
const LIVE: &str = "--live-blocks";

/// A map whose size is set by an option, with its size while empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Adjustable {
    pub name: &'static str,
    pub option: &'static str,
    pub bytes: u64,
}

/// Sizes below which maps are not reduced for a small control group.
const RING_BYTES_LOW: u64 = 512 << 10;
const LIVE_BLOCKS_LOW: u64 = 1 << 15;
const ROW_CELLS_LOW: u64 = 1 << 19;

impl KernelMaps {
    /// Halves the largest maps until all together, while empty, take no more than `bytes`, or are small. Returns whether
    /// any was reduced.
    pub(crate) fn fit(&mut self, bytes: u64) -> bool {
        let before = *self;
        while self.empty_bytes() > bytes {
            let is_large = |map: &Adjustable| match map.option {
                RING => self.ring_bytes > RING_BYTES_LOW,
                LIVE => self.live_blocks_max > LIVE_BLOCKS_LOW,
                _ => self.row_cells > ROW_CELLS_LOW,
            };
            match self.adjustable().into_iter().find(is_large).map(|map| map.option) {
                None => break,
                Some(RING) => self.ring_bytes /= 2,
                Some(LIVE) => self.live_blocks_max /= 2,
                Some(_) => self.row_cells /= 2,
            }
        }
        *self != before
    }

    pub(crate) fn empty_bytes(&self) -> u64 {
        self.adjustable().iter().map(|map| map.bytes).sum::<u64>() + self.fixed_bytes()
    }

    pub(crate) fn bytes(&self, live_blocks: u64) -> u64 {
        self.empty_bytes() + if self.is_preallocated { 0 } else { live_blocks * LIVE_BLOCK_BYTES }
    }

    /// Maps whose sizes are options, the largest first.
    pub(crate) fn adjustable(&self) -> [Adjustable; 3] {
        let preallocated_bytes = if self.is_preallocated { self.live_blocks_max * LIVE_BLOCK_BYTES } else { 0 };
        let live_bytes = buckets(self.live_blocks_max) + preallocated_bytes;
        let mut maps = [
            Adjustable { name: "the ring buffer", option: RING, bytes: self.ring_bytes },
            Adjustable { name: "the live set", option: LIVE, bytes: live_bytes },
            Adjustable {
                name: "unwind tables",
                option: "--unwind-memory",
                bytes: self.row_cells * size_of::<RowCell>() as u64,
            },
        ];
        maps.sort_by_key(|map| std::cmp::Reverse(map.bytes));
        maps
    }

    fn fixed_bytes(&self) -> u64 {
        let filter = u64::from(LIVE_FILTER_SLOTS) * WORD_BYTES;
        let inflight = u64::from(INFLIGHT_BUCKETS) * INFLIGHT_WAYS as u64 * (WORD_BYTES + INFLIGHT_BYTES);
        let stacks = u64::from(STACK_BUCKETS) * STACK_WAYS as u64 * WORD_BYTES;
        let processes = preallocated(TARGETS_MAX, 2 * WORD_BYTES)
            + preallocated(PROCESSES_MAX, WORD_BYTES + PROCESS_BYTES)
            + preallocated(PROCESSES_MAX, WORD_BYTES + size_of::<MappingState>() as u64)
            + buckets(u64::from(CODE_FILES_MAX))
            + preallocated(EXECS_SEEN, 2 * WORD_BYTES)
            + u64::from(HOOKS_MAX) * size_of::<NestedCallers>() as u64;
        let unwinding = u64::from(UNWIND_PAGES_MAX) * size_of::<PageRows>() as u64
            + u64::from(UNWIND_RULES_MAX) * size_of::<Rule>() as u64
            + u64::from(RULE_CACHE_SLOTS) * size_of::<CachedRule>() as u64
            + u64::from(MAPPINGS_MAX) * size_of::<ProcessMapping>() as u64;
        let area = 2 * STACK_FRAMES_MAX as u64 * WORD_BYTES + SCRATCH_REST_BYTES;
        let scratch = (self.cpus + u64::from(SCRATCH_SHARED)) * area;
        let counters = self.cpus * u64::from(Counter::COUNT) * WORD_BYTES;
        let raw = RAW_STACK_PAGES_MAX as u64 * PAGE_BYTES;
        filter + inflight + stacks + processes + unwinding + raw + scratch + counters
    }
}

fn buckets(entries_max: u64) -> u64 {
    entries_max.next_power_of_two() * BUCKET_BYTES
}

/// Size of a preallocated hash map in bytes. `bytes` is the size of a key and a value.
fn preallocated(entries_max: u32, bytes: u64) -> u64 {
    buckets(u64::from(entries_max)) + u64::from(entries_max) * (ELEMENT_BYTES + bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::{AsFd, AsRawFd};

    use aya::maps::Map;

    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::{Kernel, LinkKind};

    #[test]
    fn a_preallocated_live_set_leaves_memory_for_others() {
        let available = Some(4 * 96 * 1000);
        assert_eq!(live_blocks_max(5000, true, available), 1000);
        assert_eq!(live_blocks_max(500, true, available), 500);
        assert_eq!(live_blocks_max(5000, false, available), 5000);
        assert_eq!((live_blocks_max(5000, true, None), live_blocks_max(5000, true, Some(0))), (5000, 1));
    }

    #[test]
    fn configurable_maps_dominate() {
        let maps = KernelMaps {
            ring_bytes: 16 << 20,
            live_blocks_max: 1 << 20,
            row_cells: 4 << 20,
            cpus: 2,
            is_preallocated: false,
        };
        let options = maps.adjustable().map(|map| (map.option, map.bytes >> 20));
        assert_eq!(options, [("--unwind-memory", 32), ("--ring-size", 16), ("--live-blocks", 16)]);
        assert_eq!(maps.bytes(1_000_000) - maps.empty_bytes(), 96_000_000);
        let preallocated = KernelMaps { is_preallocated: true, ..maps };
        assert_eq!(preallocated.bytes(1_000_000) - maps.empty_bytes(), 96 << 20);
        let rest = maps.fixed_bytes();
        assert!((8 << 20..28 << 20).contains(&rest), "{rest}");
    }

    #[test]
    fn maps_are_reduced_until_they_fit() {
        let whole = KernelMaps {
            ring_bytes: 16 << 20,
            live_blocks_max: 1 << 20,
            row_cells: 4 << 20,
            cpus: 2,
            is_preallocated: false,
        };
        let mut maps = whole;
        assert!(!maps.fit(whole.empty_bytes()) && maps == whole);
        assert!(maps.fit(whole.empty_bytes() - 1));
        assert_eq!(maps, KernelMaps { row_cells: 2 << 20, ..whole }, "the largest one");
        assert!(maps.fit(0));
        assert_eq!((maps.ring_bytes, maps.live_blocks_max, maps.row_cells), (512 << 10, 1 << 15, 1 << 19));
        assert!(!maps.fit(0), "they are as small as they get");
    }

    /// Bytes of this map as the kernel reports them (`/proc/self/fdinfo`).
    fn accounted(kernel: &Kernel, name: &'static str) -> u64 {
        let data = match kernel.map(name).expect("the map is there") {
            Map::Array(data)
            | Map::HashMap(data)
            | Map::LruHashMap(data)
            | Map::PerCpuArray(data)
            | Map::RingBuf(data) => data,
            other => panic!("{name} is {other:?}"),
        };
        let facts =
            fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd())).expect("it is open");
        let bytes = facts.lines().find_map(|line| line.strip_prefix("memlock:")).expect("it is a map");
        bytes.trim().parse().expect("a number")
    }

    #[test]
    fn computed_sizes_match_the_kernels() {
        let kernel = fixture::kernel_that(LinkKind::Perf, |config| config.row_cells = 1 << 20);
        let maps = KernelMaps {
            ring_bytes: 1 << 16,
            live_blocks_max: u64::from(fixture::LIVE_BLOCKS_MAX),
            row_cells: 1 << 20,
            cpus: aya::util::nr_cpus().expect("the kernel reports it") as u64,
            is_preallocated: false,
        };
        let names = [
            "EVENTS",
            "LIVE",
            "LIVE_FILTER",
            "INFLIGHT",
            "INFLIGHT_CALLS",
            "PROBES",
            "NESTED",
            "TARGETS",
            "STUB_CALLS",
            "STACKS",
            "EXECS",
            "RATES",
            "COUNTERS",
            "SCRATCH",
            "RAW",
            "ROWS",
            "PAGES",
            "RULES",
            "RULE_CACHE",
            "MAPPINGS",
            "PROCESSES",
            "MAPPING_STATES",
            "CODE_FILES",
        ];
        let accounted: u64 = names.iter().map(|name| accounted(&kernel, name)).sum();
        let added_up = maps.empty_bytes();
        assert!(added_up.abs_diff(accounted) < accounted / 50, "{added_up} of {accounted}");
    }
}
