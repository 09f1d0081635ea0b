//! The flame view: stacks merged into a tree, and its layout in cells of the screen, with the root at the top.

use std::ops::Range;
use std::sync::Arc;

use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, Profile, base_name};
use heapbpf_report::function::short;
use heapbpf_report::tables::gap_frames;
use heapbpf_report::text::printable;
use rustc_hash::FxHashMap;

/// The root, which stands for the process.
pub(crate) const ROOT: usize = 0;

/// Names from the root's child to a node, which stay the same from one profile to the next.
pub(crate) type Path = Vec<Arc<str>>;

#[derive(Debug)]
struct Node {
    parent: usize,
    name: u32,
    depth: u16,
    value: f64,
}

/// A function, or a label that is not code.
#[derive(Debug)]
pub(crate) struct Name {
    /// Key of the function and the module.
    key: Arc<str>,
    /// Label that is printable and shortened.
    pub(crate) label: String,
    /// Name of the module's file; empty for labels.
    pub(crate) module: String,
}

/// A node's place on the screen, in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: usize,
    pub(crate) row: u16,
    pub(crate) x: u16,
    pub(crate) width: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Flame {
    nodes: Vec<Node>,
    names: Vec<Name>,
    /// All nodes but the root, by parent, the largest first.
    children: Vec<usize>,
    /// Range of each parent's nodes in `children`.
    ranges: Vec<Range<usize>>,
}

struct Builder<'a> {
    profile: &'a Profile,
    nodes: Vec<Node>,
    names: Vec<Name>,
    by_frame: FxHashMap<FrameId, u32>,
    by_key: FxHashMap<Arc<str>, u32>,
    by_name: FxHashMap<(usize, u32), usize>,
}

impl Flame {
    /// Merges callsites with their values; only values above 0 count. Reversed, the allocating functions are below the root, and
    /// their callers below these.
    pub(crate) fn new<'a>(
        profile: &'a Profile,
        callsites: impl Iterator<Item = (&'a CallsiteProfile, f64)>,
        is_reversed: bool,
    ) -> Self {
        let root = Node { parent: ROOT, name: 0, depth: 0, value: 0.0 };
        let names = vec![Name { key: "".into(), label: "all".to_owned(), module: String::new() }];
        let (by_frame, by_key, by_name) = <_>::default();
        let mut builder = Builder { profile, nodes: vec![root], names, by_frame, by_key, by_name };
        for (callsite, value) in callsites.filter(|(_, value)| *value > 0.0) {
            builder.add(callsite, value, is_reversed);
        }
        let Builder { nodes, names, .. } = builder;
        let mut children: Vec<usize> = (1..nodes.len()).collect();
        children.sort_by(|&one, &other| {
            let (one, other) = (&nodes[one], &nodes[other]);
            one.parent.cmp(&other.parent).then(other.value.total_cmp(&one.value))
        });
        let mut ranges = vec![0..0; nodes.len()];
        let mut start = 0;
        for same in children.chunk_by(|&one, &other| nodes[one].parent == nodes[other].parent) {
            ranges[nodes[same[0]].parent] = start..start + same.len();
            start += same.len();
        }
        Self { nodes, names, children, ranges }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.len() < 2
    }

    pub(crate) fn value(&self, node: usize) -> f64 {
        self.nodes[node].value
    }

    pub(crate) fn name(&self, node: usize) -> &Name {
        &self.names[self.nodes[node].name as usize]
    }

    pub(crate) fn parent(&self, node: usize) -> usize {
        self.nodes[node].parent
    }

    /// Children of a node, the largest first.
    pub(crate) fn children(&self, node: usize) -> &[usize] {
        &self.children[self.ranges[node].clone()]
    }

    pub(crate) fn path(&self, node: usize) -> Path {
        let above = std::iter::successors(Some(node), |&node| Some(self.nodes[node].parent));
        let mut path: Path = above.take_while(|&node| node != ROOT).map(|node| self.name(node).key.clone()).collect();
        path.reverse();
        path
    }

    /// The node at the path, or the last one on the way to it.
    pub(crate) fn find(&self, path: &[Arc<str>]) -> usize {
        let step = |node, key: &Arc<str>| {
            let mut children = self.children(node).iter().copied();
            children.find(|&child| self.name(child).key == *key).ok_or(node)
        };
        path.iter().try_fold(ROOT, step).unwrap_or_else(|last| last)
    }

    /// Places nodes that are at least half a cell wide: the zoomed node over the whole width, below the nodes that contain it.
    pub(crate) fn layout(&self, zoomed: usize, width: u16) -> Vec<Place> {
        if self.is_empty() {
            return Vec::new();
        }
        let above = std::iter::successors(Some(zoomed), |&node| (node != ROOT).then(|| self.nodes[node].parent));
        let mut places: Vec<Place> =
            above.map(|node| Place { node, row: self.nodes[node].depth, x: 0, width }).collect();
        places.reverse();
        let whole = self.value(zoomed);
        let mut left = vec![(zoomed, 0.0)];
        while let Some((parent, mut start)) = left.pop() {
            for &node in self.children(parent) {
                let end = start + self.value(node) / whole * f64::from(width);
                let (x, behind) = (cell(start), cell(end).min(width));
                if behind > x {
                    places.push(Place { node, row: self.nodes[node].depth, x, width: behind - x });
                    left.push((node, start));
                }
                start = end;
            }
        }
        places
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn cell(position: f64) -> u16 {
    position.round() as u16
}

impl Builder<'_> {
    fn add(&mut self, callsite: &CallsiteProfile, value: f64, is_reversed: bool) {
        self.nodes[ROOT].value += value;
        let gaps: Vec<u32> = gap_frames(callsite).map(|label| self.label(&label)).collect();
        let mut node = ROOT;
        if is_reversed {
            for &id in &callsite.stack {
                let name = self.frame(id);
                node = self.child(node, name, value);
            }
            gaps.into_iter().rev().for_each(|name| node = self.child(node, name, value));
        } else {
            gaps.into_iter().for_each(|name| node = self.child(node, name, value));
            for &id in callsite.stack.iter().rev() {
                let name = self.frame(id);
                node = self.child(node, name, value);
            }
        }
    }

    fn child(&mut self, parent: usize, name: u32, value: f64) -> usize {
        let next = self.nodes.len();
        let node = *self.by_name.entry((parent, name)).or_insert(next);
        if node == next {
            let depth = self.nodes[parent].depth.saturating_add(1);
            self.nodes.push(Node { parent, name, depth, value: 0.0 });
        }
        self.nodes[node].value += value;
        node
    }

    fn frame(&mut self, id: FrameId) -> u32 {
        if let Some(&name) = self.by_frame.get(&id) {
            return name;
        }
        let frame = self.profile.frame(id);
        let name = self.named(&label(frame), frame.module.as_deref().unwrap_or_default());
        self.by_frame.insert(id, name);
        name
    }

    fn label(&mut self, label: &str) -> u32 {
        self.named(label, "")
    }

    fn named(&mut self, label: &str, module: &str) -> u32 {
        let key: Arc<str> = format!("{label}\0{module}").into();
        let next = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let name = *self.by_key.entry(Arc::clone(&key)).or_insert(next);
        if name == next {
            let module = printable(base_name(module)).into_owned();
            self.names.push(Name { key, label: label.to_owned(), module });
        }
        name
    }
}

/// Label of a frame: the function's short name, or the module and offset. Printable.
pub(crate) fn label(frame: &Frame) -> String {
    match frame.function.as_deref().map(printable) {
        Some(function) if !function.is_empty() => short(&function),
        _ => printable(&Frame { function: None, ..frame.clone() }.label()).into_owned(),
    }
}
