//! What takes no visits, what is cached, and results after the last step.

use super::*;
use crate::leak::synthetic::{Synthetic, reached_by_sets};

/// What each root reaches, by its block, with and without a limit of steps.
fn roots(edges: &[Vec<u32>], steps_max: u64) -> Vec<(u32, u64, bool)> {
    let blocks = Synthetic::of_edges(edges).blocks();
    let graph = Graph::of_edges(edges);
    let components = Components::new(&graph);
    let mut reach = Reach::new(&blocks, &graph, &components, steps_max);
    let block_roots = (0u32..).take(edges.len()).filter(|&block| reach.is_root(components.of[block as usize]));
    let block_roots: Vec<u32> = block_roots.collect();
    let of = |block: u32| {
        let reached = reach.of(components.of[block as usize]);
        (block, reached.sum.count, reached.is_lower_bound)
    };
    block_roots.into_iter().map(of).collect()
}

/// Many that each own a chain and hold a structure that all share: nothing is visited.
#[test]
fn owners_of_a_shared_structure_take_no_steps() {
    let shared: Vec<Vec<u32>> = vec![vec![1, 2], vec![3], vec![], vec![2]];
    let owners = (0..50).flat_map(|owner| [vec![5 + 2 * owner, 0], vec![]]);
    let edges: Vec<Vec<u32>> = shared.into_iter().chain(owners).collect();
    let expected: Vec<(u32, u64, bool)> = (0..50).map(|owner| (4 + 2 * owner, 6, false)).collect();
    let shared_is_tree: Vec<Vec<u32>> = [vec![vec![1, 2], vec![3], vec![], vec![]], edges[4..].to_vec()].concat();
    assert_eq!(roots(&shared_is_tree, 0), expected);
    // What is shared has two ways to its last block: visited once, and known from then on.
    assert_eq!(roots(&edges, 100), expected);
}

/// Where two shared structures are held, the first to hold both visits them, and others know.
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
    // A lattice: every block of a row holds two of the next, and nothing is known from another.
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
