//! Memory that allocators have from the system, whether it is in use or not, by their own structures. Processes are read while
//! they run: structures that are being changed are left out, and nothing depends on a thread.

use heapbpf_base::address::TargetAddr;
use heapbpf_base::memory::{Span, joined};
use profiler_common::limits::PAGE_BYTES;

use super::scene::{ADDRESS_MAX, Scene, array, span};
use super::{glibc, jemalloc, mimalloc, musl};

/// Structures of a process's allocators that were found, which stay where they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocators {
    jemalloc: Option<jemalloc::Tree>,
    musl: Vec<musl::Context>,
}

impl Allocators {
    /// Memory of a heap, by rising address and without overlaps; `None` if the heap's structures are unknown. `blocks` are some
    /// of its blocks.
    pub(crate) fn extents(&mut self, scene: &Scene<'_>, heap: &str, blocks: &[TargetAddr]) -> Option<Vec<Span>> {
        let found = match heap {
            glibc::HEAP => Some(glibc_memory(scene)),
            jemalloc::HEAP => jemalloc::extents(scene, &mut self.jemalloc),
            musl::HEAP => musl::extents(scene, &mut self.musl),
            mimalloc::HEAP => mimalloc::segments(scene, blocks),
            _ => None,
        };
        found.map(joined)
    }

    /// Whether the extents of this heap depend on blocks.
    pub(crate) fn wants_blocks(heap: &str) -> bool {
        heap == mimalloc::HEAP
    }
}

/// Size and alignment of a part of an arena of glibc (`HEAP_MAX_SIZE` in malloc/arena.c).
const ARENA_BYTES: u64 = 64 << 20;

/// glibc's arenas besides the main one, and its blocks with mappings of their own.
fn glibc_memory(scene: &Scene<'_>) -> Vec<Span> {
    let mut found = joined(arenas(scene));
    let mapped: Vec<Span> = scene.unknown(&found).into_iter().flat_map(|gap| glibc::mapped_from(scene, &gap)).collect();
    found.extend(mapped);
    found
}

/// The parts of glibc's arenas besides the main one. Each begins with the address of its arena, which is in the first part, the
/// address of the part before, and the size of accessible memory (`heap_info`).
fn arenas(scene: &Scene<'_>) -> Vec<Span> {
    let arena = |at: u64| -> Option<(u64, u64)> {
        let [arena, _, size_bytes] = array::<3>(scene.memory, at)?;
        let is_sound = arena.is_multiple_of(16)
            && arena > PAGE_BYTES
            && arena < ADDRESS_MAX
            && size_bytes.is_multiple_of(PAGE_BYTES)
            && (PAGE_BYTES..=ARENA_BYTES).contains(&size_bytes);
        is_sound.then_some((arena, size_bytes))
    };
    let mut found = Vec::new();
    for region in scene.anonymous() {
        let first = region.start.0.next_multiple_of(ARENA_BYTES);
        let starts = (0..).map(|nth| first + nth * ARENA_BYTES).take_while(|at| *at < region.end.0);
        found.extend(starts.filter_map(|at| {
            let (own, size_bytes) = arena(at)?;
            let first_part = own / ARENA_BYTES * ARENA_BYTES;
            // The structure of the arena follows that of its first part.
            let follows = own > first_part && own - first_part < PAGE_BYTES;
            let is_arena = follows && (first_part == at || arena(first_part).is_some_and(|(first, _)| first == own));
            is_arena.then(|| span(at, at + size_bytes))
        }));
    }
    found
}
