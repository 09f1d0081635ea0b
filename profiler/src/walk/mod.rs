//! Finds the allocated blocks of a heap in the allocator's own bookkeeping, which includes those allocated before
//! recording started.
//!
//! Pure: reads an immutable [`Memory`](crate::memory::Memory). Its contents are the target's and may be anything:
//! every walk is bounded, and fails if the bookkeeping is inconsistent.

mod glibc;
mod jemalloc;
mod musl;
pub(crate) mod scene;

use crate::linux::proc::maps::{Region, RegionKind};
pub use scene::{Scene, Walk};

/// Walks every known allocator.
pub fn walk(scene: &Scene<'_>) -> Vec<Walk> {
    let regions = with_one_break(scene.regions);
    let scene = &Scene { regions: &regions, ..*scene };
    WALKERS.iter().flat_map(|(_, walk)| walk(scene)).collect()
}

type Walker = fn(&Scene<'_>) -> Option<Walk>;

/// Walkers by allocator.
const WALKERS: [(&str, Walker); 3] = [("glibc", glibc::walk), ("musl", musl::walk), ("jemalloc", jemalloc::walk)];

/// The allocators whose heaps can be walked, for messages.
pub(crate) fn allocators() -> String {
    WALKERS.map(|(name, _)| name).join(", ")
}

/// Joins adjacent regions of `brk`. The kernel keeps separate what a process has added since it was forked.
fn with_one_break(regions: &[Region]) -> Vec<Region> {
    let mut joined: Vec<Region> = Vec::with_capacity(regions.len());
    for region in regions {
        match joined.last_mut() {
            Some(last)
                if last.kind == RegionKind::Brk && region.kind == RegionKind::Brk && last.end == region.start =>
            {
                last.end = region.end;
            }
            _ => joined.push(region.clone()),
        }
    }
    joined
}

#[cfg(test)]
mod tests;
