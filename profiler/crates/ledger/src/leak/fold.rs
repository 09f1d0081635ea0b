//! Folds unreachable blocks into root leaks.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::{Add, Range};

use heapbpf_base::memory::Memory;
use serde::Serialize;

use super::blocks::{BlockId, Blocks, number};
use super::graph::{Components, Graph};
use super::mark::Marks;
use super::words::Words;

/// A number of allocations, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct BlockTotals {
    /// Allocations.
    pub count: u64,
    /// Their bytes: as requested where the allocation was recorded, as rounded by the allocator where it was found in the
    /// allocator's metadata.
    pub bytes: u64,
}

impl BlockTotals {
    pub fn of(blocks: &Blocks, ids: impl Iterator<Item = BlockId>) -> Self {
        ids.map(|id| Self { count: 1, bytes: blocks.get(id).size_bytes }).fold(Self::default(), Add::add)
    }

    pub fn without(self, part: Self) -> Self {
        Self { count: self.count.saturating_sub(part.count), bytes: self.bytes.saturating_sub(part.bytes) }
    }
}

impl Add for BlockTotals {
    type Output = Self;

    /// Saturates: a target can forge any sizes.
    fn add(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// A block, or a cycle of blocks, that no other unreachable block references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLeak {
    /// Blocks of the root leak, as indices of [`Folded::members`]: at least one.
    pub members: Range<usize>,
    /// Number of the leak's blocks and of all blocks reachable from them.
    pub reached: BlockTotals,
    /// Whether more blocks may be reachable: counting was aborted because root leaks have too much in common.
    pub is_lower_bound: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    pub leaked: BlockTotals,
    /// The first block of each root leak: the other blocks of a cycle are referenced by leaked blocks.
    pub direct: BlockTotals,
    /// Root leaks by the address of their first blocks. Blocks that are reachable from two of them count in both.
    pub roots: Vec<RootLeak>,
    /// Blocks of each root leak by ascending address.
    pub members: Vec<BlockId>,
    /// Unreachable blocks by ascending address.
    pub unreached: Vec<BlockId>,
}

pub fn fold(blocks: &Blocks, marks: &Marks, memory: &dyn Memory) -> Folded {
    let graph = Graph::new(blocks, marks, &Words::new(memory));
    fold_graph(blocks, graph, STEPS_MAX)
}

fn fold_graph(blocks: &Blocks, graph: Graph, steps_max: u64) -> Folded {
    let components = Components::new(&graph);
    let mut reach = Reach::new(blocks, &graph, &components, steps_max);
    let (mut roots, mut members) = (Vec::new(), Vec::new());
    for block in 0..number(graph.len()) {
        let component = components.of[block as usize];
        let own = components.members(component);
        if own[0] != block || !reach.is_root(component) {
            continue;
        }
        let first = members.len();
        members.extend(own.iter().map(|&block| graph.blocks[block as usize]));
        let (reached, is_lower_bound) = reach.of(component);
        roots.push(RootLeak { members: first..members.len(), reached, is_lower_bound });
    }
    let leaked = BlockTotals::of(blocks, graph.blocks.iter().copied());
    let direct = BlockTotals::of(blocks, roots.iter().map(|root: &RootLeak| members[root.members.start]));
    Folded { leaked, direct, roots, members, unreached: graph.blocks }
}

/// Maximum number of edges that visits follow, apart from the first pass.
const STEPS_MAX: u64 = 20_000_000;
/// Maximum number of components in a cached set.
const KEY_LENGTH_MAX: usize = 16;
const KNOWN_MAX: usize = 1 << 20;

/// Blocks that are reachable from each component, each block counted once. Sums are propagated up from referenced components,
/// which is exact if at most one of those is also reachable in another way: trees, chains, many owners of one shared structure.
/// Otherwise everything below is visited. That may take quadratic time, so visits end after a number of steps, and the result is
/// then marked as a lower bound.
struct Reach<'a> {
    blocks: &'a Blocks,
    graph: &'a Graph,
    components: &'a Components,
    /// Number of components that reference each component, at most 255.
    referrers: Vec<u8>,
    /// Sums that include the component itself; a lower bound where not exact.
    sums: Vec<BlockTotals>,
    is_exact: Vec<bool>,
    /// Whether there is at most one path to the component, and from it to everything below.
    is_tree: Vec<bool>,
    stamps: Vec<u32>,
    stamp: u32,
    /// Known sums of sets of components, which are in ascending order.
    known: HashMap<Vec<u32>, BlockTotals>,
    steps_left: u64,
}

impl<'a> Reach<'a> {
    /// Computes sums. Later visits follow at most `steps_max` edges.
    fn new(blocks: &'a Blocks, graph: &'a Graph, components: &'a Components, steps_max: u64) -> Self {
        let count = components.len();
        let mut reach = Self {
            blocks,
            graph,
            components,
            referrers: vec![0; count],
            sums: vec![BlockTotals::default(); count],
            is_exact: vec![true; count],
            is_tree: vec![true; count],
            stamps: vec![0; count],
            stamp: 0,
            known: HashMap::new(),
            steps_left: steps_max,
        };
        (0..number(count)).for_each(|component| reach.count_referrers(component));
        // Edges lead to lower numbers: components below a component are summed up before it.
        (0..number(count)).for_each(|component| reach.sum_up(component));
        reach.steps_left = steps_max;
        reach
    }

    fn is_root(&self, component: u32) -> bool {
        self.referrers[component as usize] == 0
    }

    /// Sum of the blocks reachable from a component, including its own; and whether more may be reachable.
    fn of(&mut self, component: u32) -> (BlockTotals, bool) {
        let at_least = self.sums[component as usize];
        if self.is_exact[component as usize] {
            return (at_least, false);
        }
        let mut shared = Vec::new();
        self.next_stamp();
        let own = self.expand(component, &mut shared);
        shared.sort_unstable();
        if let Some(&below) = self.known.get(&shared) {
            return (own + below, false);
        }
        let key = (shared.len() <= KEY_LENGTH_MAX && self.known.len() < KNOWN_MAX).then(|| shared.clone());
        let mut below = BlockTotals::default();
        while let Some(component) = shared.pop() {
            if self.steps_left == 0 {
                let sum = if (own + below).bytes > at_least.bytes { own + below } else { at_least };
                return (sum, true);
            }
            below = below + self.expand(component, &mut shared);
        }
        self.known.extend(key.map(|key| (key, below)));
        (own + below, false)
    }

    fn count_referrers(&mut self, component: u32) {
        self.next_stamp();
        for &block in self.components.members(component) {
            for &target in self.graph.targets(block) {
                let target = self.components.of[target as usize];
                if target != component && self.meet(target) {
                    let referrers = &mut self.referrers[target as usize];
                    *referrers = referrers.saturating_add(1);
                }
            }
        }
    }

    fn sum_up(&mut self, component: u32) {
        let mut shared = Vec::new();
        self.next_stamp();
        let mut sum = self.expand(component, &mut shared);
        let of = |&target: &u32| self.sums[target as usize];
        sum = sum + shared.iter().map(of).max_by_key(|sum| sum.bytes).unwrap_or_default();
        let at = component as usize;
        self.is_exact[at] = match shared[..] {
            [] => true,
            [one] => self.is_exact[one as usize],
            _ => false,
        };
        self.is_tree[at] = shared.is_empty() && self.referrers[at] <= 1;
        self.sums[at] = sum;
    }

    /// The sum of a component's own blocks and of all trees below it. Other components that it references, and that
    /// were not visited since the last stamp, are added to `shared`.
    fn expand(&mut self, component: u32, shared: &mut Vec<u32>) -> BlockTotals {
        let mut sum = BlockTotals::default();
        for &block in self.components.members(component) {
            sum = sum + BlockTotals { count: 1, bytes: self.blocks.get(self.graph.blocks[block as usize]).size_bytes };
            let targets = self.graph.targets(block);
            self.steps_left = self.steps_left.saturating_sub(1 + targets.len() as u64);
            for &target in targets {
                let target = self.components.of[target as usize];
                if target == component || !self.meet(target) {
                    continue;
                }
                if self.is_tree[target as usize] {
                    sum = sum + self.sums[target as usize];
                } else {
                    shared.push(target);
                }
            }
        }
        sum
    }

    #[inline]
    fn meet(&mut self, component: u32) -> bool {
        let stamp = &mut self.stamps[component as usize];
        let is_new = *stamp != self.stamp;
        *stamp = self.stamp;
        is_new
    }

    fn next_stamp(&mut self) {
        if self.stamp == u32::MAX {
            self.stamps.fill(0);
            self.stamp = 0;
        }
        self.stamp += 1;
    }
}
