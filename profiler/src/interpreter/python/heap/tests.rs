//! Heaps that are built here, as Objects/obmalloc.c lays them out.

use std::cell::RefCell;
use std::collections::BTreeMap;

use heapbpf_ledger::model::HeapBlocks;
use heapbpf_linux::process_memory::PageState;
use proptest::prelude::*;

use super::super::super::memory::Memory;
use super::super::super::version::Version;
use super::pools::{POOL_HEADER_BYTES, SIZES, block_bytes};
use super::*;

const PAGE: u64 = 4096;
const TABLE: u64 = 0x40_0000;
/// A word of the data that refers to the list of arenas, before 3.12.
const ARENAS_WORD: u64 = TABLE + 0x400;
const ARENAS: u64 = 0x1000_0000;
const ARENA: u64 = 0x7000_0000_0000;
const TYPES: u64 = 0x2000_0000;
const TYPE_OF_TYPES: u64 = TYPES;
const NAMES: u64 = 0x2100_0000;
const COLLECTED: u64 = 1 << 14;
const ON_HEAP: u64 = 1 << 9;
const IS_LIST: u64 = 1 << 25;
const IS_DICT: u64 = 1 << 29;
const IS_TYPE: u64 = 1 << 31;

/// Memory by page.
#[derive(Default)]
struct Fake {
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
    swapped: Vec<u64>,
    types: u64,
}

impl Memory for Fake {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let pages = self.pages(address, buffer.len() as u64)?;
        pages.iter().all(|page| *page == PageState::Present).then(|| self.fill_from_files(address, buffer))?
    }
}

impl HeapMemory for Fake {
    fn fill_pages(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.fill_from_files(address, buffer)
    }

    fn is_mapped(&self, address: u64) -> bool {
        self.pages.borrow().contains_key(&(address / PAGE))
    }

    fn pages(&self, address: u64, length: u64) -> Option<Vec<PageState>> {
        let pages = self.pages.borrow();
        let state = |page: u64| match pages.contains_key(&page) {
            _ if self.swapped.contains(&page) => PageState::Swapped,
            true => PageState::Present,
            false => PageState::Absent,
        };
        Some((address / PAGE..address.checked_add(length)?.div_ceil(PAGE)).map(state).collect())
    }

    fn fill_from_files(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let pages = self.pages.borrow();
        for (at, byte) in (address..).zip(buffer) {
            *byte = pages.get(&(at / PAGE))?[usize::try_from(at % PAGE).expect("small")];
        }
        Some(())
    }
}

impl Fake {
    fn write(&self, address: u64, bytes: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        for (at, byte) in (address..).zip(bytes) {
            let page = pages.entry(at / PAGE).or_insert_with(|| vec![0; 4096]);
            page[usize::try_from(at % PAGE).expect("small")] = *byte;
        }
    }

    fn words(&self, address: u64, words: &[u64]) {
        self.write(address, &words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    }

    /// A type, whose objects have this size.
    fn define(&mut self, name: &str, size_bytes: u64, flags: u64) -> u64 {
        let address = TYPES + 0x1000 * self.types;
        let name_at = NAMES + 0x100 * self.types;
        self.types += 1;
        self.write(name_at, format!("{name}\0").as_bytes());
        self.words(address, &[1, TYPE_OF_TYPES, 0, name_at, size_bytes, 0]);
        self.words(address + 168, &[flags]);
        self.words(address + 264, &[0]);
        address
    }
}

/// A heap with one arena.
struct Heap {
    memory: Fake,
    layout: Layout,
    pools: u64,
    list: u64,
    dict: u64,
    session: u64,
}

fn version(minor: u8) -> Layout {
    Layout::of(Version { major: 3, minor }, 48, 72)
}

impl Heap {
    fn new(minor: u8) -> Self {
        let mut memory = Fake::default();
        memory.define("type", 800, IS_TYPE | COLLECTED);
        let list = memory.define("list", 40, IS_LIST | COLLECTED);
        let dict = memory.define("dict", 48, IS_DICT | COLLECTED);
        let session = memory.define("app.Session", 48, ON_HEAP);
        let layout = version(minor);
        for size in 0..SIZES as u64 {
            let own = TABLE + 16 * size - 16;
            memory.words(TABLE + 16 * size, &[own, own]);
        }
        let heap = Self { memory, layout, pools: 0, list, dict, session };
        if layout.is_one_state {
            heap.memory.words(TABLE + 512, &[ARENAS, 16]);
        } else {
            heap.memory.words(ARENAS_WORD, &[ARENAS]);
        }
        heap.set_arena();
        heap
    }

    fn set_arena(&self) {
        let unused = ARENA + self.pools * self.layout.pool_bytes;
        self.memory.words(ARENAS, &[ARENA, unused, 64 << 32, 0, 0, 0]);
        self.memory.words(ARENAS + 48, &[0; 90]);
    }

    /// Adds a pool. Blocks that are `None` are free. Returns the address of the first block.
    fn pool(&mut self, size_bytes: u64, blocks: &[Option<Vec<u64>>]) -> u64 {
        let size = u8::try_from(size_bytes / 16 - 1).expect("small");
        assert_eq!(block_bytes(size), size_bytes);
        let pool = ARENA + self.pools * self.layout.pool_bytes;
        let first = pool + POOL_HEADER_BYTES as u64;
        self.pools += 1;
        let mut free = 0;
        let mut count = 0;
        for (number, block) in blocks.iter().enumerate() {
            let at = first + number as u64 * size_bytes;
            self.memory.words(at, &vec![0; usize::try_from(size_bytes / 8).expect("small")]);
            match block {
                Some(words) => {
                    count += 1;
                    self.memory.words(at, words);
                }
                None => {
                    self.memory.words(at, &[free]);
                    free = at;
                }
            }
        }
        let unused = POOL_HEADER_BYTES as u64 + blocks.len() as u64 * size_bytes;
        self.memory.words(pool, &[count, free, 0, 0, u64::from(size) << 32, unused]);
        self.memory.words(TABLE + 16 * u64::from(size), &[pool, pool]);
        self.set_arena();
        first
    }

    fn count(&self) -> Result<ObjectTypes, HeapError> {
        let section = TABLE..TABLE + 0x800;
        let data = Data { sections: vec![section.clone()], module: section };
        super::count(&self.memory, &data, self.layout, TYPE_OF_TYPES, MonotonicNanos(7))
    }

    fn rows(&self) -> Vec<(String, u64, u64, u64)> {
        let counted = self.count().expect("it is a heap");
        counted.types.iter().map(|one| (one.name.to_string(), one.objects, one.bytes, one.large_bytes)).collect()
    }

    /// An object, behind the two words of the collector if it has them.
    fn object(&self, of: u64, words: &[u64], is_collected: bool) -> Option<Vec<u64>> {
        let before: &[u64] = if is_collected { &[0x7000_0000_1000, 0x7000_0000_2000] } else { &[] };
        Some([before, &[1, of], words].concat())
    }
}

const LAYOUTS: [u8; 4] = [8, 10, 11, 13];

#[test]
fn objects_are_counted_with_their_tables() {
    for minor in LAYOUTS {
        let mut heap = Heap::new(minor);
        let items = heap.pool(64, &[Some(vec![5; 8]), None]);
        let session = heap.object(heap.session, &[1, 2, 3, 4], false);
        heap.pool(48, &[session.clone(), None, session.clone(), session]);
        let small = heap.object(heap.list, &[3, items, 8], true);
        let large = heap.object(heap.list, &[3, 0x3000_0000, 100], true);
        heap.pool(64, &[small, None, large, heap.object(heap.list, &[0, 0, 0], true)]);
        let expected = [("list", 3, 4 * 64, 800), ("app.Session", 3, 3 * 48, 0)];
        let expected: Vec<_> = expected.into_iter().map(|(name, a, b, c)| (name.to_owned(), a, b, c)).collect();
        assert_eq!(heap.rows(), expected, "3.{minor}");
        let counted = heap.count().expect("it is a heap");
        assert_eq!(counted.blocks, HeapBlocks { blocks: 7, bytes: 3 * 48 + 4 * 64 });
        assert_eq!((counted.other, counted.unread), (HeapBlocks::default(), HeapBlocks::default()));
        assert_eq!((counted.reserved_bytes, counted.one_of), (heap.layout.arena_bytes, 1));
        assert!(counted.is_exact() && counted.since.is_none() && counted.time == MonotonicNanos(7));
    }
}

#[test]
fn tables_of_keys_have_the_sizes_of_their_versions() {
    // Two thirds of 32 slots can be used; an index has a byte.
    for (minor, head, bytes) in [
        (10, [1, 32, 0, 0, 5], 40 + 32 + 21 * 24),
        // The logarithms of the slots and of the bytes of indexes, and the kind: only strings.
        (11, [1, 5 | 5 << 8 | 1 << 16, 0, 5, 0], 32 + 32 + 21 * 16),
        (11, [1, 5 | 5 << 8, 0, 5, 0], 32 + 32 + 21 * 24),
    ] {
        let mut heap = Heap::new(minor);
        heap.memory.words(0x3000_0000, &head);
        let dict = heap.object(heap.dict, &[5, 0, 0x3000_0000, 0], true);
        heap.pool(64, &[dict]);
        let large = if bytes > 512 { bytes } else { 0 };
        assert_eq!(heap.rows(), [("dict".to_owned(), 1, 64, large)], "3.{minor}: {bytes}");
    }
}

#[test]
fn what_looks_like_an_object_is_none() {
    let mut heap = Heap::new(11);
    let of = heap.session;
    let others = [
        // A list's items: the address of an object, and a type.
        vec![0x7000_0000_0040, of, 0, 0, 0, 0],
        // The same in a program at low addresses.
        vec![TABLE, of, 0, 0, 0, 0],
        // Freed, and kept by its type.
        vec![0, of, 0, 0, 0, 0],
        // Not a type.
        vec![1, of + 8, 0, 0, 0, 0],
        vec![1, 0x7000_0000_0040, 0, 0, 0, 0],
        vec![1, u64::MAX, 0, 0, 0, 0],
    ];
    heap.pool(48, &others.map(Some));
    // Too large for the type.
    heap.pool(64, &[heap.object(of, &[], false)]);
    // A list without the words of the collector.
    heap.pool(80, &[heap.object(heap.list, &[0, 0, 0], false)]);
    let counted = heap.count().expect("it is a heap");
    assert_eq!((counted.types, counted.other.blocks), (Vec::new(), 8));
}

#[test]
fn debug_hooks_are_around_objects() {
    let mut heap = Heap::new(11);
    let head =
        |letter: u8| [48_u64.swap_bytes(), u64::from_le_bytes([letter, 0xfd, 0xfd, 0xfd, 0xfd, 0xfd, 0xfd, 0xfd])];
    let object =
        |letter| Some([head(letter).as_slice(), &[1, heap.session, 7, 0, 0, 0, u64::MAX / 255 * 0xfd]].concat());
    let blocks = [object(b'o'), object(b'x')];
    heap.pool(80, &blocks);
    assert_eq!(heap.rows(), [("app.Session".to_owned(), 1, 80, 0)]);
}

#[test]
fn a_pool_that_cannot_be_true_is_not_read() {
    let broken: [fn(&Heap, u64); 4] = [
        // Another number of live blocks.
        |heap, pool| heap.memory.words(pool, &[1]),
        // The list of free blocks leaves the pool, is between blocks, or is endless.
        |heap, pool| heap.memory.words(pool + 8, &[pool + 0x10_0000]),
        |heap, pool| heap.memory.words(pool + 8, &[pool + 56]),
        |heap, pool| heap.memory.words(pool + 48 + 48, &[pool + 48 + 48]),
    ];
    for break_it in broken {
        let mut heap = Heap::new(12);
        let session = heap.object(heap.session, &[], false);
        let pool = heap.pool(48, &[session.clone(), None, session]) - 48;
        break_it(&heap, pool);
        let counted = heap.count().expect("it is a heap");
        assert_eq!((counted.types.len(), counted.other.blocks), (0, 0));
        assert!(counted.unread.blocks > 0 && !counted.is_exact());
    }
}

#[test]
fn what_is_swapped_out_is_not_read() {
    let mut heap = Heap::new(12);
    let session = heap.object(heap.session, &[], false);
    // Its blocks are in two pages.
    let pool = heap.pool(48, &vec![session; 100]) - 48;
    heap.memory.swapped.push(pool / PAGE + 1);
    let counted = heap.count().expect("it is a heap");
    assert_eq!((counted.types.len(), counted.unread), (0, HeapBlocks { blocks: 100, bytes: 4800 }));
    // What was never touched is empty: an object that begins before it has its type.
    heap.memory.swapped.clear();
    heap.memory.pages.borrow_mut().remove(&(pool / PAGE + 1));
    let counted = heap.count().expect("it is a heap");
    assert_eq!((counted.types[0].objects, counted.other.blocks, counted.unread.blocks), (85, 15, 0));
}

#[test]
fn without_pools_there_is_no_heap() {
    assert_eq!(Heap::new(12).count(), Err(HeapError::NoPools));
    let mut heap = Heap::new(9);
    heap.pool(48, &[heap.object(heap.session, &[], false)]);
    heap.memory.words(ARENAS_WORD, &[ARENAS + 48]);
    assert_eq!(heap.count(), Err(HeapError::NoPools), "no arena has the pool");
    heap.memory.words(TYPE_OF_TYPES, &[1, 0]);
    heap.memory.words(ARENAS_WORD, &[ARENAS]);
    assert_eq!(heap.count(), Err(HeapError::NoTypes));
}

#[test]
fn one_pool_of_each_group_is_chosen() {
    for one_of in [1, 2, 3, 7] {
        let mut places = vec![0; usize::try_from(one_of).expect("small")];
        for group in 0..700 {
            let chosen: Vec<u64> = (0..one_of).filter(|within| is_chosen(group * one_of + within, one_of)).collect();
            assert_eq!(chosen.len(), 1, "{group} of {one_of}");
            places[usize::try_from(chosen[0]).expect("small")] += 1;
        }
        let expected = 700 / one_of;
        assert!(places.iter().all(|count| expected.abs_diff(*count) * 4 <= expected), "{one_of}: {places:?}");
    }
}

proptest! {
    /// A target can write anything into its memory.
    #[test]
    fn any_words_give_numbers_or_an_error(
        blocks in proptest::collection::vec(proptest::collection::vec(word(), 6), 1..40),
        spoilt in proptest::collection::vec((0..0x400_u64, word()), 0..6),
    ) {
        let mut heap = Heap::new(11);
        let blocks: Vec<Option<Vec<u64>>> = blocks.into_iter().map(Some).collect();
        let pool = heap.pool(48, &blocks) - 48;
        for (at, word) in spoilt {
            let base = [pool, ARENAS, TYPES + 0x3000, TABLE][usize::try_from(at % 4).expect("small")];
            heap.memory.words(base + at / 4 * 8, &[word]);
        }
        if let Ok(counted) = heap.count() {
            let objects: u64 = counted.types.iter().map(|one| one.objects).sum();
            prop_assert!(objects + counted.other.blocks + counted.unread.blocks <= 2 * counted.blocks.blocks + 1);
        }
    }
}

fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..64_u64,
        (0..0x8000_u64).prop_map(|at| TYPES + at * 8),
        (0..0x1000_u64).prop_map(|at| ARENA + at * 8),
    ]
}
