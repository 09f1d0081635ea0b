//! Tests of components, compared with sets of the blocks that each block reaches.

use proptest::prelude::*;

use super::*;
use crate::leak::tests::synthetic::components_by_sets;

/// Builds the graph in which each block has these targets.
pub(in crate::leak) fn graph(targets: &[Vec<u32>]) -> Graph {
    let mut graph = Graph { firsts: vec![0], ..Graph::default() };
    for (own, targets) in targets.iter().enumerate() {
        let mut targets: Vec<u32> = targets.iter().copied().filter(|&target| target as usize != own).collect();
        targets.sort_unstable();
        targets.dedup();
        graph.targets.extend(targets);
        graph.firsts.push(graph.targets.len());
        graph.blocks.push(BlockId(number(own)));
    }
    graph
}

/// Returns the smallest member of each block's component.
fn smallest(edges: &[Vec<u32>]) -> Vec<u32> {
    let components = Components::new(&graph(edges));
    components.of.iter().map(|&of| components.members(of)[0]).collect()
}

#[test]
fn cycles_are_one_component_and_chains_are_many() {
    assert_eq!(smallest(&[]), [0; 0]);
    assert_eq!(smallest(&[vec![1], vec![2], vec![0, 3], vec![]]), [0, 0, 0, 3]);
    assert_eq!(smallest(&[vec![], vec![0], vec![1]]), [0, 1, 2]);
}

#[test]
fn edges_lead_to_lower_numbers() {
    let edges = [vec![1, 3], vec![2], vec![1], vec![1]];
    let components = Components::new(&graph(&edges));
    assert_eq!(components.len(), 3);
    assert!(components.of[0] > components.of[3] && components.of[3] > components.of[1]);
    assert_eq!(components.members(components.of[2]), [1, 2]);
}

#[test]
fn a_chain_of_a_million() {
    let count = 1_000_000;
    let edges: Vec<Vec<u32>> = (1..=count).map(|next| if next < count { vec![next] } else { vec![] }).collect();
    assert_eq!(Components::new(&graph(&edges)).len(), 1_000_000);
    let edges: Vec<Vec<u32>> = (1..=count).map(|next| vec![next % count]).collect();
    assert_eq!(Components::new(&graph(&edges)).len(), 1);
}

proptest! {
    #[test]
    fn components_are_mutually_reachable(
        edges in (1u32..30).prop_flat_map(|count| {
            prop::collection::vec(prop::collection::vec(0..count, 0..4), count as usize)
        })
    ) {
        prop_assert_eq!(smallest(&edges), components_by_sets(&edges));
        let components = Components::new(&graph(&edges));
        for (from, targets) in edges.iter().enumerate() {
            prop_assert!(targets.iter().all(|&to| components.of[to as usize] <= components.of[from]));
        }
    }
}
