//! Where the allocator has its list of arenas. No symbol is needed: a table of pools, 64 pointers in the data of the module, has a form
//! that nothing else has.

use super::super::super::memory::HeapMemory;
use super::layout::{Data, HeapError, Layout};
use super::pools::{Pool, Root, SIZES};

/// Data that are searched: real modules have 1 to 2 MiB.
const DATA_BYTES_MAX: u64 = 32 << 20;
/// Words of the table: the newest and the oldest pool of each size that has free blocks.
const TABLE_WORDS: usize = 2 * SIZES;
const TABLE_BYTES: u64 = 8 * TABLE_WORDS as u64;
/// An entry without pools refers to what would be the pool whose links are the entry.
const LINKS: u64 = 16;
/// The program runs meanwhile, and pools of the table become full or free.
const TRIES: usize = 5;

pub(super) fn find(memory: &dyn HeapMemory, data: &Data, layout: Layout) -> Result<Root, HeapError> {
    for _ in 0..TRIES {
        let mut sections = Vec::new();
        let mut left = DATA_BYTES_MAX;
        for section in &data.sections {
            let length = section.end.saturating_sub(section.start).min(left);
            left -= length;
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            memory.fill_present(section.start, &mut bytes).ok_or(HeapError::Unreadable)?;
            sections.push((section.start, words(&bytes)));
        }
        let tables = sections.iter().flat_map(|(start, words)| tables(memory, *start, words, layout));
        for (table, pools) in tables {
            let root = match layout.is_one_state {
                true => following(memory, table),
                false => sections.iter().find_map(|(_, words)| anywhere(memory, words, &pools, data, layout)),
            };
            if let Some(root) = root.filter(|root| pools.iter().all(|pool| root.has(memory, pool, layout))) {
                return Ok(root);
            }
        }
    }
    Err(HeapError::NoPools)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Tables of pools in a section that begins at `start`: their addresses, and pools that they refer to, at least one each.
fn tables(memory: &dyn HeapMemory, start: u64, words: &[u64], layout: Layout) -> Vec<(u64, Vec<Pool>)> {
    let table = |at: usize| {
        let address = start + 8 * at as u64;
        let entries = words[at..at + TABLE_WORDS].as_chunks::<2>().0;
        let own = |number: usize| (address + 16 * number as u64).wrapping_sub(LINKS);
        let may_be = entries.iter().enumerate().all(|(number, &[next, previous])| {
            let is_empty = next == own(number) && previous == next;
            is_empty || [next, previous].iter().all(|pool| *pool != 0 && pool.is_multiple_of(layout.pool_bytes))
        });
        if !may_be {
            return None;
        }
        let of_size = |(number, &[next, _]): (usize, &[u64; 2])| (next != own(number)).then_some((number, next));
        let mut pools = Vec::new();
        for (size, address) in entries.iter().enumerate().filter_map(of_size) {
            pools.push(Pool::read(memory, address).filter(|pool| usize::from(pool.size) == size)?);
        }
        (!pools.is_empty()).then_some((address, pools))
    };
    (0..=words.len().saturating_sub(TABLE_WORDS))
        .filter(|at| at + TABLE_WORDS <= words.len())
        .filter_map(table)
        .collect()
}

/// The list of arenas of 3.12 and later, which follows the table with its length (`struct _obmalloc_mgmt` in pycore_obmalloc.h).
fn following(memory: &dyn HeapMemory, table: u64) -> Option<Root> {
    let arenas = memory.word(table + TABLE_BYTES)?;
    let count = memory.integer(table + TABLE_BYTES + 8)?;
    Some(Root { arenas, count: Some(count) })
}

/// The list of arenas before 3.12: a pointer in the data. All pools must be in the arenas that they name.
fn anywhere(memory: &dyn HeapMemory, words: &[u64], pools: &[Pool], data: &Data, layout: Layout) -> Option<Root> {
    let is_foreign =
        |word: &&u64| (1 << 16..1 << 47).contains(*word) && word.is_multiple_of(16) && !data.module.contains(word);
    let roots = words.iter().filter(is_foreign).map(|&arenas| Root { arenas, count: None });
    roots.into_iter().find(|root| pools.iter().all(|pool| root.has(memory, pool, layout)))
}
