//! CPython's own allocator for blocks of up to 512 bytes (Objects/obmalloc.c, 3.8 to 3.14), read while the program runs: nothing is written
//! into it, and it is not stopped.
//!
//! Arenas consist of pools, and a pool of blocks of one size. Every structure is verified by what others say of it: an arena by the pools
//! that name it, the free blocks of a pool by its number of live ones, the type of an object by its own type and its size. A pool that
//! changes while it is read is read again.

mod keys;
mod layout;
mod objects;
mod pools;
mod roots;
mod types;

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::ObjectTypes;
use rustc_hash::FxHashMap;

pub(super) use self::layout::{Data, HeapError, Layout};
use self::objects::Census;
use self::pools::{Arenas, Blocks};
use self::types::Types;
use super::super::memory::HeapMemory;

/// Pools that are read in full: of 1 GiB. Of larger heaps, one of so many that it is about as much.
const BYTES_MAX: u64 = 1 << 30;

/// Counts the objects of the main interpreter, and of those that share its allocator.
pub(super) fn count(
    memory: &dyn HeapMemory,
    data: &Data,
    layout: Layout,
    type_of_types: u64,
    time: MonotonicNanos,
) -> Result<ObjectTypes, HeapError> {
    let root = roots::find(memory, data, layout)?;
    let arenas = Arenas::read(memory, root, layout).ok_or(HeapError::Unreadable)?;
    let one_of = arenas.used_bytes().div_ceil(BYTES_MAX).max(1);
    let mut census =
        Census::new(Types::new(memory, layout, type_of_types).ok_or(HeapError::NoTypes)?, &arenas, data.module.clone());
    let mut unread = FxHashMap::default();
    for (number, pool) in arenas.pools().enumerate() {
        if !is_chosen(number as u64, one_of) {
            continue;
        }
        match Blocks::read(memory, pool, layout) {
            Some(blocks) => census.count(&blocks),
            None => *unread.entry(pool.size).or_default() += u64::from(pool.count),
        }
    }
    Ok(census.finish(one_of, &unread, time))
}

/// Whether a pool is one of those that are read: one of each `one_of`, at a place in each group that differs from group to group, so that
/// no regular pattern of a program's own is missed or preferred.
fn is_chosen(number: u64, one_of: u64) -> bool {
    /// The golden ratio as a fraction of 2^64, which spreads consecutive numbers (Knuth, The Art of Computer Programming 3, 6.4).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (group, within) = (number / one_of, number % one_of);
    (group.wrapping_mul(SPREAD) >> 32) % one_of == within
}

#[cfg(test)]
mod tests;
