//! Finds the memory of mimalloc 1 and 2. All blocks are in segments, whose alignment leads from a block to the segment's
//! description (`_mi_ptr_segment`). Each description has a word that is its own address combined with a random number of the
//! process (`_mi_ptr_cookie`). By this word, segments are recognised in which no block is known.

use std::collections::{BTreeMap, BTreeSet};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Span, WORD_BYTES};

use super::scene::{Scene, span, words};

pub(super) const HEAP: &str = "mimalloc";

/// Alignments of segments, of version 2 and of version 1.
const ALIGNMENTS: [u64; 2] = [32 << 20, 4 << 20];
/// Size of the part of a description that has the cookie.
const HEADER_BYTES: u64 = 1024;
/// Maximum number of segments to which blocks lead: others are found by the cookie.
const LED_MAX: usize = 256;
/// Maximum number of places where a segment may be.
const PLACES_MAX: usize = 1 << 20;

/// Number of a word, and the random number that it is combined with.
type Cookie = (usize, u64);

/// Finds the segments. `None` if blocks do not lead to segments, as those of version 3.
pub(super) fn segments(scene: &Scene<'_>, blocks: &[TargetAddr]) -> Option<Vec<Span>> {
    // The shorter alignment is tried first: every address that has the longer one has this one, too; with the shorter one, some
    // addresses do not have the longer one.
    let short = led(scene, blocks, ALIGNMENTS[1]);
    let is_short = |address: &u64| !address.is_multiple_of(ALIGNMENTS[0]);
    let shared = shared(&short);
    let is_first_version = short.iter().any(|(address, words)| is_short(address) && has(&shared, *address, words));
    let alignment = ALIGNMENTS[usize::from(is_first_version)];
    let led = if is_first_version { short } else { led(scene, blocks, alignment) };
    let cookies = match led.len() {
        0 => return None,
        1 => led.iter().flat_map(|(address, words)| cookies(*address, words)).collect(),
        _ => shared_of(&led)?,
    };
    let places = places(scene, alignment);
    let found = places.into_iter().filter(|&address| {
        led.contains_key(&address) && led.len() == 1 || has(&cookies, address, &header(scene, address))
    });
    Some(found.map(|address| span(address, address.saturating_add(alignment))).collect())
}

fn shared_of(led: &BTreeMap<u64, Vec<u64>>) -> Option<BTreeSet<Cookie>> {
    Some(shared(led)).filter(|cookies| !cookies.is_empty())
}

/// The descriptions of segments that blocks lead to, by address.
fn led(scene: &Scene<'_>, blocks: &[TargetAddr], alignment: u64) -> BTreeMap<u64, Vec<u64>> {
    let starts: BTreeSet<u64> = blocks.iter().map(|block| block.0 / alignment * alignment).collect();
    let headers = starts.into_iter().take(LED_MAX).map(|address| (address, header(scene, address)));
    headers.filter(|(_, words)| !words.is_empty()).collect()
}

fn header(scene: &Scene<'_>, address: u64) -> Vec<u64> {
    words(scene.memory, address, address.saturating_add(HEADER_BYTES))
}

/// Possible cookies: a random number has some of its highest bits set, unlike a distance between addresses.
fn cookies(address: u64, words: &[u64]) -> impl Iterator<Item = Cookie> {
    let cookies = words.iter().map(move |word| word ^ address).enumerate();
    cookies.filter(|(_, cookie)| cookie >> 48 != 0)
}

/// Cookies that at least two segments have.
fn shared(led: &BTreeMap<u64, Vec<u64>>) -> BTreeSet<Cookie> {
    let mut counts: BTreeMap<Cookie, usize> = BTreeMap::new();
    led.iter().flat_map(|(address, words)| cookies(*address, words)).for_each(|it| *counts.entry(it).or_default() += 1);
    counts.into_iter().filter(|(_, count)| *count > 1).map(|(cookie, _)| cookie).collect()
}

fn has(known: &BTreeSet<Cookie>, address: u64, words: &[u64]) -> bool {
    cookies(address, words).any(|cookie| known.contains(&cookie))
}

/// Addresses of anonymous memory with this alignment.
fn places(scene: &Scene<'_>, alignment: u64) -> Vec<u64> {
    debug_assert!(alignment.is_multiple_of(WORD_BYTES));
    let of_region = |start: u64, end: u64| {
        let first = start.next_multiple_of(alignment);
        (0..).map(move |nth| first + nth * alignment).take_while(move |at| *at < end)
    };
    let present = scene.anonymous().flat_map(|region| scene.memory.present(region.start..region.end));
    let mut places: Vec<u64> = present.flat_map(|run| of_region(run.start.0, run.end.0)).take(PLACES_MAX).collect();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use heapbpf_base::memory::Copied;
    use heapbpf_linux::proc::maps::{Region, RegionKind};

    use super::*;

    const COOKIE: u64 = 0x5ca1_ab1e_0ddb_a115;

    /// Segments whose word 29 is a cookie, beside words that are alike in all of them.
    fn check(alignment: u64, places: &[u64], foreign: &[u64], blocks: &[u64], expected: Option<&[u64]>) {
        let header = |address: u64, cookie: u64| {
            let mut words = vec![0_u64; 128];
            (words[3], words[4], words[29]) = (u64::MAX, address + 0x100, address ^ cookie);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            (TargetAddr(address), bytes.into_boxed_slice())
        };
        let own = places.iter().map(|nth| header(nth * alignment, COOKIE));
        let others = foreign.iter().map(|nth| header(nth * alignment, COOKIE.rotate_left(7)));
        let memory = Copied::new(own.chain(others));
        let regions = [Region::synthetic(ALIGNMENTS[0], 64 * ALIGNMENTS[0], RegionKind::Anonymous { name: None })];
        let scene = Scene::new(&memory, &regions, &[]);
        let blocks: Vec<TargetAddr> = blocks.iter().map(|nth| TargetAddr(nth * alignment + 0x4_0080)).collect();
        let found = segments(&scene, &blocks).map(|spans| {
            assert!(spans.iter().all(|it| it.end.0 - it.start.0 == alignment), "{spans:?}");
            spans.into_iter().map(|it| it.start.0 / alignment).collect::<Vec<_>>()
        });
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn segments_are_found_by_the_cookie_of_those_that_blocks_lead_to() {
        let [second, first] = ALIGNMENTS;
        check(second, &[2, 3, 7], &[5], &[2, 3], Some(&[2, 3, 7]));
        check(second, &[2, 3, 7], &[5], &[3], Some(&[2, 3, 7]));
        check(second, &[2], &[], &[2], Some(&[2]));
        check(first, &[17, 18, 24, 39], &[30], &[17, 18], Some(&[17, 18, 24, 39]));
    }

    #[test]
    fn blocks_that_lead_to_no_segment_are_of_another_version() {
        check(ALIGNMENTS[0], &[2], &[3], &[2, 3], None);
        check(ALIGNMENTS[0], &[2], &[], &[9], None);
        check(ALIGNMENTS[0], &[2], &[], &[], None);
    }
}
