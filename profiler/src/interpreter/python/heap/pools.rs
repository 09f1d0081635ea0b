//! Arenas, pools and blocks.

use std::collections::BTreeSet;

use heapbpf_linux::process_memory::PageState;
use rustc_hash::FxHashMap;

use super::super::super::memory::{HeapMemory, Memory};
use super::layout::Layout;

/// Number of sizes of blocks: multiples of 16 bytes.
pub(super) const SIZES: usize = 32;
const ALIGNMENT: u64 = 16;
/// `struct pool_header`.
pub(super) const POOL_HEADER_BYTES: usize = 48;
/// `struct arena_object`.
pub(super) const ARENA_OBJECT_BYTES: usize = 48;
/// Arenas of 1 TiB.
const ARENAS_MAX: u64 = 1 << 20;
/// How often a pool that changes is read.
const TRIES: usize = 4;

/// Where the list of arenas is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) arenas: u64,
    /// `None` where the length is not known: the list ends where it is malformed.
    pub(super) count: Option<u32>,
}

impl Root {
    /// Whether the arena that a pool names contains it.
    pub(super) fn has(&self, memory: &dyn HeapMemory, pool: &Pool, layout: Layout) -> bool {
        let is_inside = self.count.is_none_or(|count| pool.arena < count);
        let at = self.arenas.checked_add(u64::from(pool.arena) * ARENA_OBJECT_BYTES as u64);
        let arena = at.and_then(|at| Memory::bytes(&memory, at)).and_then(|bytes| ArenaObject::of(&bytes, layout));
        is_inside && arena.is_some_and(|arena| arena.contains(pool.address, layout))
    }
}

/// An arena that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaObject {
    address: u64,
    /// The next pool that was never used.
    unused: u64,
}

impl ArenaObject {
    /// `None` of one that does not exist, or is malformed.
    pub(super) fn of(bytes: &[u8; ARENA_OBJECT_BYTES], layout: Layout) -> Option<Self> {
        let [address, unused, counts, _, _, _] = words(bytes);
        let [free, all] = [counts & u64::from(u32::MAX), counts >> 32];
        let arena = Self { address, unused };
        let end = address.checked_add(layout.arena_bytes)?;
        let is_sound = address != 0
            && unused.is_multiple_of(layout.pool_bytes)
            && (address..=end).contains(&unused)
            && free <= all
            && all <= layout.arena_bytes / layout.pool_bytes;
        is_sound.then_some(arena)
    }

    fn first_pool(&self, layout: Layout) -> u64 {
        self.address.next_multiple_of(layout.pool_bytes)
    }

    pub(super) fn contains(&self, pool: u64, layout: Layout) -> bool {
        pool.is_multiple_of(layout.pool_bytes) && (self.first_pool(layout)..self.unused).contains(&pool)
    }
}

/// A pool's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) address: u64,
    /// Number of its blocks that are allocated.
    pub(super) count: u32,
    /// Address of the first free block that was allocated before; 0 if there is none.
    free: u64,
    /// Index of the arena.
    pub(super) arena: u32,
    /// Index of the size of its blocks.
    pub(super) size: u8,
    /// Offset of the first block that was never allocated.
    unused: u32,
}

impl Pool {
    pub(super) fn read(memory: &dyn HeapMemory, address: u64) -> Option<Self> {
        Memory::bytes(&memory, address).and_then(|bytes| Self::of(address, &bytes))
    }

    /// `None` if it is malformed.
    fn of(address: u64, bytes: &[u8; POOL_HEADER_BYTES]) -> Option<Self> {
        let [count, free, _, _, indexes, offsets] = words(bytes);
        let pool = Self {
            address,
            count: low(count),
            free,
            arena: low(indexes),
            size: u8::try_from(indexes >> 32).ok().filter(|&size| usize::from(size) < SIZES)?,
            unused: low(offsets),
        };
        Some(pool)
    }

    pub(super) fn block_bytes(&self) -> u64 {
        block_bytes(self.size)
    }

    /// Whether it can be one of this layout: all of its blocks are within it.
    fn is_sound(&self, layout: Layout) -> bool {
        let first = POOL_HEADER_BYTES as u64;
        let behind = (layout.pool_bytes - first) / self.block_bytes() * self.block_bytes() + first;
        let unused = u64::from(self.unused);
        (first..=behind).contains(&unused)
            && (unused - first).is_multiple_of(self.block_bytes())
            && u64::from(self.count) <= (unused - first) / self.block_bytes()
    }
}

/// Size of blocks by its index.
pub(super) fn block_bytes(size: u8) -> u64 {
    (u64::from(size) + 1) * ALIGNMENT
}

fn words<const N: usize, const W: usize>(bytes: &[u8; N]) -> [u64; W] {
    std::array::from_fn(|at| bytes[8 * at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)))
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// All arenas, and their pools by address.
#[derive(Debug)]
pub(super) struct Arenas {
    layout: Layout,
    count: u64,
    /// Pools that have blocks, in the order of their arenas.
    used: Vec<Pool>,
    /// Index of the size of all pools that have blocks.
    sizes: FxHashMap<u64, u8>,
    /// Where they begin. Arenas do not overlap.
    starts: BTreeSet<u64>,
    /// Bytes of pools whose headers could not be read: they are swapped out.
    unread_bytes: u64,
}

impl Arenas {
    /// `None` if the list of arenas is swapped out in part.
    pub(super) fn read(memory: &dyn HeapMemory, root: Root, layout: Layout) -> Option<Self> {
        let mut arenas = Self {
            layout,
            count: 0,
            used: Vec::new(),
            sizes: FxHashMap::default(),
            starts: BTreeSet::new(),
            unread_bytes: 0,
        };
        let length = root.count.map_or(ARENAS_MAX, |count| u64::from(count).min(ARENAS_MAX));
        for index in 0..length {
            let at = root.arenas.wrapping_add(index * ARENA_OBJECT_BYTES as u64);
            let Some(bytes) = Memory::bytes(&memory, at) else {
                let pages = memory.pages(at, ARENA_OBJECT_BYTES as u64).unwrap_or_default();
                if pages.contains(&PageState::Swapped) {
                    return None;
                }
                break;
            };
            match ArenaObject::of(&bytes, layout) {
                Some(arena) => arenas.enter(memory, index, &arena),
                // One that does not exist has no address.
                None if words::<48, 1>(&bytes) == [0] => {}
                None if root.count.is_none() => break,
                None => {}
            }
        }
        Some(arenas)
    }

    fn enter(&mut self, memory: &dyn HeapMemory, index: u64, arena: &ArenaObject) {
        let around = arena.address.saturating_sub(self.layout.arena_bytes - 1)..arena.address + self.layout.arena_bytes;
        if self.starts.range(around).next().is_some() {
            return;
        }
        self.starts.insert(arena.address);
        let first = arena.first_pool(self.layout);
        let bytes = arena.unused.saturating_sub(first);
        let Some(pages) = memory.pages(first, bytes) else { return };
        let pages_per_pool = self.layout.pool_bytes.div_ceil(rustix::param::page_size() as u64);
        let pages_per_pool = usize::try_from(pages_per_pool).unwrap_or(1);
        let mut has_any = bytes == 0;
        let pools = (first..arena.unused).step_by(usize::try_from(self.layout.pool_bytes).unwrap_or(usize::MAX));
        for (address, page) in pools.zip(pages.iter().step_by(pages_per_pool)) {
            match page {
                PageState::Present => {}
                PageState::Swapped => {
                    self.unread_bytes += self.layout.pool_bytes;
                    continue;
                }
                PageState::Absent => continue,
            }
            let mut header = [0; POOL_HEADER_BYTES];
            let header = memory.fill_from_files(address, &mut header).map(|()| header);
            let pool = header.and_then(|header| Pool::of(address, &header));
            let Some(pool) = pool.filter(|pool| u64::from(pool.arena) == index) else { continue };
            has_any = true;
            if pool.count > 0 && pool.is_sound(self.layout) {
                self.used.push(pool);
                self.sizes.insert(address, pool.size);
            }
        }
        self.count += u64::from(has_any);
    }

    /// Those that have blocks.
    pub(super) fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.used.iter()
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used.len() as u64 * self.layout.pool_bytes
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.count * self.layout.arena_bytes
    }

    pub(super) fn unread_bytes(&self) -> u64 {
        self.unread_bytes
    }

    /// Whether a block, or its data with debug hooks, begins at an address.
    pub(super) fn begins_block(&self, address: u64) -> bool {
        let first = address / self.layout.pool_bytes * self.layout.pool_bytes + POOL_HEADER_BYTES as u64;
        self.block_at(address).is_some_and(|bytes| address.saturating_sub(first) % bytes <= ALIGNMENT)
    }

    /// Bytes of the block that contains an address; `None` if it is not in a pool with blocks.
    pub(super) fn block_at(&self, address: u64) -> Option<u64> {
        let pool = address / self.layout.pool_bytes * self.layout.pool_bytes;
        self.sizes.get(&pool).map(|size| block_bytes(*size))
    }
}

/// The blocks of a pool that are allocated.
#[derive(Debug)]
pub(super) struct Blocks {
    start: u64,
    bytes: Vec<u8>,
    block_bytes: usize,
    is_free: Vec<bool>,
}

impl Blocks {
    /// `None` if it changed each time, or is swapped out.
    pub(super) fn read(memory: &dyn HeapMemory, pool: &Pool, layout: Layout) -> Option<Self> {
        let newer = |_| Pool::read(memory, pool.address).and_then(|pool| Self::read_once(memory, &pool, layout));
        Self::read_once(memory, pool, layout).or_else(|| (1..TRIES).find_map(newer))
    }

    /// `pool` is what its header was when it was read last.
    fn read_once(memory: &dyn HeapMemory, pool: &Pool, layout: Layout) -> Option<Self> {
        let (address, used) = (pool.address, pool.unused);
        if !pool.is_sound(layout) {
            return None;
        }
        // Not what was never allocated: it was perhaps never touched.
        let mut bytes = vec![0; usize::try_from(used).ok()?];
        memory.fill_present(address, &mut bytes)?;
        let pool = bytes.first_chunk().and_then(|header| Pool::of(address, header))?;
        let is_same = pool.is_sound(layout) && pool.unused == used;
        let start = address + POOL_HEADER_BYTES as u64;
        let block_bytes = usize::try_from(pool.block_bytes()).ok().filter(|_| is_same)?;
        let bytes = bytes[POOL_HEADER_BYTES..].to_vec();
        let mut is_free = vec![false; bytes.len() / block_bytes];
        let mut free = pool.free;
        while free != 0 {
            let offset = usize::try_from(free.checked_sub(start)?).ok()?;
            let is_known = offset.is_multiple_of(block_bytes).then(|| is_free.get_mut(offset / block_bytes))??;
            if std::mem::replace(is_known, true) {
                return None;
            }
            free = bytes.get(offset..)?.first_chunk().map(|word| u64::from_le_bytes(*word))?;
        }
        let live = is_free.iter().filter(|is_free| !**is_free).count();
        (live == usize::try_from(pool.count).ok()?).then_some(Self { start, bytes, block_bytes, is_free })
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.block_bytes as u64
    }

    /// Addresses and contents.
    pub(super) fn allocated(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let blocks = self.bytes.chunks_exact(self.block_bytes).zip(&self.is_free).enumerate();
        blocks
            .filter(|(_, (_, is_free))| !**is_free)
            .map(|(number, (block, _))| (self.start + number as u64 * self.block_bytes as u64, block))
    }
}
