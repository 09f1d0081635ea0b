//! The stacks that hold what is live, as a tree from the allocation to its callers, with what is too small folded together.

use std::io;
use std::ops::Range;

use crate::model::Profile;
use crate::report::Presentation;
use crate::report::roots::process;
use crate::report::valgrind::Nodes;

/// Nodes with less of the whole than one in so many are folded: massif's own threshold of 1 %.
const SHARE_MIN: u128 = 100;

/// Callers that are told of one stack. Lines are indented by their depth, so that a longer one would take up the square of it.
const DEPTH_MAX: usize = 2048;

/// Paths by nodes, sorted, and what each holds.
pub(super) struct Tree {
    paths: Vec<(Vec<u32>, u64)>,
    /// What all paths before one hold together; one more than there are paths.
    sums: Vec<u64>,
}

/// A line that is yet to be written.
enum Line {
    Node { paths: Range<usize>, depth: usize, node: Option<u32> },
    Folded { depth: usize, bytes: u64, count: usize },
}

impl Tree {
    /// Of what callsites hold, by target and callsite.
    pub(super) fn of_callsites(
        profile: &Profile,
        presentation: &Presentation,
        nodes: &mut Nodes,
        held: Vec<(usize, usize, u64)>,
    ) -> Self {
        let path = |(target, callsite, bytes): (usize, usize, u64)| {
            let target = profile.targets.get(target)?;
            let callsite = target.callsites.get(callsite)?;
            (bytes > 0).then(|| (nodes.path(profile, target, callsite, presentation), bytes))
        };
        Self::new(held.into_iter().filter_map(path).collect())
    }

    /// Of what processes hold, by target.
    pub(super) fn of_processes(profile: &Profile, nodes: &mut Nodes, held: Vec<(usize, u64)>) -> Self {
        let path = |(target, bytes): (usize, u64)| {
            let target = profile.targets.get(target)?;
            (bytes > 0).then(|| (vec![nodes.word(profile, process(target))], bytes))
        };
        Self::new(held.into_iter().filter_map(path).collect())
    }

    fn new(mut paths: Vec<(Vec<u32>, u64)>) -> Self {
        paths.sort_unstable();
        let mut sum = 0_u64;
        let mut sums = vec![0];
        sums.extend(paths.iter().map(|(_, bytes)| {
            sum = sum.saturating_add(*bytes);
            sum
        }));
        Self { paths, sums }
    }

    /// What all of it holds.
    pub(super) fn bytes(&self) -> u64 {
        self.held(&(0..self.paths.len()))
    }

    fn held(&self, paths: &Range<usize>) -> u64 {
        self.sums[paths.end] - self.sums[paths.start]
    }

    /// Writes a line per node. `text` names it.
    pub(super) fn write(&self, text: impl Fn(u32) -> String, out: &mut dyn io::Write) -> io::Result<()> {
        let mut lines = vec![Line::Node { paths: 0..self.paths.len(), depth: 0, node: None }];
        while let Some(line) = lines.pop() {
            match line {
                Line::Node { paths, depth, node } => {
                    let callers = self.callers(&paths, depth);
                    write!(out, "{:depth$}n{}: {} ", "", callers.len(), self.held(&paths))?;
                    match node {
                        Some(node) => writeln!(out, "{}", text(node))?,
                        None => writeln!(out, "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.")?,
                    }
                    lines.extend(callers.into_iter().rev());
                }
                Line::Folded { depth, bytes, count } => {
                    let places = if count == 1 { "place," } else { "places, all" };
                    writeln!(out, "{:depth$}n0: {bytes} in {count} {places} below massif's threshold (1.00%)", "")?;
                }
            }
        }
        Ok(())
    }

    /// The nodes below one, the largest first, those that are too small as one.
    fn callers(&self, paths: &Range<usize>, depth: usize) -> Vec<Line> {
        if depth >= DEPTH_MAX {
            return Vec::new();
        }
        // A path that ends here comes before those that go on.
        let ending = self.paths[paths.clone()].partition_point(|(path, _)| path.len() <= depth);
        let mut at = paths.start + ending;
        let (mut nodes, mut folded_bytes, mut folded_count) = (Vec::new(), 0_u64, 0);
        while at < paths.end {
            let node = self.paths[at].0[depth];
            let of_node = self.paths[at..paths.end].partition_point(|(path, _)| path[depth] == node);
            let caller = at..at + of_node;
            at = caller.end;
            let bytes = self.held(&caller);
            if u128::from(bytes) * SHARE_MIN < u128::from(self.bytes()) {
                folded_bytes += bytes;
                folded_count += 1;
            } else {
                nodes.push((std::cmp::Reverse(bytes), caller, node));
            }
        }
        nodes.sort_by_key(|(bytes, caller, _)| (*bytes, caller.start));
        let depth = depth + 1;
        let nodes = nodes.into_iter().map(|(_, paths, node)| Line::Node { paths, depth, node: Some(node) });
        let folded = (folded_count > 0).then_some(Line::Folded { depth, bytes: folded_bytes, count: folded_count });
        nodes.chain(folded).collect()
    }
}
