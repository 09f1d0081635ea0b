//! Unreached blocks as few entries: those that no other holds, each with all that hangs on it.

#[cfg(test)]
mod tests;

use std::ops::{Add, Deref};
use std::slice;

use super::blocks::{BlockId, Blocks, number};
use super::components::Components;
use super::graph::Graph;
use super::mark::Marks;
use super::reach::{Reach, Reached, STEPS_MAX};
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
    /// Its blocks, by rising address: at least one.
    pub members: Members,
    /// The blocks of it, and all that can be reached from them.
    pub reached: Sum,
    /// More than that may be reached: so many root leaks have so much in common that counting was given up.
    pub is_lower_bound: bool,
}

/// Blocks of a root leak, as a slice. A single one, as most are, takes no memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members(Listed);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Listed {
    One(BlockId),
    Many(Box<[BlockId]>),
}

impl Deref for Members {
    type Target = [BlockId];

    fn deref(&self) -> &[BlockId] {
        match &self.0 {
            Listed::One(block) => slice::from_ref(block),
            Listed::Many(blocks) => blocks,
        }
    }
}

impl FromIterator<BlockId> for Members {
    fn from_iter<T: IntoIterator<Item = BlockId>>(blocks: T) -> Self {
        let mut blocks = blocks.into_iter();
        match (blocks.next(), blocks.next()) {
            (Some(one), None) => Self(Listed::One(one)),
            (first, second) => Self(Listed::Many(first.into_iter().chain(second).chain(blocks).collect())),
        }
    }
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
}

/// Folds what was not reached.
pub fn fold(blocks: &Blocks, marks: &Marks, memory: &dyn Memory) -> Folded {
    let graph = Graph::new(blocks, marks, &Words::new(memory));
    fold_graph(blocks, graph, STEPS_MAX)
}

fn fold_graph(blocks: &Blocks, graph: Graph, steps_max: u64) -> Folded {
    let components = Components::new(&graph);
    let mut reach = Reach::new(blocks, &graph, &components, steps_max);
    let sum_of = |id: &BlockId| Sum { count: 1, bytes: blocks.get(*id).size_bytes };
    let (mut roots, mut direct) = (Vec::new(), Sum::default());
    for block in 0..number(graph.len()) {
        let component = components.of[block as usize];
        let own = components.members(component);
        if own[0] != block || !reach.is_root(component) {
            continue;
        }
        let members: Members = own.iter().map(|&block| graph.blocks[block as usize]).collect();
        direct = members.iter().map(sum_of).fold(direct, Add::add);
        let Reached { sum: reached, is_lower_bound } = reach.of(component);
        roots.push(RootLeak { members, reached, is_lower_bound });
    }
    let leaked = graph.blocks.iter().map(sum_of).fold(Sum::default(), Add::add);
    Folded { leaked, direct, roots, unreached: graph.blocks }
}
