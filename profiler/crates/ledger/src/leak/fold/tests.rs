//! libmemunreachable's cases of folding with their numbers, and random graphs compared with an implementation by sets.

use proptest::prelude::*;

use super::*;
use crate::leak::graph::tests::graph;
use crate::leak::tests::synthetic::{Synthetic, components_by_sets, reached_by_sets};

fn folded(edges: &[Vec<u32>]) -> Folded {
    let (blocks, marks, memory) = Synthetic::of_edges(edges).mark();
    fold(&blocks, &marks, &memory)
}

/// Checks the members of each root leak and the number of blocks that it references, which is one less than it reaches.
///
/// libmemunreachable has an entry for every member where heapbpf has one for all of them: each of its entries has the same count.
fn check(edges: &[Vec<u32>], expected: &[(&[u32], u64)]) {
    let folded = folded(edges);
    let of = |root: &RootLeak| {
        let members: Vec<u32> = folded.members[root.members.clone()].iter().map(|id| id.0).collect();
        (members, root.reached.count - 1)
    };
    let expected: Vec<(Vec<u32>, u64)> = expected.iter().map(|&(members, count)| (members.to_vec(), count)).collect();
    assert_eq!(folded.roots.iter().map(of).collect::<Vec<_>>(), expected);
    assert!(folded.roots.iter().all(|root| !root.is_lower_bound));
    let count = edges.len() as u64;
    let size = folded.leaked.bytes / count;
    assert_eq!(folded.leaked, BlockTotals { count, bytes: size * count });
    let direct = expected.len() as u64;
    assert_eq!(folded.direct, BlockTotals { count: direct, bytes: size * direct });
    assert!(folded.roots.iter().all(|root| root.reached.bytes == size * root.reached.count));
    assert_eq!(folded.unreached.len() as u64, count);
}

/// Checks how many entries libmemunreachable has, and how many blocks each of them references.
fn check_seed(edges: &[Vec<u32>], leaks: usize, referenced_count: u64) {
    let folded = folded(edges);
    let seeds = folded.roots.iter().flat_map(|root| root.members.clone().map(|_| root.reached.count - 1));
    assert_eq!(seeds.collect::<Vec<_>>(), vec![referenced_count; leaks]);
}

#[test]
fn one() {
    check(&[vec![]], &[(&[0], 0)]);
    check_seed(&[vec![]], 1, 0);
}

#[test]
fn two() {
    check(&[vec![], vec![]], &[(&[0], 0), (&[1], 0)]);
    check_seed(&[vec![], vec![]], 2, 0);
}

#[test]
fn dominator() {
    let edges = [vec![1], vec![]];
    check(&edges, &[(&[0], 1)]);
    check_seed(&edges, 1, 1);
}

#[test]
fn cycle() {
    let edges = [vec![1], vec![2], vec![1]];
    check(&edges, &[(&[0], 2)]);
    check_seed(&edges, 1, 2);
}

#[test]
fn dominator_cycle() {
    let edges = [vec![1, 2], vec![0], vec![]];
    check(&edges, &[(&[0, 1], 2)]);
    check_seed(&edges, 2, 2);
}

/// Two cycles, each held by a block outside of it.
#[test]
fn two_cycles() {
    let edges = [vec![1], vec![2], vec![1], vec![4], vec![5], vec![4]];
    check(&edges, &[(&[0], 2), (&[3], 2)]);
    check_seed(&edges, 2, 2);
}

#[test]
fn two_dominator_cycles() {
    let edges = [vec![1], vec![0], vec![3], vec![2]];
    check(&edges, &[(&[0, 1], 1), (&[2, 3], 1)]);
    check_seed(&edges, 4, 1);
}

#[test]
fn giant_dominator_cycle() {
    let edges: Vec<Vec<u32>> = (0..1000).map(|block| vec![(block + 1) % 1000]).collect();
    let members: Vec<u32> = (0..1000).collect();
    check(&edges, &[(&members, 999)]);
    check_seed(&edges, 1000, 999);
}

#[test]
fn giant_cycle() {
    let edges: Vec<Vec<u32>> = (0..1001).map(|block| vec![block % 1000 + 1]).collect();
    check(&edges, &[(&[0], 1000)]);
    check_seed(&edges, 1, 1000);
}

#[test]
fn multipath() {
    let edges = [vec![1, 2], vec![3], vec![3], vec![]];
    check(&edges, &[(&[0], 3)]);
    check_seed(&edges, 1, 3);
}

#[test]
fn multicycle() {
    let edges = [vec![1, 2], vec![2, 3], vec![0, 1], vec![2]];
    check(&edges, &[(&[0, 1, 2, 3], 3)]);
    check_seed(&edges, 4, 3);
}

#[test]
fn shared_blocks_count_in_both_leaks() {
    check(&[vec![2], vec![2], vec![]], &[(&[0], 1), (&[1], 1)]);
}

#[test]
fn a_block_that_references_itself_is_a_root_leak() {
    check(&[vec![0, 1], vec![1]], &[(&[0], 1)]);
}

/// Blocks that roots reach, and what these blocks hold, are in no entry.
#[test]
fn reached_blocks_are_left_out() {
    let mut synthetic = Synthetic::of_edges(&[vec![1], vec![0], vec![1, 3], vec![]]);
    synthetic.roots.words.push(0x10_0000);
    let (blocks, marks, memory) = synthetic.mark();
    let folded = fold(&blocks, &marks, &memory);
    assert_eq!(folded.unreached, [BlockId(2), BlockId(3)]);
    assert_eq!(folded.members, [BlockId(2)]);
    assert_eq!(folded.roots[0].reached.count, 2);
    assert_eq!(folded.roots.len(), 1);
}

#[test]
fn without_unreachable_blocks_the_result_is_empty() {
    let (blocks, marks, memory) = Synthetic::default().mark();
    assert_eq!(fold(&blocks, &marks, &memory), Folded::default());
}

proptest! {
    #[test]
    fn folding_agrees_with_sets(edges in any_edges()) {
        let folded = folded(&edges);
        let of = components_by_sets(&edges);
        let mut roots = Vec::new();
        for first in (0u32..).take(edges.len()).filter(|&block| of[block as usize] == block) {
            let is_held = (0u32..).zip(&edges).any(|(from, targets)| {
                of[from as usize] != first && targets.iter().any(|&target| of[target as usize] == first)
            });
            if !is_held {
                let members = (0u32..).take(edges.len()).filter(|&block| of[block as usize] == first).map(BlockId);
                roots.push((members.collect::<Vec<_>>(), reached_by_sets(&edges, first as usize).len() as u64));
            }
        }
        let found = folded.roots.iter().map(|root| (folded.members[root.members.clone()].to_vec(), root.reached.count));
        prop_assert_eq!(found.collect::<Vec<_>>(), roots);
    }
}

/// Graphs with few edges are trees and chains; those with many have cycles and shared blocks.
fn any_edges() -> impl Strategy<Value = Vec<Vec<u32>>> {
    (1u32..40, 1usize..6).prop_flat_map(|(count, degree)| {
        prop::collection::vec(prop::collection::vec(0..count, 0..degree), count as usize)
    })
}

#[test]
fn a_root_leak_is_small() {
    assert!(size_of::<RootLeak>() <= 40, "{} bytes", size_of::<RootLeak>());
}

/// Returns each root's first block, the number of blocks that it reaches, and whether that is a lower bound, for a limit of
/// steps.
fn roots(edges: &[Vec<u32>], steps_max: u64) -> Vec<(u32, u64, bool)> {
    let blocks = Synthetic::of_edges(edges).blocks();
    let graph = graph(edges);
    let components = Components::new(&graph);
    let mut reach = Reach::new(&blocks, &graph, &components, steps_max);
    let block_roots = (0u32..).take(edges.len()).filter(|&block| reach.is_root(components.of[block as usize]));
    let block_roots: Vec<u32> = block_roots.collect();
    let of = |block: u32| {
        let (reached, is_lower_bound) = reach.of(components.of[block as usize]);
        (block, reached.count, is_lower_bound)
    };
    block_roots.into_iter().map(of).collect()
}

/// Many blocks that each own a chain and hold a structure that all of them share: nothing is visited.
#[test]
fn owners_of_a_shared_structure_take_no_steps() {
    let shared: Vec<Vec<u32>> = vec![vec![1, 2], vec![3], vec![], vec![2]];
    let owners = (0..50).flat_map(|owner| [vec![5 + 2 * owner, 0], vec![]]);
    let edges: Vec<Vec<u32>> = shared.into_iter().chain(owners).collect();
    let expected: Vec<(u32, u64, bool)> = (0..50).map(|owner| (4 + 2 * owner, 6, false)).collect();
    let shared_is_tree: Vec<Vec<u32>> = [vec![vec![1, 2], vec![3], vec![], vec![]], edges[4..].to_vec()].concat();
    assert_eq!(roots(&shared_is_tree, 0), expected);
    // Two ways lead to the last block of the shared structure: it is visited once, and its count is known from then on.
    assert_eq!(roots(&edges, 100), expected);
}

/// If blocks hold two shared structures, the first such block visits both, and the result is reused for the others.
#[test]
fn visits_are_cached() {
    let chain =
        |first: u32, length: u32| (1..=length).map(move |next| if next < length { vec![first + next] } else { vec![] });
    let edges: Vec<Vec<u32>> = chain(0, 100).chain(chain(100, 100)).chain((0..1000).map(|_| vec![0, 100])).collect();
    let found = roots(&edges, 3 * 1000 + 500);
    assert!(found.iter().all(|&(_, count, is_lower_bound)| count == 201 && !is_lower_bound), "{found:?}");
}

#[test]
fn without_steps_the_result_is_a_lower_bound() {
    // A lattice: every block of a row holds two of the next row, and no block's result follows from that of another.
    let width = 30;
    let edges: Vec<Vec<u32>> = (0..width * width)
        .map(|block| {
            let below = block + width;
            if below < width * width { vec![below, below / width * width + (below + 1) % width] } else { vec![] }
        })
        .collect();
    let exact = roots(&edges, u64::MAX);
    let cut = roots(&edges, 3000);
    assert_eq!(exact.len(), cut.len());
    for (exact, cut) in exact.iter().zip(&cut) {
        let true_count = reached_by_sets(&edges, exact.0 as usize).len() as u64;
        assert_eq!((exact.1, exact.2), (true_count, false));
        assert!(cut.1 <= true_count && cut.1 >= u64::from(width) && (cut.2 || cut.1 == true_count), "{cut:?}");
    }
    assert!(cut.iter().any(|cut| cut.2) && cut.iter().any(|cut| !cut.2));
}
