//! Finds allocated blocks, including those from before recording started, in the allocator's own bookkeeping. Pure:
//! reads an immutable [`Memory`](crate::memory::Memory), whose contents may be anything: every walk is bounded, and
//! fails if the bookkeeping is inconsistent.

mod glibc;
mod jemalloc;
mod musl;
pub(crate) mod scene;

use crate::linux::proc::maps::{Region, RegionKind};
pub use scene::{Scene, Walk};

pub fn walk(scene: &Scene<'_>) -> Vec<Walk> {
    let regions = with_one_break(scene.regions);
    let scene = &Scene { regions: &regions, ..*scene };
    WALKERS.iter().flat_map(|(_, walk)| walk(scene)).collect()
}

type Walker = fn(&Scene<'_>) -> Option<Walk>;

const WALKERS: [(&str, Walker); 3] = [("glibc", glibc::walk), ("musl", musl::walk), ("jemalloc", jemalloc::walk)];

pub(crate) fn allocators() -> String {
    WALKERS.map(|(name, _)| name).join(", ")
}

/// The kernel keeps separate what a process has added to `brk` since it was forked.
fn with_one_break(regions: &[Region]) -> Vec<Region> {
    let mut joined = regions.to_vec();
    joined.dedup_by(|later, earlier| {
        let joins = [&earlier.kind, &later.kind] == [&RegionKind::Brk; 2] && earlier.end == later.start;
        if joins {
            earlier.end = later.end;
        }
        joins
    });
    joined
}

#[cfg(test)]
mod tests;
