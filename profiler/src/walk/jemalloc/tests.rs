//! Tests with walks of real programs that use jemalloc 5.3.0.

mod made;

use std::process::{Child, Command, Stdio};

use heapbpf_base::ids::Pid;

use super::*;
use crate::walk::tests::{self, Live};
use heapbpf_base::testing::Workshop;

fn check_program(flags: &[&str], threads: u32, blocks: u32) {
    let workshop = Workshop::new();
    let mut all = vec!["-O1", "-Wall", "-Werror"];
    all.extend_from_slice(flags);
    let program = workshop.compile("gcc", "live.c", tests::SOURCE, &all);
    let mut live = Live::start(&program, threads, blocks);
    let expected = live.run();
    let (regions, memory) = live.memory();
    let walk = walk(&Scene::new(&memory, &regions, &live.threads)).expect("a heap");
    assert_eq!(walk.gaps, [""; 0]);
    let found = |block: &WalkedBlock| walk.blocks.binary_search_by_key(&block.start, |block| block.start).ok();
    let missed: Vec<_> =
        expected.iter().filter(|block| found(block).is_none_or(|at| walk.blocks[at] != **block)).collect();
    assert!(missed.is_empty(), "{missed:x?}");
    let more = walk.blocks.len() - expected.len();
    // Other blocks are the tables, what starting a thread allocates, and jemalloc's own.
    assert!(more <= 8 * threads as usize + 8, "{more} more than {}", expected.len());
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

/// A server that is killed when the test is done, whatever its outcome.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn blocks_of_redis_have_the_size_that_it_reports() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let socket = directory.path().join("redis");
    let socket = socket.to_str().expect("UTF-8");
    let arguments =
        ["--port", "0", "--save", "", "--unixsocket", socket, "--dir", "/tmp", "--enable-debug-command", "yes"];
    let server = Command::new("redis-server").args(arguments).stdout(Stdio::null()).spawn();
    let mut server = Server(server.expect("redis starts"));
    let ask = |words: &[&str]| {
        let output = Command::new("redis-cli").args(["-s", socket]).args(words).output().expect("redis-cli starts");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    while ask(&["ping"]) != "PONG\n" {
        assert_eq!(server.0.try_wait().expect("it is a child"), None, "it ended");
    }
    assert_eq!(ask(&["debug", "populate", "100000"]), "OK\n");
    let info = ask(&["info", "memory"]);
    let used = info.lines().find_map(|line| line.trim().strip_prefix("used_memory:")).expect("it reports so");
    let used: u64 = used.parse().expect("a number");
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &server.0.id().to_string()]).status().expect("kill").success())
    };
    signal("-STOP");
    while !std::fs::read_to_string(format!("/proc/{}/stat", server.0.id())).expect("it lives").contains(") T ") {
        std::thread::yield_now();
    }
    let (regions, memory) = tests::memory(Pid(server.0.id()));
    let walk = walk(&Scene::new(&memory, &regions, &[])).expect("a heap");
    drop(server);
    assert_eq!(walk.gaps, [""; 0]);
    assert!(walk.blocks.len() > 200_000, "{} blocks", walk.blocks.len());
    let bytes: u64 = walk.blocks.iter().map(|block| block.size_bytes).sum();
    // The walk also finds blocks in the cache, and blocks of libraries.
    assert!((used - (64 << 10)..used + (2 << 20)).contains(&bytes), "{bytes} bytes of {used}");
}

#[test]
fn there_are_four_classes_to_each_power_of_two() {
    let check = |quantum, expected: &[u64]| assert_eq!(Sizes::with_quantum(quantum).0[..expected.len()], *expected);
    check(16, &[8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320]);
    check(8, &[8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160]);
    let sizes = Sizes::with_quantum(16);
    assert_eq!(sizes.of(35), Some(14336), "the largest in a slab");
    assert_eq!(sizes.slab_bytes(14336), 7 * 4096);
    assert_eq!(sizes.slab_bytes(48), 3 * 4096);
}
