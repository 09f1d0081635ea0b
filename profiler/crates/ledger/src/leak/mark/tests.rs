//! libmemunreachable's cases of walking a heap, and random memory compared with an implementation by sets.

use heapbpf_base::memory::Copied;
use proptest::prelude::*;

use super::*;
use crate::leak::blocks::Block;
use crate::leak::tests::synthetic::Synthetic;

/// Addresses of the memory of roots and of the heap in these tests.
const ROOTS: u64 = 0x1000;
const HEAP: u64 = 0x10_0000;

fn heap_of(blocks: &[(u64, u64)]) -> Synthetic {
    let mut synthetic = Synthetic::default().with(ROOTS, 0x1000).with(HEAP, 0x1000);
    blocks.iter().for_each(|&(start, size)| synthetic.block(HEAP + start, size));
    synthetic.root_range(ROOTS..ROOTS + 0x1000);
    synthetic
}

/// libmemunreachable's case: allocated memory is found.
#[test]
fn allocation() {
    let synthetic = heap_of(&[(0x20, 16), (0, 16)]);
    assert_eq!(synthetic.blocks().len(), 2);
}

/// libmemunreachable's case: addresses of blocks are recognized wherever they are in the address space.
#[test]
fn mapping() {
    let mut synthetic = Synthetic::default().with(ROOTS, 0x100);
    for (slot, start) in [HEAP, 1 << 40, untagged(u64::MAX - 32)].into_iter().enumerate() {
        synthetic.block(start, 16);
        synthetic.write(ROOTS + 8 * slot as u64, start + 15);
    }
    synthetic.block(8, 8);
    synthetic.root_range(ROOTS..ROOTS + 0x100);
    assert_eq!(synthetic.unreached(), [8]);
}

/// The upper byte of an address is a tag where the processor ignores it.
#[test]
fn tagged() {
    let mut synthetic = heap_of(&[(0, 16), (0x20, 16)]);
    synthetic.write(ROOTS, HEAP | 0xa5 << 56);
    synthetic.write(ROOTS + 8, (HEAP + 0x20) | 0xa5 << 48);
    assert_eq!(
        synthetic.unreached(),
        if cfg!(target_arch = "aarch64") { vec![HEAP + 0x20] } else { vec![HEAP, HEAP + 0x20] }
    );
}

/// libmemunreachable's case: a block to which no word points leaks.
#[test]
fn leak() {
    assert_eq!(heap_of(&[(0, 16)]).unreached(), [HEAP]);
    let mut synthetic = heap_of(&[(0, 16), (0x20, 16)]);
    // One word points behind the block's end, and one before its start.
    synthetic.write(ROOTS, HEAP + 16);
    synthetic.write(ROOTS + 8, HEAP + 0x1f);
    assert_eq!(synthetic.unreached(), [HEAP, HEAP + 0x20]);
}

/// libmemunreachable's case: any slot of the roots keeps the block, whichever of its bytes the slot points at.
#[test]
fn live() {
    for slot in 0..16 {
        for byte in 0..16 {
            let mut synthetic = Synthetic::default().with(ROOTS, 128);
            synthetic.block(HEAP, 16);
            synthetic.root_range(ROOTS..ROOTS + 128);
            assert_eq!(synthetic.unreached(), [HEAP]);
            synthetic.write(ROOTS + 8 * slot, HEAP + byte);
            assert_eq!(synthetic.unreached(), [0; 0], "slot {slot}, byte {byte}");
        }
    }
}

/// libmemunreachable's case: ranges of roots begin and end anywhere, and the words count that are wholly in them.
#[test]
fn unaligned() {
    for start in 0..8 {
        for end in 0..8 {
            for slot in 0..4 {
                let mut synthetic = Synthetic::default().with(ROOTS, 32);
                synthetic.block(HEAP, 16);
                synthetic.write(ROOTS + 8 * slot, HEAP);
                synthetic.root_range(ROOTS + start..ROOTS + 32 - end);
                let is_whole = !(slot == 0 && start > 0 || slot == 3 && end > 0);
                let expected: &[u64] = if is_whole { &[] } else { &[HEAP] };
                assert_eq!(synthetic.unreached(), expected, "{start} to {end}, slot {slot}");
            }
        }
    }
}

/// Words that are not aligned do not count.
#[test]
fn unaligned_words() {
    for offset in 1..8 {
        let mut synthetic = heap_of(&[(0, 16), (0x20, 64)]);
        synthetic.write(ROOTS + offset, HEAP);
        synthetic.write(ROOTS + 16, HEAP + 0x20);
        synthetic.write(HEAP + 0x20 + offset, HEAP);
        assert_eq!(synthetic.unreached(), [HEAP], "offset {offset}");
    }
}

/// libmemunreachable's case: blocks that hold each other leak, unless something else holds one of them.
#[test]
fn cycle() {
    let mut synthetic = heap_of(&[(0, 16), (0x20, 16), (0x40, 16)]);
    synthetic.write(HEAP, HEAP + 0x20);
    synthetic.write(HEAP + 0x20, HEAP);
    synthetic.write(HEAP + 0x40, HEAP + 0x40);
    assert_eq!(synthetic.unreached(), [HEAP, HEAP + 0x20, HEAP + 0x40]);
    synthetic.write(ROOTS + 0xff8, HEAP + 0x28);
    assert_eq!(synthetic.unreached(), [HEAP + 0x40]);
}

/// libmemunreachable's case of memory that cannot be read: the memory behind it is still read.
#[test]
fn segv() {
    let mut synthetic = Synthetic::default().with(ROOTS, 0x1000).with(ROOTS + 0x3000, 0x1000).with(HEAP, 0x1000);
    synthetic = synthetic.with(HEAP + 0x8000, 0x1000);
    synthetic.root_range(ROOTS..ROOTS + 0x9000);
    synthetic.block(HEAP, 0x9000);
    synthetic.block(HEAP + 0x1_0000, 16);
    synthetic.block(HEAP + 0x2_0000, 16);
    synthetic.write(ROOTS + 0x3008, HEAP + 0x4000);
    synthetic.write(HEAP + 0x8ff8, HEAP + 0x1_0000);
    assert_eq!(synthetic.unreached(), [HEAP + 0x2_0000]);
}

#[test]
fn words_of_registers() {
    let mut synthetic = heap_of(&[(0, 16), (0x20, 16)]);
    synthetic.roots.words = vec![0, u64::MAX, HEAP + 0x2f];
    assert_eq!(synthetic.unreached(), [HEAP]);
}

/// Recorded blocks in memory that otherwise counts as roots hold neither themselves nor each other.
#[test]
fn root_ranges_around_blocks() {
    let mut synthetic = heap_of(&[(0, 16), (0x20, 12), (0x40, 16), (0x62, 20), (0x100, 0x100)]);
    synthetic.root_range(HEAP..HEAP + 0x1000);
    synthetic.write(HEAP, HEAP);
    synthetic.write(HEAP + 0x20, HEAP + 0x40);
    // Words that are partly in a block count for neither side.
    synthetic.write(HEAP + 0x28, HEAP + 0x40);
    synthetic.write(HEAP + 0x60, HEAP + 0x40);
    synthetic.write(HEAP + 0x70, HEAP + 0x40);
    synthetic.write(HEAP + 0x10, HEAP + 0x105);
    synthetic.write(HEAP + 0x1f8, HEAP + 0x62);
    assert_eq!(synthetic.unreached(), [HEAP, HEAP + 0x20, HEAP + 0x40]);
    assert_eq!(synthetic.unreached(), synthetic.unreached_by_sets());
}

/// If a block and a range of roots cover the whole address space, the search ends at once, since no memory is there.
#[test]
fn hostile_ranges() {
    let mut synthetic = Synthetic::default().with(ROOTS, 0x1000);
    synthetic.block(0x10_0000, u64::MAX);
    synthetic.root_range(0..u64::MAX);
    synthetic.roots.ranges.push(Range { start: TargetAddr(5), end: TargetAddr(3) });
    synthetic.roots.words = vec![0x10_0000];
    assert_eq!(synthetic.unreached(), [0; 0]);
}

/// A list of all blocks does not overflow the stack.
#[test]
fn a_chain_of_many_blocks() {
    // The number of blocks is ten times the depth that a recursion could reach.
    let count: usize = 300_000;
    let mut bytes = vec![0; 16 * count];
    for (number, block) in bytes.chunks_exact_mut(16).enumerate() {
        // The list runs forwards and backwards in turns.
        let next = HEAP + 16 * ((number + 177_779) % count) as u64;
        block[..8].copy_from_slice(&next.to_le_bytes());
    }
    let all: Vec<u8> = (0..count).flat_map(|number| (HEAP + 16 * number as u64).to_le_bytes()).collect();
    let array = 1 << 40;
    let pieces = [(TargetAddr(HEAP), bytes.into()), (TargetAddr(array), all.into())];
    let memory = Copied::new(pieces);
    let given =
        (0..count).map(|number| Block { start: TargetAddr(HEAP + 16 * number as u64), size_bytes: 16, origin: 0 });
    let array_block = Block { start: TargetAddr(array), size_bytes: 8 * count as u64, origin: 0 };
    let (blocks, _) = Blocks::new(given.chain([array_block]).collect());
    for threads in [1, 3] {
        for (word, left) in [(HEAP, 1), (array, 0), (0, count + 1)] {
            let roots = Roots { ranges: Vec::new(), words: vec![word] };
            assert_eq!(mark_with(&blocks, &roots, &memory, threads).unreached().count(), left);
        }
    }
}

/// Blocks, words in memory, and roots: a word is in a slot anywhere and points at a byte of a block, or near one.
fn any_memory() -> impl Strategy<Value = Synthetic> {
    let sizes = prop::collection::vec((0u64..80, 0u64..24), 1..60);
    let words = prop::collection::vec((any::<u16>(), any::<u16>(), 0u64..90), 0..120);
    let roots = prop::collection::vec((0u64..0x1000, 0u64..0x200), 0..4);
    let registers = prop::collection::vec(any::<u16>(), 0..3);
    (sizes, words, roots, registers, 0u64..16).prop_map(|(sizes, words, roots, registers, skew)| {
        let mut synthetic = Synthetic::default().with(ROOTS, 0x100).with(HEAP, 0xffc).with(HEAP + 0xffc, 0x1004);
        let (mut start, mut starts) = (HEAP + skew, Vec::new());
        for (size, gap) in sizes {
            synthetic.block(start, size);
            starts.push(start);
            start += size.max(1) + gap;
        }
        for (slot, to, offset) in words {
            let slot = u64::from(slot % 0x220) * 8;
            let at = if slot < 0x100 { ROOTS + slot } else { HEAP + slot - 0x100 };
            if at + 8 <= HEAP + 0xffc || at >= HEAP + 0xffc && at + 8 <= HEAP + 0x2000 {
                synthetic.write(at, starts[usize::from(to) % starts.len()] + offset);
            }
        }
        roots.iter().for_each(|&(start, length)| synthetic.root_range(HEAP + start..HEAP + start + length));
        synthetic.root_range(ROOTS + 3..ROOTS + 0x45);
        synthetic.roots.words = registers.iter().map(|&to| starts[usize::from(to) % starts.len()]).collect();
        synthetic
    })
}

proptest! {
    #[test]
    fn marks_agree_with_sets(synthetic in any_memory()) {
        prop_assert_eq!(synthetic.unreached(), synthetic.unreached_by_sets());
    }

    #[test]
    fn later_words_mark_as_much(synthetic in any_memory(), first in 0_usize..4) {
        let (blocks, marks, memory) = synthetic.mark();
        let words: Vec<u64> = marks.unreached().skip(first).step_by(3).map(|id| blocks.get(id).start.0).collect();
        mark_also(&marks, &blocks, words.clone(), &memory);
        let mut roots = synthetic.roots.clone();
        roots.words.extend(words);
        let at_once = mark(&blocks, &roots, &memory);
        prop_assert_eq!(marks.unreached().collect::<Vec<_>>(), at_once.unreached().collect::<Vec<_>>());
    }
}
