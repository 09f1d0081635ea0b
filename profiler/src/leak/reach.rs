//! How much can be reached from each component, each block once.
//!
//! Sums are handed up from what a component points to, which is exact as long as at most one of those can be reached on another way too:
//! a tree, a chain, many owners of one shared structure. Elsewhere everything below is visited. That may take the square of the graph's
//! size, so visits end after a number of steps, and what is left is a lower bound and said to be.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use super::blocks::{Blocks, number};
use super::components::Components;
use super::fold::Sum;
use super::graph::Graph;

/// Edges that visits follow at most, apart from the first pass.
pub(super) const STEPS_MAX: u64 = 20_000_000;
/// Sets of more components are not kept.
const KEY_LENGTH_MAX: usize = 16;
/// Sets that are kept.
const KNOWN_MAX: usize = 1 << 20;

/// What can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    pub(super) sum: Sum,
    /// It may be more.
    pub(super) is_lower_bound: bool,
}

/// Components that point to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holders {
    None,
    One,
    Many,
}

/// What the components of a graph reach.
pub(super) struct Reach<'a> {
    blocks: &'a Blocks,
    graph: &'a Graph,
    components: &'a Components,
    holders: Vec<Holders>,
    /// What each component reaches, itself included: at least, where it is not exact.
    sums: Vec<Sum>,
    is_exact: Vec<bool>,
    /// There is one way at most to it, and from it to all below.
    is_tree: Vec<bool>,
    /// When each component was last met.
    stamps: Vec<u32>,
    stamp: u32,
    /// What is reached from sets of components, by rising number.
    known: HashMap<Vec<u32>, Sum>,
    steps_left: u64,
}

impl<'a> Reach<'a> {
    /// Sums up what each component reaches. Visits follow so many edges.
    pub(super) fn new(blocks: &'a Blocks, graph: &'a Graph, components: &'a Components, steps_max: u64) -> Self {
        let count = components.len();
        let mut reach = Self {
            blocks,
            graph,
            components,
            holders: vec![Holders::None; count],
            sums: vec![Sum::default(); count],
            is_exact: vec![true; count],
            is_tree: vec![true; count],
            stamps: vec![0; count],
            stamp: 0,
            known: HashMap::new(),
            steps_left: steps_max,
        };
        (0..number(count)).for_each(|component| reach.count_holders(component));
        // Edges lead to lower numbers: what is below a component is summed up before it.
        (0..number(count)).for_each(|component| reach.sum_up(component));
        reach.steps_left = steps_max;
        reach
    }

    /// Whether no other component points to this one.
    pub(super) fn is_root(&self, component: u32) -> bool {
        self.holders[component as usize] == Holders::None
    }

    /// What a component reaches, itself included.
    pub(super) fn of(&mut self, component: u32) -> Reached {
        let at_least = self.sums[component as usize];
        if self.is_exact[component as usize] {
            return Reached { sum: at_least, is_lower_bound: false };
        }
        let mut shared = Vec::new();
        self.next_stamp();
        let own = self.expand(component, &mut shared);
        shared.sort_unstable();
        if let Some(&below) = self.known.get(&shared) {
            return Reached { sum: own + below, is_lower_bound: false };
        }
        let key = (shared.len() <= KEY_LENGTH_MAX && self.known.len() < KNOWN_MAX).then(|| shared.clone());
        let mut below = Sum::default();
        while let Some(component) = shared.pop() {
            if self.steps_left == 0 {
                let sum = if (own + below).bytes > at_least.bytes { own + below } else { at_least };
                return Reached { sum, is_lower_bound: true };
            }
            below = below + self.expand(component, &mut shared);
        }
        self.known.extend(key.map(|key| (key, below)));
        Reached { sum: own + below, is_lower_bound: false }
    }

    fn count_holders(&mut self, component: u32) {
        self.next_stamp();
        for &block in self.components.members(component) {
            for &target in self.graph.targets(block) {
                let target = self.components.of[target as usize];
                if target != component && self.meet(target) {
                    let holders = &mut self.holders[target as usize];
                    *holders = if *holders == Holders::None { Holders::One } else { Holders::Many };
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
        self.is_tree[at] = shared.is_empty() && self.holders[at] != Holders::Many;
        self.sums[at] = sum;
    }

    /// A component's own blocks, and all trees that hang on it. What else it points to, and was not met since the last stamp, is added
    /// to `shared`.
    fn expand(&mut self, component: u32, shared: &mut Vec<u32>) -> Sum {
        let mut sum = Sum::default();
        for &block in self.components.members(component) {
            sum = sum + Sum { count: 1, bytes: self.blocks.get(self.graph.blocks[block as usize]).size_bytes };
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

    /// Whether a component is met for the first time since the last stamp.
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
