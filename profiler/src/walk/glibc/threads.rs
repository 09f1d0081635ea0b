//! Caches that nothing was put into: known by the thread that points to one, from its thread-local storage.

use super::arena::{Arena, Circle};
use super::lists::Links;
use super::tcache;
use crate::address::TargetAddr;
use crate::memory::WORD_BYTES;
use crate::walk::{Scene, WalkedBlock};

/// How far below a thread's pointer the library's variables are looked for, a word at a time.
const STORAGE_WORDS_MAX: u64 = 1 << 13;
/// How far from the variable that says which arena a thread uses the one is that says where its cache is.
const VARIABLES_WORDS: u64 = 64;

/// Blocks that are caches of threads that run.
pub(super) fn caches(scene: &Scene<'_>, circles: &[Circle], blocks: &[WalkedBlock], links: Links) -> Vec<TargetAddr> {
    let mut arenas: Vec<u64> = circles.iter().flat_map(Circle::arenas).map(|arena: &Arena| arena.address).collect();
    arenas.sort_unstable();
    let cache = |address: u64| {
        let found = blocks.binary_search_by_key(&address, |block| block.start.0).ok()?;
        tcache::entries(scene.memory, links, blocks[found]).map(|_| TargetAddr(address))
    };
    let mut caches = Vec::new();
    for thread in scene.threads {
        let pointer = thread.thread_pointer.0;
        let below = |nth: u64| pointer.checked_sub(nth * WORD_BYTES);
        let word = |nth: u64| scene.memory.word(TargetAddr(below(nth)?));
        let named = (1..=STORAGE_WORDS_MAX).map_while(|nth| Some((nth, word(nth)?)));
        let named = named.filter(|(_, word)| arenas.binary_search(word).is_ok()).map(|(nth, _)| nth).next();
        if let Some(nth) = named {
            let around = nth.saturating_sub(VARIABLES_WORDS).max(1)..=nth + VARIABLES_WORDS;
            caches.extend(around.filter_map(|nth| cache(word(nth)?)));
        }
    }
    caches
}
