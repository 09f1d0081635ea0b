//! Blocks that an allocator has given out, found in its own bookkeeping: so those are known too that were made before anyone watched.
//!
//! Pure: reads a [`Memory`] that does not change any more. What is read there is the target's and may be anything: every walk is
//! bounded, and one that does not add up is given up.

mod glibc;
mod jemalloc;
#[cfg(test)]
mod live;
mod musl;
#[cfg(test)]
mod patient;
mod spans;

use crate::address::TargetAddr;
use crate::collect::{Span, ThreadState};
use crate::linux::proc::maps::{Region, RegionKind};
use crate::memory::Memory;

/// What a walk looks through.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// The memory.
    pub memory: &'a dyn Memory,
    /// What is mapped, by rising address.
    pub regions: &'a [Region],
    /// The threads.
    pub threads: &'a [ThreadState],
}

/// What a walk has found of one allocator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// The allocator's heap, as hooks name it (`libc`, `jemalloc`, …).
    pub heap: &'static str,
    /// Blocks that are given out, by rising address, without overlaps.
    pub blocks: Vec<WalkedBlock>,
    /// Memory of which all that is given out is known: what of it is no block is free, or the allocator's own.
    pub areas: Vec<Span>,
    /// What could not be walked, in words, each with why. Its memory is in no area.
    pub gaps: Vec<String>,
    /// A thread was in the middle of the allocator's work, so some of this may be wrong: worth another try a moment later.
    pub busy: bool,
}

/// A block that is given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedBlock {
    /// What the program has of it.
    pub start: TargetAddr,
    /// Bytes that the program may use.
    pub size_bytes: u64,
}

/// Walks every allocator that is recognised.
pub fn walk(scene: &Scene<'_>) -> Vec<Walk> {
    let regions = with_one_break(scene.regions);
    let scene = &Scene { regions: &regions, ..*scene };
    let walks = [glibc::walk(scene), musl::walk(scene), jemalloc::walk(scene)];
    walks.into_iter().flatten().collect()
}

/// The regions with neighbours that `brk` has made as one. The kernel keeps what a process has added since it was forked apart from
/// what it was forked with.
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
    fn what_was_added_since_a_fork_is_joined() {
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
