//! Tests with walks of real programs that musl-gcc has built. Synthetic heaps are in [`made`].

mod made;

use super::*;
use crate::walk::tests::{self, Live};
use heapbpf_base::testing::Workshop;

fn walked(live: &Live) -> Walk {
    let (regions, memory) = live.memory();
    walk(&Scene::new(&memory, &regions, &[])).expect("a heap")
}

/// Checks that the blocks that a walk finds are those of the program, apart from blocks that the library made before.
fn check_program(flags: &[&str], threads: u32, blocks: u32) {
    let directory = Workshop::new();
    let mut all = vec!["-O1", "-Wall", "-Werror"];
    all.extend_from_slice(flags);
    let program = directory.compile("musl-gcc", "live.c", tests::SOURCE, &all);
    let mut live = Live::start(&program, threads, blocks);
    let before = walked(&live);
    assert_eq!(before.gaps, [""; 0]);
    let expected = live.run();
    let after = walked(&live);
    assert_eq!(after.gaps, [""; 0]);
    let mut found = after.blocks.clone();
    found.retain(|block| !before.blocks.contains(block));
    assert!(expected.len() > blocks as usize / 2, "{} blocks", expected.len());
    let beside = |all: &[WalkedBlock], of: &[WalkedBlock]| -> Vec<WalkedBlock> {
        all.iter()
            .filter(|block| {
                of.binary_search_by_key(&block.start, |block| block.start).ok().is_none_or(|at| of[at] != **block)
            })
            .copied()
            .collect()
    };
    assert_eq!(beside(&expected, &found), [], "missed, or of another size");
    assert_eq!(beside(&found, &expected), [], "made up");
    for block in &after.blocks {
        let index = after.areas.partition_point(|area| area.start <= block.start);
        let area = &after.areas[index - 1];
        assert!(block.start.0 + block.size_bytes <= area.end.0, "{block:x?} is in no area");
    }
}

#[test]
fn blocks_of_a_dynamic_program_are_found() {
    check_program(&[], 1, 130_000);
}

#[test]
fn blocks_of_a_static_program_with_threads_are_found() {
    check_program(&["-static", "-s"], 8, 130_000);
}
