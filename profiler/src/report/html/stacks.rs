//! Stacks as a tree from the outermost frame on: what two stacks have in common is there once.

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::names::Names;
use crate::model::FrameId;

/// Places in stacks. A node's parent is before it; node 0 is the empty stack.
#[derive(Debug, Default, Serialize)]
pub(super) struct Nodes {
    /// How many places before a node its parent is; of the first node, after node 0, 1.
    back: Vec<u32>,
    /// The frame of each.
    frame: Vec<u32>,
}

/// What the tree is made of while it is gathered.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    nodes: Nodes,
    children: FxHashMap<(u32, u32), u32>,
}

impl Stacks {
    /// The node of a stack that is leaf first. Frames that the profile does not have are left out.
    pub(super) fn node(&mut self, stack: &[FrameId], names: &mut Names<'_>) -> u32 {
        let mut parent = 0;
        for &id in stack.iter().rev() {
            let Some(frame) = names.frame(id) else { continue };
            parent = match self.children.get(&(parent, frame)) {
                Some(&known) => known,
                None => self.add(parent, frame),
            };
        }
        parent
    }

    fn add(&mut self, parent: u32, frame: u32) -> u32 {
        self.nodes.frame.push(frame);
        let node = u32::try_from(self.nodes.frame.len()).unwrap_or(u32::MAX);
        self.nodes.back.push(node - parent);
        self.children.insert((parent, frame), node);
        node
    }

    pub(super) fn into_nodes(self) -> Nodes {
        self.nodes
    }
}
