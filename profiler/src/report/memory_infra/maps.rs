//! The tables that a heap dump's numbers refer to: names, stacks as a tree, and types.

use rustc_hash::FxHashMap;
use serde::Serialize;

/// The highest numbers in use. No two processes share one: catapult looks names up in one table for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ids {
    string: u32,
    node: u32,
    r#type: u32,
    /// That of an allocator's total.
    pub(super) guid: u64,
}

/// The tables of one process.
#[derive(Debug, Default)]
pub(super) struct Maps {
    known_strings: FxHashMap<String, u32>,
    known_nodes: FxHashMap<(u32, u32), u32>,
    known_types: FxHashMap<u32, u32>,
}

/// The same as they are written.
#[derive(Debug, Default, Serialize)]
pub(super) struct Tables {
    strings: Vec<Text>,
    nodes: Vec<Node>,
    types: Vec<Type>,
}

#[derive(Debug, Serialize)]
struct Text {
    id: u32,
    string: String,
}

#[derive(Debug, Serialize)]
struct Node {
    id: u32,
    name_sid: u32,
    /// Roots have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<u32>,
}

#[derive(Debug, Serialize)]
struct Type {
    id: u32,
    name_sid: u32,
}

impl Maps {
    pub(super) fn string(&mut self, text: String, ids: &mut Ids) -> u32 {
        *self.known_strings.entry(text).or_insert_with(|| next(&mut ids.string))
    }

    /// The node of this name below that one; 0 is above the roots.
    pub(super) fn node(&mut self, parent: u32, name: u32, ids: &mut Ids) -> u32 {
        *self.known_nodes.entry((parent, name)).or_insert_with(|| next(&mut ids.node))
    }

    pub(super) fn r#type(&mut self, name: String, ids: &mut Ids) -> u32 {
        let name = self.string(name, ids);
        *self.known_types.entry(name).or_insert_with(|| next(&mut ids.r#type))
    }

    /// All entries in the order of their numbers, so that parents come before their children.
    pub(super) fn into_tables(self) -> Tables {
        let mut strings: Vec<Text> = self.known_strings.into_iter().map(|(string, id)| Text { id, string }).collect();
        strings.sort_unstable_by_key(|text| text.id);
        let nodes = self.known_nodes.into_iter();
        let nodes =
            nodes.map(|((parent, name_sid), id)| Node { id, name_sid, parent: (parent != 0).then_some(parent) });
        let mut nodes: Vec<Node> = nodes.collect();
        nodes.sort_unstable_by_key(|node| node.id);
        let mut types: Vec<Type> = self.known_types.into_iter().map(|(name_sid, id)| Type { id, name_sid }).collect();
        types.sort_unstable_by_key(|known| known.id);
        Tables { strings, nodes, types }
    }
}

fn next(id: &mut u32) -> u32 {
    *id += 1;
    *id
}
