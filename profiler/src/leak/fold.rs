//! Unreached blocks as few entries: those that no other holds, each with all that hangs on it.

#[cfg(test)]
mod tests;

use std::ops::{Add, Range};

use super::blocks::{BlockId, Blocks, number};
use super::components::Components;
use super::graph::Graph;
use super::mark::Marks;
use super::reach::{Reach, STEPS_MAX};
use super::words::Words;
use crate::memory::Memory;

/// A number of blocks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Blocks.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Add for Sum {
    type Output = Self;

    /// Both. What a target makes up may not fit, and stays at the largest number.
    fn add(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

/// Blocks that hold each other in a circle, or a single one, and that no other unreached block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootLeak {
    /// Where in [`Folded`] its blocks are.
    members: Range<u32>,
    /// The blocks of it, and all that can be reached from them.
    pub reached: Sum,
    /// More than that may be reached: so many root leaks have so much in common that counting was given up.
    pub is_lower_bound: bool,
}

/// What was not reached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// All blocks.
    pub leaked: Sum,
    /// Those that are in root leaks.
    pub direct: Sum,
    /// In the order of their first blocks' addresses. What two of them reach counts in both.
    pub roots: Vec<RootLeak>,
    /// Every block, by rising address.
    pub unreached: Vec<BlockId>,
    /// The blocks of all root leaks.
    members: Vec<BlockId>,
}

impl Folded {
    /// The blocks of a root leak, by rising address: at least one.
    #[must_use]
    pub fn members(&self, root: &RootLeak) -> &[BlockId] {
        &self.members[root.members.start as usize..root.members.end as usize]
    }
}

/// Folds what was not reached.
#[must_use]
pub fn fold(blocks: &Blocks, marks: &Marks, memory: &dyn Memory) -> Folded {
    let graph = Graph::new(blocks, marks, &Words::new(memory));
    fold_graph(blocks, graph, STEPS_MAX)
}

fn fold_graph(blocks: &Blocks, graph: Graph, steps_max: u64) -> Folded {
    let components = Components::new(&graph);
    let mut reach = Reach::new(blocks, &graph, &components, steps_max);
    let sum_of = |id: &BlockId| Sum { count: 1, bytes: blocks.get(*id).size_bytes };
    let (mut roots, mut members) = (Vec::new(), Vec::new());
    for block in 0..number(graph.len()) {
        let component = components.of[block as usize];
        let own = components.members(component);
        if own[0] != block || !reach.is_root(component) {
            continue;
        }
        let first = number(members.len());
        members.extend(own.iter().map(|&block| graph.blocks[block as usize]));
        let reached = reach.of(component);
        let members = first..number(members.len());
        roots.push(RootLeak { members, reached: reached.sum, is_lower_bound: reached.is_lower_bound });
    }
    let leaked = graph.blocks.iter().map(sum_of).fold(Sum::default(), Add::add);
    let direct = members.iter().map(sum_of).fold(Sum::default(), Add::add);
    Folded { leaked, direct, roots, unreached: graph.blocks, members }
}
