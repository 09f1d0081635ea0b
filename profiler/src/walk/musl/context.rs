//! Where musl keeps its heap's context: a variable of the program or of `libc.so`, for which there is seldom a symbol. Its secret
//! number, which stands in every page of metas too, tells it apart from all else.

use super::group::{AREA_METAS, PAGE_BYTES};
use crate::address::TargetAddr;
use crate::linux::proc::maps::{Region, RegionKind};
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::Scene;

/// Most contexts of one process; there is one for each copy of musl in it.
const CONTEXTS_MAX: usize = 4;
/// Most bytes of one mapping that are searched: the data of the largest programs.
const SEARCHED_BYTES_MAX: u64 = 256 << 20;
/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 16;

// Where fields are, in bytes (src/malloc/mallocng/meta.h, where the page size is a constant, as on x86-64).
const INIT_DONE: usize = 8;
const FREE_METAS: usize = 16;
const UNUSED_META: usize = 24;
const UNUSED_META_COUNT: usize = 32;
const FIRST_AREA: usize = 56;
const LAST_AREA: usize = 64;
const ACTIVE: usize = 80;
const ACTIVE_COUNT: usize = 48;
const CONTEXT_BYTES: usize = ACTIVE + 8 * ACTIVE_COUNT;

/// A heap's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// The number that all of its pages of metas begin with.
    pub(super) secret: u64,
    /// The first of these pages.
    pub(super) first_area: TargetAddr,
}

/// All contexts, in the data of the program and of its libraries.
pub(super) fn find(scene: &Scene<'_>) -> Vec<Context> {
    let mut found = Vec::new();
    let mut before: Option<&Region> = None;
    for region in scene.regions {
        if found.len() < CONTEXTS_MAX && is_data(region, before) {
            search(scene.memory, region, &mut found);
        }
        before = Some(region);
    }
    found
}

/// Whether a mapping can be the data of a module: that of a file, or what follows it and has none, where variables are that begin as
/// zero.
fn is_data(region: &Region, before: Option<&Region>) -> bool {
    if !region.readable || !region.writable || region.shared {
        return false;
    }
    let is_file = |region: &Region| matches!(region.kind, RegionKind::File { .. });
    let follows_file = before.is_some_and(|before| is_file(before) && before.end == region.start);
    is_file(region) || (region.is_anonymous() && follows_file)
}

fn search(memory: &dyn Memory, region: &Region, found: &mut Vec<Context>) {
    let end = region.end.0.min(region.start.0.saturating_add(SEARCHED_BYTES_MAX));
    let mut buffer = vec![0; CHUNK_BYTES];
    for part in memory.present(region.start..TargetAddr(end)) {
        let mut at = part.start.0.next_multiple_of(WORD_BYTES);
        while at < part.end.0 {
            let length = CHUNK_BYTES.min(usize::try_from(part.end.0 - at).unwrap_or(CHUNK_BYTES));
            let read = memory.read(TargetAddr(at), &mut buffer[..length]);
            let (words, _) = buffer[..read].as_chunks::<8>();
            for (nth, pair) in words.windows(2).enumerate() {
                let initialised = pair[1][..4] == 1_u32.to_le_bytes() && pair[0] != [0; 8];
                let context = initialised.then(|| context(memory, TargetAddr(at + 8 * nth as u64))).flatten();
                if let Some(context) = context.filter(|context| !found.contains(context)) {
                    found.push(context);
                }
                if found.len() == CONTEXTS_MAX {
                    return;
                }
            }
            if length < CHUNK_BYTES || words.len() < 2 {
                break;
            }
            // The last word again: with the next one it may be a beginning.
            at += (words.len() as u64 - 1) * WORD_BYTES;
        }
    }
}

/// The context at an address, if all that can be told of one holds.
fn context(memory: &dyn Memory, address: TargetAddr) -> Option<Context> {
    let mut bytes = [0; CONTEXT_BYTES];
    if memory.read(address, &mut bytes) < bytes.len() {
        return None;
    }
    let (words, _) = bytes.as_chunks::<8>();
    let word = |offset: usize| u64::from_le_bytes(words[offset / 8]);
    let secret = word(0);
    let of_heap = |meta: u64| memory.word(TargetAddr(meta / PAGE_BYTES * PAGE_BYTES)) == Some(secret);
    let is_page = |address: u64| address != 0 && address.is_multiple_of(PAGE_BYTES);
    let fits = word(INIT_DONE) & 0xffff_ffff == 1
        && is_page(word(FIRST_AREA))
        && is_page(word(LAST_AREA))
        && of_heap(word(FIRST_AREA))
        && word(UNUSED_META_COUNT) <= AREA_METAS
        && of_heap(word(UNUSED_META).saturating_sub(1));
    let metas = [FREE_METAS].into_iter().chain((0..ACTIVE_COUNT).map(|class| ACTIVE + 8 * class));
    let all_of_heap = || metas.map(word).all(|meta| meta == 0 || of_heap(meta));
    (fits && all_of_heap()).then(|| Context { secret, first_area: TargetAddr(word(FIRST_AREA)) })
}
