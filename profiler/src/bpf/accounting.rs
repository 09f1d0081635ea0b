//! What maps take, as the kernel says it, against what is added up without asking.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};

use super::fixture;
use super::load::{Kernel, LinkKind};
use crate::guardrail::maps::KernelMaps;

/// Bytes of this map by the kernel's account (`/proc/self/fdinfo`).
fn accounted(kernel: &Kernel, name: &'static str) -> u64 {
    use aya::maps::Map;
    let data = match kernel.map(name).expect("the map is there") {
        Map::Array(data) | Map::HashMap(data) | Map::LruHashMap(data) | Map::PerCpuArray(data) | Map::RingBuf(data) => {
            data
        }
        other => panic!("{name} is {other:?}"),
    };
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{}", data.fd().as_fd().as_raw_fd())).expect("it is open");
    let bytes = facts.lines().find_map(|line| line.strip_prefix("memlock:")).expect("it is a map");
    bytes.trim().parse().expect("a number")
}

#[test]
fn maps_take_what_they_are_thought_to() {
    let kernel = fixture::kernel_that(LinkKind::Perf, |config| config.row_cells = 1 << 20);
    let maps = KernelMaps {
        ring_bytes: 1 << 16,
        live_blocks_max: u64::from(fixture::LIVE_BLOCKS_MAX),
        row_cells: 1 << 20,
        cpus: aya::util::nr_cpus().expect("the kernel tells") as u64,
    };
    let names = [
        "EVENTS",
        "LIVE",
        "LIVE_COUNTS",
        "INFLIGHT",
        "TARGETS",
        "STACKS",
        "RATES",
        "COUNTERS",
        "SCRATCH",
        "RAW",
        "ROWS",
        "PAGES",
        "RULES",
        "MAPPINGS",
        "PROCESSES",
    ];
    let accounted: u64 = names.iter().map(|name| accounted(&kernel, name)).sum();
    let added_up = maps.empty_bytes();
    assert!(added_up.abs_diff(accounted) < accounted / 50, "{added_up} of {accounted}");
}
