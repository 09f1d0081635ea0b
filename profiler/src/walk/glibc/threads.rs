//! What threads say: which blocks are their caches, where nothing was put into those yet; and whether one is at work in the allocator.

use super::arena::{Arena, Circle};
use super::lists::{Links, Steps};
use super::{span, tcache};
use crate::address::TargetAddr;
use crate::collect::Span;
use crate::collect::spans::joined;
use crate::linux::proc::maps::region_of;
use crate::memory::WORD_BYTES;
use crate::walk::{Scene, WalkedBlock};

/// How far below a thread's pointer the library's variables are looked for, a word at a time.
const STORAGE_WORDS_MAX: u64 = 1 << 13;
/// How far from the variable that says which arena a thread uses the one is that says where its cache is.
const VARIABLES_WORDS: u64 = 64;

/// The instruction of a system call, which a thread that waits in one has just before its next.
const SYSTEM_CALL: [u8; 2] = [0x0f, 0x05];

/// What the register for results holds in a system call: that it is not there, until it is over, or that it is to be made again once the
/// thread runs on (`ENOSYS`, `ERESTARTSYS`, `ERESTARTNOINTR`, `ERESTARTNOHAND`, `ERESTART_RESTARTBLOCK` in the kernel's `errno.h`). Code
/// may not have been read, these words were.
const RESULTS_IN_CALL: [i64; 5] = [-38, -512, -513, -514, -516];

/// Blocks that are caches of threads that run.
pub(super) fn caches(
    scene: &Scene<'_>,
    circles: &[Circle],
    blocks: &[WalkedBlock],
    links: Links,
    steps: &Steps,
) -> Vec<TargetAddr> {
    let mut arenas: Vec<u64> = circles.iter().flat_map(Circle::arenas).map(|arena: &Arena| arena.address).collect();
    arenas.sort_unstable();
    let cache = |address: u64| {
        let found = blocks.binary_search_by_key(&address, |block| block.start.0).ok()?;
        tcache::entries(scene.memory, links, blocks[found], steps).map(|_| TargetAddr(address))
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

/// Whether a thread is in the middle of the allocator's work, where no lock tells: its next instruction is the library's and it has
/// an arena or a cache at hand.
pub(super) fn is_busy(scene: &Scene<'_>, circles: &[Circle], caches: &[TargetAddr]) -> bool {
    let arenas = circles.iter().map(|circle| joined(circle.arenas().map(|it| span(it.address, it.end())).collect()));
    let arenas: Vec<Vec<Span>> = arenas.collect();
    let caches = joined(caches.iter().map(|cache| span(cache.0, cache.0 + tcache::BYTES_MAX as u64)).collect());
    let holds = |spans: &[Span], word: u64| {
        let behind = spans.partition_point(|span| span.start.0 <= word);
        spans[..behind].last().is_some_and(|span| word < span.end.0)
    };
    scene.threads.iter().any(|thread| {
        let Some(code) = region_of(scene.regions, thread.instruction) else { return false };
        let in_call = thread.instruction.0.checked_sub(SYSTEM_CALL.len() as u64).is_some_and(|before| {
            let mut bytes = [0; SYSTEM_CALL.len()];
            scene.memory.read(TargetAddr(before), &mut bytes) == bytes.len() && bytes == SYSTEM_CALL
        });
        let in_call = in_call || thread.registers.iter().any(|word| RESULTS_IN_CALL.contains(&word.cast_signed()));
        // What waits in a call is out of it in a moment, or for long; registers that the call does not use may be old.
        !in_call
            && circles.iter().zip(&arenas).any(|(circle, arenas)| {
                let data = region_of(scene.regions, TargetAddr(circle.main.address));
                let same = data.is_some_and(|data| data.kind == code.kind);
                same && thread.registers.iter().any(|&word| holds(arenas, word) || holds(&caches, word))
            })
    })
}
