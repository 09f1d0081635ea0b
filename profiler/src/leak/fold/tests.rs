//! libmemunreachable's cases of folding with their numbers, and random graphs against sets.

use proptest::prelude::*;

use super::*;
use crate::leak::synthetic::{Synthetic, components_by_sets, reached_by_sets};

fn folded(edges: &[Vec<u32>]) -> Folded {
    let (blocks, marks, memory) = Synthetic::of_edges(edges).mark();
    fold(&blocks, &marks, &memory)
}

/// Root leaks as members and what they reference: all that is reached but one.
///
/// The seed has an entry for every member, and we have one for all: as many of its entries as there are members, each with that count.
fn check(edges: &[Vec<u32>], expected: &[(&[u32], u64)]) {
    let folded = folded(edges);
    let of = |root: &RootLeak| {
        let members: Vec<u32> = root.members.iter().map(|id| id.0).collect();
        (members, root.reached.count - 1)
    };
    let expected: Vec<(Vec<u32>, u64)> = expected.iter().map(|&(members, count)| (members.to_vec(), count)).collect();
    assert_eq!(folded.roots.iter().map(of).collect::<Vec<_>>(), expected);
    assert!(folded.roots.iter().all(|root| !root.is_lower_bound));
    let count = edges.len() as u64;
    let size = folded.leaked.bytes / count;
    assert_eq!(folded.leaked, Sum { count, bytes: size * count });
    let direct: u64 = expected.iter().map(|(members, _)| members.len() as u64).sum();
    assert_eq!(folded.direct, Sum { count: direct, bytes: size * direct });
    assert!(folded.roots.iter().all(|root| root.reached.bytes == size * root.reached.count));
    assert_eq!(folded.unreached.len() as u64, count);
}

/// How many entries the seed has, and how many blocks each of them references.
fn check_seed(edges: &[Vec<u32>], leaks: usize, referenced_count: u64) {
    let folded = folded(edges);
    let seeds = folded.roots.iter().flat_map(|root| root.members.iter().map(|_| root.reached.count - 1));
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

/// Two circles, each held by a block of its own.
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

/// Blocks that roots reach are in no entry, and what they hold neither.
#[test]
fn reached_blocks_are_left_out() {
    let mut synthetic = Synthetic::of_edges(&[vec![1], vec![0], vec![1, 3], vec![]]);
    synthetic.roots.words.push(0x10_0000);
    let (blocks, marks, memory) = synthetic.mark();
    let folded = fold(&blocks, &marks, &memory);
    assert_eq!(folded.unreached, [BlockId(2), BlockId(3)]);
    assert_eq!(folded.roots[0].members[..], [BlockId(2)]);
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
        let found = folded.roots.iter().map(|root| (root.members.to_vec(), root.reached.count));
        prop_assert_eq!(found.collect::<Vec<_>>(), roots);
    }
}

/// Few edges: trees and chains; many: circles and what is shared.
fn any_edges() -> impl Strategy<Value = Vec<Vec<u32>>> {
    (1u32..40, 1usize..6).prop_flat_map(|(count, degree)| {
        prop::collection::vec(prop::collection::vec(0..count, 0..degree), count as usize)
    })
}

#[test]
fn a_root_leak_is_small() {
    assert!(size_of::<RootLeak>() <= 40, "{} bytes", size_of::<RootLeak>());
    let members = |count: u32| (0..count).map(BlockId).collect::<Members>();
    assert_eq!([members(0).len(), members(1).len(), members(2).len(), members(9).len()], [0, 1, 2, 9]);
    assert_eq!(members(3)[..], [BlockId(0), BlockId(1), BlockId(2)]);
}
