//! Walks of real programs with jemalloc 5.3.0.

use super::*;
use crate::object::fixture::Workshop;
use crate::walk::live::{self, Live};

fn check_program(flags: &[&str], threads: u32, blocks: u32) {
    let workshop = Workshop::new();
    let mut all = vec!["-O1", "-Wall", "-Werror"];
    all.extend_from_slice(flags);
    let program = workshop.compile("gcc", "live.c", live::SOURCE, &all);
    let mut live = Live::start(&program, threads, blocks);
    let expected = live.run();
    let (regions, memory) = live.memory();
    let begun = std::time::Instant::now();
    let walk = walk(&Scene { memory: &memory, regions: &regions, threads: &live.threads }).expect("a heap");
    eprintln!("walked in {:?}", begun.elapsed());
    assert_eq!(walk.gaps, [""; 0]);
    let found = |block: &WalkedBlock| walk.blocks.binary_search_by_key(&block.start, |block| block.start).ok();
    let missed: Vec<_> =
        expected.iter().filter(|block| found(block).is_none_or(|at| walk.blocks[at] != **block)).collect();
    assert!(missed.is_empty(), "{missed:x?}");
    let more = walk.blocks.len() - expected.len();
    // The tables, what starting a thread allocates, and jemalloc's own.
    assert!(more <= 8 * threads as usize + 8, "{more} more than {}", expected.len());
    eprintln!("{} blocks, {more} more", expected.len());
    for block in &walk.blocks {
        let index = walk.areas.partition_point(|area| area.start <= block.start);
        assert!(block.start.0 + block.size_bytes <= walk.areas[index - 1].end.0, "{block:x?} is in no area");
    }
}

#[test]
fn blocks_of_a_program_are_found() {
    check_program(&["-ljemalloc"], 1, 130_000);
}

#[test]
fn blocks_of_a_program_with_threads_and_its_own_jemalloc_are_found() {
    check_program(&["-l:libjemalloc.a", "-lm", "-lstdc++", "-lpthread"], 8, 130_000);
}
