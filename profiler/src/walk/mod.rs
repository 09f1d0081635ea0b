//! Finds the allocated blocks of a heap in the allocator's own bookkeeping, which includes those allocated before
//! recording started.
//!
//! Pure: reads an immutable [`Memory`](crate::memory::Memory). Its contents are the target's and may be anything:
//! every walk is bounded, and fails if the bookkeeping is inconsistent.

mod glibc;
mod jemalloc;
mod musl;
pub(crate) mod scene;

#[cfg(test)]
mod fixture;

use crate::linux::proc::maps::{Region, RegionKind};
pub use scene::{Scene, Walk};

/// Walks every known allocator.
pub fn walk(scene: &Scene<'_>) -> Vec<Walk> {
    let regions = with_one_break(scene.regions);
    let scene = &Scene { regions: &regions, ..*scene };
    let walks = [glibc::walk(scene), musl::walk(scene), jemalloc::walk(scene)];
    walks.into_iter().flatten().collect()
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
mod tests {
    use super::*;

    #[test]
    fn brk_regions_from_before_and_after_a_fork_are_joined() {
        let other = || RegionKind::Anonymous { name: None };
        let regions = [
            Region::synthetic(0x1000, 0x1000, other()),
            Region::synthetic(0x2000, 0x1000, RegionKind::Brk),
            Region::synthetic(0x3000, 0x1000, RegionKind::Brk),
            Region::synthetic(0x5000, 0x1000, RegionKind::Brk),
        ];
        let spans = |regions: &[Region]| regions.iter().map(|it| (it.start.0, it.end.0)).collect::<Vec<_>>();
        let expected = [(0x1000, 0x2000), (0x2000, 0x4000), (0x5000, 0x6000)];
        assert_eq!(spans(&with_one_break(&regions)), expected);
    }
}
