//! Synthetic mappings, in which each byte has a known use.

use super::*;
use crate::units::MappedAmounts;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

fn memory(start: u64, size_bytes: u64, rss_bytes: u64, kind: RegionKind) -> MappedMemory {
    let region = Region::synthetic(start, size_bytes, kind);
    MappedMemory { region, rss_bytes, amounts: MappedAmounts { pss_bytes: rss_bytes, ..MappedAmounts::default() } }
}

fn anonymous(start: u64, size_bytes: u64, rss_bytes: u64) -> MappedMemory {
    memory(start, size_bytes, rss_bytes, RegionKind::Anonymous { name: None })
}

fn named(start: u64, name: &str) -> MappedMemory {
    memory(start, MIB, PAGE, RegionKind::Anonymous { name: Some(name.to_owned()) })
}

fn block(address: u64, size_bytes: u64, heap: u8) -> BlockPlace {
    BlockPlace {
        address: TargetAddr(address),
        size_bytes,
        interval: Interval::EXACT,
        heap: HeapId(heap),
        is_mapping: false,
    }
}

fn evidence() -> Evidence {
    Evidence { heaps: vec!["libc".into(), "jemalloc".into()], ..Evidence::default() }
}

fn check(mapped: &[MappedMemory], blocks: &[BlockPlace], expected: &[(MemoryClass, Option<&str>, u64)]) {
    let live = |heap| blocks.iter().filter(|block| block.heap == heap).map(|block| block.size_bytes).sum();
    let parts = classify(mapped, blocks.iter().copied(), live, &mut evidence());
    let found: Vec<_> = parts.iter().map(|part| (part.class, part.name.as_deref(), part.bytes)).collect();
    assert_eq!(found, expected);
    let rss: u64 = mapped.iter().map(|memory| memory.rss_bytes).sum();
    assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), rss, "parts sum to the resident set");
}

#[test]
fn brk_belongs_to_glibc_even_without_known_blocks() {
    let brk = memory(0x10000, MIB, 40 * PAGE, RegionKind::Brk);
    check(std::slice::from_ref(&brk), &[], &[(MemoryClass::HeapOverhead, Some("libc"), 40 * PAGE)]);
    check(
        &[brk],
        &[block(0x10010, 3 * PAGE, 0)],
        &[(MemoryClass::LiveBlocks, Some("libc"), 3 * PAGE), (MemoryClass::HeapOverhead, Some("libc"), 37 * PAGE)],
    );
}

#[test]
fn an_arena_is_recognised_by_its_reserve() {
    let arena = anonymous(ARENA_BYTES, MIB, 5 * PAGE);
    let mut reserve = anonymous(ARENA_BYTES + MIB, ARENA_BYTES - MIB, 0);
    check(std::slice::from_ref(&arena), &[], &[(MemoryClass::Unexplained, None, 5 * PAGE)]);
    (reserve.region.readable, reserve.region.writable) = (false, false);
    check(&[arena, reserve], &[], &[(MemoryClass::HeapOverhead, Some("libc"), 5 * PAGE)]);
}

#[test]
fn a_mapping_with_a_small_block_belongs_to_its_heap() {
    check(
        &[anonymous(4 * MIB, 2 * MIB, 100 * PAGE)],
        &[block(4 * MIB + 64, 64, 1)],
        &[
            (MemoryClass::LiveBlocks, Some("jemalloc"), 64),
            (MemoryClass::HeapOverhead, Some("jemalloc"), 100 * PAGE - 64),
        ],
    );
}

#[test]
fn a_large_block_does_not_claim_the_mappings_that_it_was_merged_with() {
    check(
        &[anonymous(4 * MIB, 40 * MIB, 40 * MIB)],
        &[block(5 * MIB + 16, MIB, 0)],
        &[(MemoryClass::LiveBlocks, Some("libc"), MIB), (MemoryClass::Unexplained, None, 39 * MIB)],
    );
}

#[test]
fn a_block_that_was_not_touched_claims_what_is_resident() {
    check(
        &[anonymous(4 * MIB, 40 * MIB, PAGE)],
        &[block(4 * MIB + 16, 39 * MIB, 0)],
        &[(MemoryClass::LiveBlocks, Some("libc"), PAGE)],
    );
}

#[test]
fn blocks_outside_all_mappings_claim_nothing() {
    check(&[anonymous(4 * MIB, MIB, PAGE)], &[block(16, MIB, 0)], &[(MemoryClass::Unexplained, None, PAGE)]);
}

#[test]
fn other_memory_is_named_after_its_mapping() {
    let stack = memory(0x1000, PAGE, PAGE, RegionKind::Stack);
    let file = memory(0x3000, PAGE, PAGE, RegionKind::File { path: "/bin/true".into() });
    let memfd = memory(0x5000, PAGE, PAGE, RegionKind::File { path: "/memfd:x (deleted)".into() });
    let mut code = anonymous(0x7000, PAGE, PAGE);
    code.region.executable = true;
    let mut shared = anonymous(0x9000, PAGE, PAGE);
    shared.region.shared = true;
    check(
        &[stack, file, memfd, code, shared, named(MIB, "v8"), named(3 * MIB, "v8: code range")],
        &[],
        &[
            (MemoryClass::OtherAllocator, Some("v8"), 2 * PAGE),
            (MemoryClass::GeneratedCode, None, PAGE),
            (MemoryClass::Stacks, None, PAGE),
            (MemoryClass::Files, None, PAGE),
            (MemoryClass::Shared, None, 2 * PAGE),
        ],
    );
}

#[test]
fn stacks_of_threads_are_found_by_an_address_in_them() {
    let mut evidence = Evidence { stacks: vec![TargetAddr(0x1800)], ..evidence() };
    let mapped = [anonymous(0x1000, PAGE, PAGE), anonymous(0x3000, PAGE, PAGE)];
    let parts = classify(&mapped, std::iter::empty(), |_| 0, &mut evidence);
    let found: Vec<_> = parts.iter().map(|part| (part.class, part.bytes)).collect();
    assert_eq!(found, [(MemoryClass::Stacks, PAGE), (MemoryClass::Unexplained, PAGE)]);
}

#[test]
fn a_heap_keeps_a_mapping_whose_blocks_are_freed() {
    let (mut evidence, mapped) = (evidence(), [anonymous(MIB, MIB, 9 * PAGE)]);
    let first = classify(&mapped, std::iter::once(block(MIB + 32, 32, 1)), |_| 32, &mut evidence);
    assert_eq!(first[0].class, MemoryClass::LiveBlocks);
    let parts = classify(&mapped, std::iter::empty(), |_| 0, &mut evidence);
    assert_eq!(
        parts,
        [MemoryPart { class: MemoryClass::HeapOverhead, name: Some("jemalloc".into()), bytes: 9 * PAGE }]
    );
    classify(&[], std::iter::empty(), |_| 0, &mut evidence);
    assert_eq!(evidence.known, BTreeMap::new(), "until it is unmapped");
}

#[test]
fn a_process_cannot_create_many_parts() {
    let mapped: Vec<_> = (0..50_u64).map(|at| named((1 + 2 * at) * MIB, &format!("name{at}"))).collect();
    let parts = classify(&mapped, std::iter::empty(), |_| 0, &mut evidence());
    assert!(parts.len() <= NAMES_MAX + 1, "{}", parts.len());
    assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), 50 * PAGE);
}

#[test]
fn recorded_mappings_explain_what_no_other_heap_does() {
    let mapping = BlockPlace { is_mapping: true, ..block(4 * MIB, 4 * MIB, 2) };
    let mapped = [anonymous(4 * MIB, MIB, MIB), anonymous(5 * MIB, MIB, MIB), anonymous(7 * MIB, 3 * MIB, 3 * MIB)];
    let mut evidence = evidence();
    evidence.heaps.push("mmap".into());
    let blocks = [block(5 * MIB + 32, 32, 1), mapping];
    let parts = classify(&mapped, blocks.into_iter(), |_| 4 * MIB, &mut evidence);
    let found: Vec<_> = parts.iter().map(|part| (part.class, part.name.as_deref(), part.bytes)).collect();
    assert_eq!(
        found,
        [
            (MemoryClass::LiveBlocks, Some("jemalloc"), MIB),
            (MemoryClass::LiveBlocks, Some("mmap"), 2 * MIB),
            (MemoryClass::Unexplained, None, 2 * MIB),
        ]
    );
}
