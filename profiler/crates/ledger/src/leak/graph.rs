//! The references between unreachable blocks, and their strongly connected components.

#[cfg(test)]
pub(super) mod tests;

use std::ops::Range;

use heapbpf_base::address::TargetAddr;
use heapbpf_linux::arch::untagged;

use super::blocks::{BlockId, Blocks, number};
use super::mark::Marks;
use super::words::Words;

/// Unreachable blocks, numbered in the order of addresses, with the blocks that each references.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) blocks: Vec<BlockId>,
    /// Index of the start of each block's targets, and of the end of the last one's.
    firsts: Vec<usize>,
    /// Each block's targets in ascending order, each once, never itself.
    targets: Vec<u32>,
}

impl Graph {
    pub(super) fn new(blocks: &Blocks, marks: &Marks, words: &Words<'_>) -> Self {
        let numbering = Numbering::new(marks);
        let unreached: Vec<BlockId> = marks.unreached().collect();
        let mut graph = Self { firsts: Vec::with_capacity(unreached.len() + 1), ..Self::default() };
        let (mut near, mut found) = (0, Vec::new());
        let (lowest, end) = blocks.bounds();
        graph.firsts.push(0);
        for (own, &id) in unreached.iter().enumerate() {
            let block = blocks.get(id);
            words.each(&(block.start.0..block.end().0), &mut near, |bytes| {
                let words = bytes.as_chunks::<8>().0.iter().map(|word| untagged(u64::from_le_bytes(*word)));
                let words = words.filter(|word| (lowest..=end).contains(word));
                let blocks_at = |word: u64| {
                    let empty_array = blocks.empty_array_before(word).map(BlockId);
                    blocks.find(TargetAddr(word)).into_iter().chain(empty_array)
                };
                found.extend(words.flat_map(blocks_at).filter_map(|id| numbering.number_of(id)));
            });
            found.sort_unstable();
            found.dedup();
            graph.targets.extend(found.drain(..).filter(|&target| target as usize != own));
            graph.firsts.push(graph.targets.len());
        }
        graph.blocks = unreached;
        graph
    }

    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    #[inline]
    pub(super) fn edges(&self, block: u32) -> Range<usize> {
        self.firsts[block as usize]..self.firsts[block as usize + 1]
    }

    #[inline]
    pub(super) fn target(&self, edge: usize) -> u32 {
        self.targets[edge]
    }

    #[inline]
    pub(super) fn targets(&self, block: u32) -> &[u32] {
        &self.targets[self.edges(block)]
    }
}

/// Number of unreachable blocks before each 64 blocks.
struct Numbering {
    bits: Vec<u64>,
    before: Vec<u32>,
}

impl Numbering {
    fn new(marks: &Marks) -> Self {
        let bits: Vec<u64> = marks.unreached_bits().collect();
        let before = bits.iter().scan(0, |count, bits| {
            let before = *count;
            *count += bits.count_ones();
            Some(before)
        });
        Self { before: before.collect(), bits }
    }

    #[inline]
    fn number_of(&self, id: BlockId) -> Option<u32> {
        let (at, bit) = (id.0 as usize / 64, id.0 % 64);
        let is_unreached = self.bits[at] >> bit & 1 == 1;
        is_unreached.then(|| self.before[at] + (self.bits[at] & ((1 << bit) - 1)).count_ones())
    }
}

/// Strongly connected components, numbered so that edges lead to lower numbers: Tarjan's algorithm
/// (<https://doi.org/10.1137/0201010>) on an explicit stack.
#[derive(Debug)]
pub(super) struct Components {
    pub(super) of: Vec<u32>,
    firsts: Vec<u32>,
    /// Each component's blocks in ascending order.
    members: Vec<u32>,
}

/// Mark of a block that has no component yet, or was not visited.
const NONE: u32 = u32::MAX;

struct Step {
    block: u32,
    /// The earliest visit that is reachable from the block.
    low: u32,
    edge: usize,
}

struct Search<'a> {
    graph: &'a Graph,
    /// Positions of blocks in the order in which they were visited.
    visits: Vec<u32>,
    of: Vec<u32>,
    /// Visited blocks without a component.
    open: Vec<u32>,
    way: Vec<Step>,
    visit_count: u32,
    component_count: u32,
}

impl Components {
    pub(super) fn new(graph: &Graph) -> Self {
        let count = graph.len();
        let mut search = Search {
            graph,
            visits: vec![NONE; count],
            of: vec![NONE; count],
            open: Vec::new(),
            way: Vec::new(),
            visit_count: 0,
            component_count: 0,
        };
        for block in 0..number(count) {
            if search.visits[block as usize] == NONE {
                search.visit(block);
                search.walk();
            }
        }
        Self::of_numbers(search.of, search.component_count)
    }

    fn of_numbers(of: Vec<u32>, component_count: u32) -> Self {
        let mut firsts = vec![0; component_count as usize + 1];
        of.iter().for_each(|&component| firsts[component as usize] += 1);
        let mut sum = 0;
        for first in &mut firsts {
            sum += *first;
            *first = sum;
        }
        let mut members = vec![0; of.len()];
        for block in (0..number(of.len())).rev() {
            let first = &mut firsts[of[block as usize] as usize];
            *first -= 1;
            members[*first as usize] = block;
        }
        Self { of, firsts, members }
    }

    pub(super) fn len(&self) -> usize {
        self.firsts.len() - 1
    }

    #[inline]
    pub(super) fn members(&self, component: u32) -> &[u32] {
        let at = component as usize;
        &self.members[self.firsts[at] as usize..self.firsts[at + 1] as usize]
    }
}

impl Search<'_> {
    fn visit(&mut self, block: u32) {
        self.visits[block as usize] = self.visit_count;
        self.way.push(Step { block, low: self.visit_count, edge: self.graph.edges(block).start });
        self.open.push(block);
        self.visit_count += 1;
    }

    fn walk(&mut self) {
        while let Some(step) = self.way.last_mut() {
            if step.edge < self.graph.edges(step.block).end {
                let target = self.graph.target(step.edge);
                step.edge += 1;
                let visit = self.visits[target as usize];
                if visit == NONE {
                    self.visit(target);
                } else if self.of[target as usize] == NONE {
                    step.low = step.low.min(visit);
                }
                continue;
            }
            let Step { block, low, .. } = *step;
            self.way.pop();
            if let Some(above) = self.way.last_mut() {
                above.low = above.low.min(low);
            }
            if low == self.visits[block as usize] {
                self.close(block);
            }
        }
    }

    /// Forms a component of all blocks opened since `first`.
    fn close(&mut self, first: u32) {
        while let Some(block) = self.open.pop() {
            self.of[block as usize] = self.component_count;
            if block == first {
                break;
            }
        }
        self.component_count += 1;
    }
}
