//! What threads keep for their next calls: blocks that are free, though their slabs have them as given out.
//!
//! A thread's cache is an array of bins in its thread-local storage. Each is a stack of addresses, and these stacks lie one behind the
//! other in one block: by that, bins are told from all else that is there.

use crate::address::TargetAddr;
use crate::memory::{Memory, WORD_BYTES};
use crate::walk::{Scene, WalkedBlock};

/// Bytes of thread-local storage that are searched, below a thread's control block.
const SEARCHED_BYTES: u64 = 1 << 16;
/// Words of a bin: the top of its stack, a count, and the low 16 bits of where its stack can reach (`cache_bin_s`,
/// include/jemalloc/internal/cache_bin.h of 5.3.0).
const BIN_WORDS: usize = 3;
/// Fewest bins of a cache; there is one for each small size class.
const BINS_MIN: usize = 16;
/// Most bins of a cache: one for each size class there is.
const BINS_MAX: usize = 256;

/// A stack: where it begins when it is full, what is its top now, and where it ends.
#[derive(Clone, Copy)]
struct Bin {
    full: u64,
    top: u64,
    empty: u64,
}

impl Bin {
    fn parse(words: &[u64]) -> Option<Self> {
        let &[top, _, low] = words else { return None };
        let [_, full_low, empty_low, _] = [0, 16, 32, 48].map(|shift| (low >> shift & 0xffff) as u16);
        let held = u64::from(empty_low.wrapping_sub((top & 0xffff) as u16));
        let capacity = u64::from(empty_low.wrapping_sub(full_low));
        let empty = top.checked_add(held)?;
        let fits = top.is_multiple_of(WORD_BYTES) && held.is_multiple_of(WORD_BYTES) && held <= capacity;
        fits.then_some(Self { full: empty.checked_sub(capacity)?, top, empty })
    }
}

/// Takes out of the blocks, which are by rising address, those that threads keep, and where they keep them.
pub(super) fn leave_out(scene: &Scene<'_>, blocks: &mut Vec<WalkedBlock>) {
    let mut free: Vec<TargetAddr> = Vec::new();
    for thread in scene.threads {
        let end = thread.thread_pointer.0;
        let range = TargetAddr(end.saturating_sub(SEARCHED_BYTES))..TargetAddr(end);
        for part in scene.memory.present(range) {
            let words = words(scene.memory, part.start.0.next_multiple_of(WORD_BYTES), part.end.0);
            let mut at = 0;
            while at < words.len() {
                let bins = bins(&words[at..]);
                let Some(block) = holder(&bins, blocks) else {
                    at += if bins.len() < BINS_MIN { 1 } else { bins.len() * BIN_WORDS };
                    continue;
                };
                free.push(block.start);
                for bin in &bins {
                    free.extend(self::words(scene.memory, bin.top, bin.empty).into_iter().map(TargetAddr));
                }
                at += bins.len() * BIN_WORDS;
                if free.len() > 2 * blocks.len() {
                    // No two caches keep the same block: these are none.
                    return;
                }
            }
        }
    }
    free.sort_unstable();
    blocks.retain(|block| free.binary_search(&block.start).is_err());
}

/// The bins that begin at the first of these words and have their stacks one behind the other.
fn bins(words: &[u64]) -> Vec<Bin> {
    let mut bins: Vec<Bin> = Vec::new();
    for words in words.chunks_exact(BIN_WORDS).take(BINS_MAX) {
        let follows = |bin: &Bin| bins.last().is_none_or(|before| before.empty == bin.full);
        let Some(bin) = Bin::parse(words).filter(|bin| bin.top != 0).filter(follows) else { break };
        bins.push(bin);
    }
    bins
}

/// The block that the stacks of a cache are in.
fn holder(bins: &[Bin], blocks: &[WalkedBlock]) -> Option<WalkedBlock> {
    let (first, last) = (bins.first()?, bins.last().filter(|_| bins.len() >= BINS_MIN)?);
    let behind = blocks.partition_point(|block| block.start.0 <= first.full);
    let block = *blocks[..behind].last()?;
    (first.full < last.empty && last.empty <= block.start.0 + block.size_bytes).then_some(block)
}

/// The words in a range, as far as it is there.
fn words(memory: &dyn Memory, start: u64, end: u64) -> Vec<u64> {
    let length = end.saturating_sub(start).min(SEARCHED_BYTES.max(1 << 16));
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = memory.read(TargetAddr(start), &mut bytes);
    bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}
