//! Synthetic mappings, in which each byte has a known use.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::units::MappedAmounts;
use profiler_common::interval::Interval;

use super::*;
use crate::account::evidence::ARENA_BYTES;

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
    Evidence {
        heaps: ["libc", "jemalloc", "mmap", "pool"].map(Arc::from).to_vec(),
        own: vec![HeapId(0)],
        ..Evidence::default()
    }
}

fn spans<const N: usize>(all: [(u64, u64); N]) -> Vec<Span> {
    all.map(|(start, size_bytes)| TargetAddr(start)..TargetAddr(start + size_bytes)).to_vec()
}

/// Returns the first pages of each mapping, as many as are resident.
fn first_pages(mapped: &[MappedMemory]) -> ResidentPages {
    let runs = mapped.iter().map(|memory| memory.region.start..TargetAddr(memory.region.start.0 + memory.rss_bytes));
    ResidentPages::synthetic(runs.collect(), Vec::new())
}

type Expected<'a> = &'a [(MemoryClass, Option<&'a str>, u64)];

fn check_with(
    mapped: &[MappedMemory],
    pages: &ResidentPages,
    blocks: &[BlockPlace],
    mut evidence: Evidence,
    expected: Expected<'_>,
) {
    let contents = Contents::of(mapped, blocks.iter().copied(), &mut evidence);
    let parts = classify(mapped, pages, &contents, &evidence).parts;
    let found: Vec<_> = parts.iter().map(|part| (part.class, part.name.as_deref(), part.bytes)).collect();
    assert_eq!(found, expected);
    let rss: u64 = mapped.iter().map(|memory| memory.rss_bytes).sum();
    assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), rss, "parts sum to the resident set");
}

fn check(mapped: &[MappedMemory], blocks: &[BlockPlace], expected: Expected<'_>) {
    check_with(mapped, &first_pages(mapped), blocks, evidence(), expected);
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
        &[
            (MemoryClass::LiveBlocks, Some("libc"), MIB),
            (MemoryClass::HeapOverhead, Some("libc"), PAGE),
            (MemoryClass::Unexplained, None, 39 * MIB - PAGE),
        ],
    );
}

/// The block's first page has its header; the other pages have no owner.
#[test]
fn of_a_block_that_was_not_touched_only_what_is_resident_is_live() {
    check(
        &[anonymous(4 * MIB, 40 * MIB, PAGE)],
        &[block(4 * MIB + 16, 39 * MIB, 0)],
        &[(MemoryClass::LiveBlocks, Some("libc"), PAGE - 16), (MemoryClass::HeapOverhead, Some("libc"), 16)],
    );
    // Other memory is resident beside the block.
    let mapped = [anonymous(4 * MIB, 40 * MIB, 2 * MIB)];
    let pages =
        ResidentPages::synthetic(spans([(4 * MIB, PAGE), (44 * MIB - 2 * MIB + PAGE, 2 * MIB - PAGE)]), Vec::new());
    let expected = [
        (MemoryClass::LiveBlocks, Some("libc"), PAGE - 16),
        (MemoryClass::HeapOverhead, Some("libc"), 16),
        (MemoryClass::Unexplained, None, 2 * MIB - PAGE),
    ];
    check_with(&mapped, &pages, &[block(4 * MIB + 16, 36 * MIB, 0)], evidence(), &expected);
}

/// A block of 600 MiB in a heap with free memory: its size is no evidence of what is live in other mappings.
#[test]
fn a_block_that_was_not_touched_makes_no_free_memory_live() {
    let mapped = [memory(MIB, 40 * MIB, 40 * MIB, RegionKind::Brk), anonymous(100 * MIB, 600 * MIB, PAGE)];
    check(
        &mapped,
        &[block(MIB + 16, 48, 0), block(100 * MIB + 16, 599 * MIB, 0)],
        &[
            (MemoryClass::LiveBlocks, Some("libc"), PAGE - 16 + 48),
            (MemoryClass::HeapOverhead, Some("libc"), 40 * MIB + 16 - 48),
        ],
    );
}

#[test]
fn where_pages_are_unknown_a_block_claims_what_is_resident() {
    let mapped = [anonymous(4 * MIB, 40 * MIB, 2 * MIB)];
    let pages = ResidentPages::synthetic(Vec::new(), spans([(4 * MIB, 40 * MIB)]));
    check_with(
        &mapped,
        &pages,
        &[block(4 * MIB, MIB, 0)],
        evidence(),
        &[(MemoryClass::LiveBlocks, Some("libc"), MIB), (MemoryClass::Unexplained, None, MIB)],
    );
}

/// A mapping into which the kernel has merged memory of the program, a stack, and an allocator's memory.
#[test]
fn merged_memory_is_divided_by_what_is_known_of_it() {
    let mapped = [anonymous(64 * MIB, 16 * MIB, 16 * MIB)];
    let evidence = Evidence {
        own: vec![HeapId(1)],
        stacks: spans([(66 * MIB, MIB)]),
        extents: [(HeapId(1), spans([(68 * MIB, 2 * MIB), (72 * MIB, 2 * MIB)]))].into(),
        variables: spans([(64 * MIB, MIB)]),
        ..evidence()
    };
    let blocks = [
        block(68 * MIB, 100, 1),
        block(76 * MIB + 10, 100, 1),
        BlockPlace { is_mapping: true, ..block(66 * MIB, 2 * MIB, 2) },
    ];
    check_with(
        &mapped,
        &first_pages(&mapped),
        &blocks,
        evidence,
        &[
            (MemoryClass::LiveBlocks, Some("jemalloc"), 200),
            (MemoryClass::LiveBlocks, Some("mmap"), MIB),
            (MemoryClass::HeapOverhead, Some("jemalloc"), 4 * MIB + PAGE - 200),
            (MemoryClass::Stacks, None, MIB),
            (MemoryClass::Files, None, MIB),
            (MemoryClass::Unexplained, None, 9 * MIB - PAGE),
        ],
    );
}

/// A sampled block stands for others, which are in the same mapping or known to be the heap's.
#[test]
fn sampled_blocks_stand_for_others_in_their_mapping() {
    let mapped = [anonymous(64 * MIB, 16 * MIB, 16 * MIB)];
    let interval = Interval::nearest(1 << 20);
    let sampled = BlockPlace { interval, ..block(65 * MIB, 128 << 10, 0) };
    let bytes = round(sampled.weight() * f64::from(128_u32 << 10));
    check(
        &mapped,
        &[sampled],
        &[(MemoryClass::LiveBlocks, Some("libc"), bytes), (MemoryClass::Unexplained, None, 16 * MIB - bytes)],
    );
    let extents = [(HeapId(1), spans([(64 * MIB, 8 * MIB)]))].into();
    check_with(
        &mapped,
        &first_pages(&mapped),
        &[BlockPlace { heap: HeapId(1), ..sampled }],
        Evidence { extents, ..evidence() },
        &[
            (MemoryClass::LiveBlocks, Some("jemalloc"), bytes),
            (MemoryClass::HeapOverhead, Some("jemalloc"), 8 * MIB - bytes),
            (MemoryClass::Unexplained, None, 8 * MIB),
        ],
    );
}

#[test]
fn brk_belongs_to_the_allocator_that_has_blocks_there() {
    let mapped = [memory(MIB, 4 * MIB, 4 * MIB, RegionKind::Brk)];
    let both = Evidence { own: vec![HeapId(0), HeapId(1)], ..evidence() };
    check_with(
        &mapped,
        &first_pages(&mapped),
        &[],
        both.clone(),
        &[(MemoryClass::OtherAllocator, Some("brk"), 4 * MIB)],
    );
    check_with(
        &mapped,
        &first_pages(&mapped),
        &[block(2 * MIB, MIB, 1)],
        both,
        &[(MemoryClass::LiveBlocks, Some("jemalloc"), MIB), (MemoryClass::HeapOverhead, Some("jemalloc"), 3 * MIB)],
    );
    // A pool has its memory from glibc.
    check(&mapped, &[block(2 * MIB, 32, 3)], &[(MemoryClass::HeapOverhead, Some("libc"), 4 * MIB)]);
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
    let evidence = Evidence { pointers: vec![TargetAddr(0x1800)], ..evidence() };
    let mapped = [anonymous(0x1000, PAGE, PAGE), anonymous(0x3000, PAGE, PAGE)];
    let expected = [(MemoryClass::Stacks, None, PAGE), (MemoryClass::Unexplained, None, PAGE)];
    check_with(&mapped, &first_pages(&mapped), &[], evidence, &expected);
}

#[test]
fn a_heap_keeps_a_mapping_whose_blocks_are_freed() {
    let (mut evidence, mapped) = (evidence(), [anonymous(MIB, MIB, 9 * PAGE)]);
    let pages = first_pages(&mapped);
    let contents = Contents::of(&mapped, std::iter::once(block(MIB + 32, 32, 1)), &mut evidence);
    assert_eq!(classify(&mapped, &pages, &contents, &evidence).parts[0].class, MemoryClass::LiveBlocks);
    evidence.retain(&mapped);
    let parts = classify(&mapped, &pages, &Contents::default(), &evidence).parts;
    assert_eq!(
        parts,
        [MemoryPart { class: MemoryClass::HeapOverhead, name: Some("jemalloc".into()), bytes: 9 * PAGE }]
    );
    evidence.retain(&[]);
    assert_eq!(evidence.known, BTreeMap::new(), "until it is unmapped");
}

#[test]
fn a_process_cannot_create_many_parts() {
    let mapped: Vec<_> = (0..50_u64).map(|at| named((1 + 2 * at) * MIB, &format!("name{at}"))).collect();
    let parts = classify(&mapped, &first_pages(&mapped), &Contents::default(), &evidence()).parts;
    assert!(parts.len() <= NAMES_MAX + 1, "{}", parts.len());
    assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), 50 * PAGE);
}

#[test]
fn recorded_mappings_explain_what_no_other_heap_does() {
    let mapping = BlockPlace { is_mapping: true, ..block(4 * MIB, 4 * MIB, 2) };
    let mapped = [anonymous(4 * MIB, MIB, MIB), anonymous(5 * MIB, MIB, MIB), anonymous(7 * MIB, 3 * MIB, 3 * MIB)];
    check(
        &mapped,
        &[block(5 * MIB + 32, 32, 1), mapping],
        &[
            (MemoryClass::LiveBlocks, Some("jemalloc"), 32),
            (MemoryClass::LiveBlocks, Some("mmap"), 2 * MIB),
            (MemoryClass::HeapOverhead, Some("jemalloc"), MIB - 32),
            (MemoryClass::Unexplained, None, 2 * MIB),
        ],
    );
}

/// The inline engine's memory includes its own map, which is shared memory.
#[test]
fn what_the_inline_engine_has_mapped_is_its_own() {
    let file =
        |start, size_bytes, path: &str| memory(start, size_bytes, size_bytes, RegionKind::File { path: path.into() });
    let (mut map, mut other) = (file(0x16000, MIB, "anon_inode:bpf-map"), file(40 * MIB, MIB, "anon_inode:bpf-map"));
    (map.region.shared, other.region.shared) = (true, true);
    let stubs = file(0x10000, 4 * PAGE, "/memfd:heapbpf-stubs (deleted)");
    check(
        &[stubs, anonymous(0x14000, 2 * PAGE, PAGE), map, anonymous(30 * MIB, PAGE, PAGE), other],
        &[],
        &[
            (MemoryClass::OtherAllocator, Some("heapbpf"), MIB + 5 * PAGE),
            (MemoryClass::Shared, None, MIB),
            (MemoryClass::Unexplained, None, PAGE),
        ],
    );
}
