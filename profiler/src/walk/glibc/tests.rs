//! Tests with forged arenas of processes that try to keep a walk busy, and with mapped blocks.

mod mapped;

use std::path::PathBuf;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::Copied;
use heapbpf_linux::proc::maps::{Region, RegionKind};

use crate::walk::tests::Patient;
use crate::walk::{Scene, Walk};

const DATA: u64 = 0x5555_0000_0000;
const HEAP: u64 = 0x6000_0000_0000;
/// Offset of `top` from an arena's beginning (glibc 2.27 to 2.42), in words. The offsets of other fields follow.
const TOP: usize = 12;
const NEXT: usize = TOP + 2 + 254 + 2;
const SYSTEM_BYTES: usize = NEXT + 3;
const WORDS: usize = SYSTEM_BYTES + 2;
/// First word of an arena that is not contiguous and not locked.
const NONCONTIGUOUS: u64 = 2 << 32;

/// An arena with empty lists.
fn arena(address: u64, top: u64, next: u64, system_bytes: u64) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[0] = NONCONTIGUOUS;
    words[TOP] = top;
    for list in 0..127 {
        let head = address + (TOP as u64 + 2 * list) * 8;
        let first = TOP + 2 + 2 * usize::try_from(list).expect("small");
        (words[first], words[first + 1]) = (head, head);
    }
    (words[NEXT], words[SYSTEM_BYTES]) = (next, system_bytes);
    words
}

/// Walks arenas that lie one behind the other in a module's data. The memory also has these regions and pages at these addresses,
/// which are zeros.
#[track_caller]
fn walk(arenas: &[[u64; WORDS]], regions: &[Region], pages: &[u64], reads_max: u64) -> Option<Walk> {
    let data: Vec<u8> = arenas.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
    let pages = pages.iter().map(|&page| (TargetAddr(page), vec![0; 4096].into()));
    let memory = Copied::new(std::iter::once((TargetAddr(DATA), data.into())).chain(pages));
    let mut all = vec![Region::synthetic(DATA, 0x1_0000, RegionKind::File { path: PathBuf::from("/lib/libc.so.6") })];
    all.extend_from_slice(regions);
    let memory = Patient::new(memory, reads_max);
    super::walk(&Scene::new(&memory, &all, &[]))
}

#[test]
fn untouched_address_space_costs_nothing() {
    for kind in [RegionKind::Anonymous { name: None }, RegionKind::Brk] {
        let regions = [Region::synthetic(HEAP, 1 << 44, kind)];
        let main = arena(DATA, HEAP + 64, DATA, 0x2_1000);
        let walk = walk(&[main], &regions, &[HEAP + (1 << 43)], 2_000_000).expect("an arena is used");
        assert!(walk.blocks.is_empty() && walk.gaps.len() == 1, "{walk:?}");
    }
}

#[test]
fn the_brk_region_is_searched_once() {
    let regions = [Region::synthetic(HEAP, 16 << 20, RegionKind::Brk)];
    let pages: Vec<u64> = (0..16 << 20 >> 12).map(|page| HEAP + page * 4096).collect();
    let walk = walk(&[arena(DATA, HEAP + 64, DATA, 0x2_1000)], &regions, &pages, 200_000);
    assert_eq!(walk.expect("an arena is used").gaps.len(), 1);
}

#[test]
fn cyclic_arenas_are_read_a_few_times() {
    let at = |number: usize| DATA + (number * WORDS * 8) as u64;
    let arenas: [_; 4] =
        std::array::from_fn(|number| arena(at(number), HEAP, at(if number == 3 { 1 } else { number + 1 }), 4096));
    let walk = walk(&arenas, &[], &[], 1_000_000).expect("the others are a circle");
    assert!(walk.blocks.is_empty() && !walk.gaps.is_empty(), "{walk:?}");
}
