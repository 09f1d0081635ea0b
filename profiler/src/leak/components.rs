//! Strongly connected components: blocks that hold each other in circles. By Tarjan's algorithm
//! (<https://doi.org/10.1137/0201010>), on a stack of its own.

#[cfg(test)]
mod tests;

use super::blocks::number;
use super::graph::Graph;

/// The components of a graph, numbered so that edges lead to lower numbers.
#[derive(Debug)]
pub(super) struct Components {
    /// Of each block.
    pub(super) of: Vec<u32>,
    /// Where each component's members begin, and where the last one's end.
    firsts: Vec<u32>,
    /// Each component's blocks by rising number.
    members: Vec<u32>,
}

/// Of a block that is in no component yet, or was not visited.
const NONE: u32 = u32::MAX;

/// A block on the way down.
struct Step {
    block: u32,
    /// The lowest visit that can be reached from it.
    low: u32,
    /// The next edge.
    edge: usize,
}

struct Search<'a> {
    graph: &'a Graph,
    /// When each block was visited.
    visits: Vec<u32>,
    of: Vec<u32>,
    /// Visited blocks that are in no component yet.
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

    /// Sorts blocks by their components' numbers.
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

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.firsts.len() - 1
    }

    /// The blocks of a component, by rising number.
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

    /// Makes a component of all blocks that were opened since this one.
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
