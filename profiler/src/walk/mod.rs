//! Finds allocated blocks, including those from before recording started, in the allocator's own bookkeeping. Pure:
//! reads an immutable [`Memory`](heapbpf_base::memory::Memory), whose contents may be anything: every walk is bounded, and
//! fails if the bookkeeping is inconsistent.

pub(crate) mod extents;
pub(crate) mod glibc;
mod jemalloc;
mod mimalloc;
mod musl;
pub(crate) mod scene;

use heapbpf_base::shown;
use heapbpf_linux::proc::maps::{Region, RegionKind, region_of};

use crate::collect::ThreadState;
pub(crate) use scene::Absence;
pub use scene::{Scene, Walk};

pub fn walk(scene: &Scene<'_>) -> Vec<Walk> {
    WALKERS.iter().flat_map(|(_, _, walk)| walk(scene)).collect()
}

type Walker = fn(&Scene<'_>) -> Option<Walk>;

/// Allocators, their heaps' names, and their walkers.
const WALKERS: [(&str, &str, Walker); 3] = [
    ("glibc", glibc::HEAP, glibc::walk),
    ("musl", musl::HEAP, musl::walk),
    ("jemalloc", jemalloc::HEAP, jemalloc::walk),
];

/// Whether the allocator of this heap can be walked.
pub(crate) fn is_walkable(heap: &str) -> bool {
    WALKERS.iter().any(|(_, known, _)| *known == heap)
}

/// Whether the allocator of a heap that has no walk was never called: nothing is missing.
pub(crate) fn is_unused(scene: &Scene<'_>, heap: &str) -> bool {
    heap == glibc::HEAP && glibc::absence(scene) == Some(Absence::Unused)
}

/// Reason why heaps of other allocators have no blocks.
pub(crate) fn unsupported() -> String {
    format!("unsupported allocator: heapbpf can walk heaps of {}", allocators())
}

/// Reason why no block was found. `walks` are those of the scene, none of which has a block.
pub(crate) fn absence(scene: &Scene<'_>, walks: &[Walk]) -> Absence {
    let loads = |thread: &ThreadState| region_of(scene.regions(), thread.instruction).is_some_and(is_loader);
    if !scene.threads.is_empty() && scene.threads.iter().all(loads) {
        return Absence::Starting;
    }
    let has_gaps = |walk: &&Walk| walk.heap == glibc::HEAP && !walk.gaps.is_empty();
    // A thread that runs may be in the middle of a change, which needs no lock in a process with one thread.
    let is_changing = || scene.threads.iter().any(|thread| !thread.in_syscall);
    let absence = match walks.iter().find(has_gaps) {
        Some(_) => Absence::Damaged,
        None if walks.iter().any(|walk| walk.heap == glibc::HEAP) => Absence::Empty,
        None => glibc::absence(scene).unwrap_or(Absence::Unknown),
    };
    if absence == Absence::Damaged && is_changing() { Absence::Changing } else { absence }
}

/// Whether a region is code of a dynamic linker that is not the C library as well, as musl's is.
fn is_loader(region: &Region) -> bool {
    let RegionKind::File { path } = &region.kind else { return false };
    let name = shown::os_text(path.file_name().unwrap_or_default());
    (name.starts_with("ld-") || name.starts_with("ld.so")) && !name.starts_with("ld-musl")
}

pub(crate) fn allocators() -> String {
    WALKERS.map(|(name, _, _)| name).join(", ")
}

#[cfg(test)]
mod tests;
