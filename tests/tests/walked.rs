//! Blocks found by walking the heap of a stopped program, compared with the program's own list.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use heapbpf::internals::{Scene, ThreadState, Walk, walk};
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::memory::{Copied, Memory};
use heapbpf_linux::proc::maps::{Region, RegionKind, region_of, regions};
use heapbpf_tests::recipe::Recipe;

/// Overhead of a C library's threads: the vector of a thread's modules with thread-local storage, per created thread.
/// The rest of a free chunk may have been too small for another one.
const THREAD_VECTOR_BYTES: [u64; 2] = [280, 296];

/// Number of bytes to read at once.
const PIECE_BYTES: usize = 1 << 20;

/// A run of `targets/walked.c`.
#[derive(Clone, Copy)]
struct Run {
    threads: u32,
    calls: u32,
    places: u32,
    size_max: u32,
    mode: &'static str,
    environment: &'static [(&'static str, &'static str)],
    flags: &'static str,
}

const RUN: Run =
    Run { threads: 1, calls: 50_000, places: 2_000, size_max: 1 << 20, mode: "", environment: &[], flags: "" };

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program's process, the thread pointers of its threads, and its blocks: bytes by address.
struct Said {
    pid: Pid,
    threads: Vec<u64>,
    blocks: BTreeMap<u64, u64>,
}

impl Run {
    fn start(&self) -> (Running, Said) {
        let mut command = Command::new(Recipe::of("walked.c").flags(self.flags).build());
        command.args([self.threads, self.calls, self.places, self.size_max].map(|number| number.to_string()));
        command.arg(self.mode).envs(self.environment.iter().copied()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it was built");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let running = Running(child);
        let mut said = Said { pid: Pid(0), threads: Vec::new(), blocks: BTreeMap::new() };
        loop {
            let line = lines.next().expect("a line for the end").expect("text");
            let numbers: Vec<u64> =
                line.split(' ').skip(1).map(|word| u64::from_str_radix(word, 16).expect("a number")).collect();
            match (line.split(' ').next(), numbers.as_slice()) {
                (Some("pid"), &[pid]) => said.pid = Pid(u32::try_from(pid).expect("a process")),
                (Some("thread"), &[pointer]) => said.threads.push(pointer),
                (Some("block"), &[start, bytes]) => assert_eq!(said.blocks.insert(start, bytes), None),
                (Some("done"), []) => return (running, said),
                _ => panic!("unexpected line `{line}`"),
            }
        }
    }
}

fn memory(pid: Pid) -> (Vec<Region>, Copied) {
    let regions = regions(pid).expect("it runs");
    let file = File::open(format!("/proc/{}/mem", pid.0)).expect("our child may be read");
    let data = regions.iter().filter(|it| it.readable && it.writable && it.kind != RegionKind::Kernel);
    let copied = Copied::new(data.flat_map(|region| {
        // Guard pages of a stack may be inside readable memory (`MADV_GUARD_INSTALL`).
        let starts = (region.start.0..region.end.0).step_by(PIECE_BYTES);
        let pieces =
            starts.map(|at| (at, usize::try_from(region.end.0 - at).map_or(PIECE_BYTES, |rest| rest.min(PIECE_BYTES))));
        let file = &file;
        pieces.flat_map(move |(at, length)| {
            let mut bytes = vec![0; length];
            if file.read_exact_at(&mut bytes, at).is_ok() {
                return vec![(TargetAddr(at), bytes.into_boxed_slice())];
            }
            let pages = bytes.chunks_mut(4096).zip((at..).step_by(4096));
            let there = pages.filter_map(|(page, at)| file.read_exact_at(page, at).ok().map(|()| (at, &*page)));
            there.map(|(at, page)| (TargetAddr(at), page.into())).collect()
        })
    }));
    (regions, copied)
}

fn walks(said: &Said) -> (Vec<Region>, Vec<Walk>) {
    let (regions, memory) = memory(said.pid);
    let state = |&pointer: &u64| ThreadState {
        tid: Tid(0),
        registers: Vec::new(),
        instruction: TargetAddr(0),
        stack_pointer: TargetAddr(0),
        thread_pointer: TargetAddr(pointer),
        in_syscall: true,
        exit_status: None,
    };
    let threads: Vec<ThreadState> = said.threads.iter().map(state).collect();
    let walks = walk(&Scene::new(&memory, &regions, &threads));
    (regions, walks)
}

/// Fails unless the found blocks are the program's, and those of its C library for this many threads.
#[track_caller]
fn check(run: Run, threads: usize) {
    let library = others(run);
    assert!(library.iter().all(|bytes| THREAD_VECTOR_BYTES.contains(bytes)), "not the program's: {library:#x?}");
    assert!(library.len() <= threads, "not the program's: {library:#x?}");
}

/// Returns the sizes of the found blocks that are not the program's, in ascending order; fails unless all of the
/// program's are found.
#[track_caller]
fn others(run: Run) -> Vec<u64> {
    let (_running, said) = run.start();
    let (regions, walks) = walks(&said);
    let [walk] = walks.as_slice() else { panic!("one allocator, and {} were walked", walks.len()) };
    assert_eq!((walk.heap, walk.gaps.as_slice(), walk.busy), ("libc", &[][..], false));
    assert!(walk.blocks.is_sorted_by(|a, b| a.start.0 + a.size_bytes <= b.start.0), "they overlap");
    assert!(walk.areas.is_sorted_by(|a, b| a.end <= b.start), "{:#x?}", walk.areas);
    let mut found: BTreeMap<u64, u64> = walk.blocks.iter().map(|it| (it.start.0, it.size_bytes)).collect();
    let missed: Vec<(u64, u64, &Region)> = said
        .blocks
        .iter()
        .filter(|&(start, bytes)| found.remove(start) != Some(*bytes))
        .map(|(&start, &bytes)| (start, bytes, region_of(&regions, TargetAddr(start)).expect("mapped")))
        .collect();
    assert!(missed.is_empty(), "{} of {} were missed: {:#x?}", missed.len(), said.blocks.len(), missed.first());
    for block in &walk.blocks {
        let end = block.start.0 + block.size_bytes;
        // The last word of a chunk's block is the first of the next chunk.
        let held = walk.areas.iter().any(|area| area.start <= block.start && end <= area.end.0 + 8);
        assert!(held, "{block:#x?} is in no area");
    }
    let mut sizes: Vec<u64> = found.into_values().collect();
    sizes.sort_unstable();
    sizes
}

/// Memory with some words replaced.
struct Torn<'a> {
    memory: &'a Copied,
    words: BTreeMap<u64, u64>,
}

impl Memory for Torn<'_> {
    fn present(&self, range: Range<TargetAddr>) -> Vec<Range<TargetAddr>> {
        self.memory.present(range)
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        let bytes = self.memory.read(address, buffer);
        for (at, word) in self.words.range(address.0..address.0 + bytes as u64) {
            let place = &mut buffer[..bytes][usize::try_from(at - address.0).expect("inside")..];
            place.iter_mut().zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
        }
        bytes
    }

    fn slice(&self, _: TargetAddr, _: usize) -> Option<&[u8]> {
        None
    }
}

/// With any contents of memory, walks end, and their results are well-formed.
#[test]
fn corrupted_memory() {
    let run = Run { threads: 3, calls: 2_000, places: 200, size_max: 3_000, ..RUN };
    let (_running, said) = run.start();
    let (regions, memory) = memory(said.pid);
    let sound = walk(&Scene::new(&memory, &regions, &[])).pop().expect("one allocator");
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut drawn = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut differ = 0;
    for _ in 0..300 {
        let mut torn = Torn { memory: &memory, words: BTreeMap::new() };
        for _ in 0..=drawn(8) {
            let area = &sound.areas[usize::try_from(drawn(sound.areas.len() as u64)).expect("small")];
            // Most of an arena's bookkeeping is near its start.
            let within = (area.end.0 - area.start.0).min(1 << (4 + drawn(17)));
            let at = area.start.0 + drawn(within) / 8 * 8;
            let old = memory.word(TargetAddr(at)).unwrap_or_default();
            let new =
                [0, u64::MAX, old ^ 1 << drawn(64), at, old.wrapping_add(16), old.wrapping_sub(16), drawn(1 << 20)];
            torn.words.insert(at, new[usize::try_from(drawn(7)).expect("small")]);
        }
        let walks = walk(&Scene::new(&torn, &regions, &[]));
        differ += u32::from(walks.iter().all(|walk| *walk != sound));
        for walk in walks {
            assert!(walk.blocks.is_sorted_by(|a, b| a.start.0 + a.size_bytes <= b.start.0), "{:x?}", torn.words);
            assert!(walk.areas.is_sorted_by(|a, b| a.end <= b.start), "{:x?}", torn.words);
        }
    }
    assert!(differ > 30, "only {differ} of 300 were seen");
}

#[test]
fn one_thread() {
    check(RUN, 0);
}

#[test]
fn a_hundred_thousand_blocks() {
    check(Run { calls: 600_000, places: 160_000, size_max: 400, ..RUN }, 0);
}

#[test]
fn eight_threads_with_arenas_of_their_own() {
    check(Run { threads: 8, ..RUN }, 7);
}

#[test]
fn eight_threads_in_one_arena() {
    check(Run { threads: 8, environment: &[("MALLOC_ARENA_MAX", "1")], ..RUN }, 7);
}

#[test]
fn heaps_that_are_full() {
    check(Run { threads: 3, calls: 200_000, places: 30_000, size_max: 60_000, ..RUN }, 2);
}

#[test]
fn threads_that_have_exited() {
    check(Run { threads: 8, mode: "ended", ..RUN }, 7);
}

#[test]
fn without_caches() {
    check(Run { threads: 4, environment: &[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")], ..RUN }, 3);
}

#[test]
fn large_caches() {
    check(Run { threads: 4, environment: &[("GLIBC_TUNABLES", "glibc.malloc.tcache_count=2000")], ..RUN }, 3);
}

#[test]
fn caches_that_are_never_filled() {
    check(Run { threads: 8, calls: 0, ..RUN }, 7);
}

#[test]
fn everything_mapped() {
    let environment = &[("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096")];
    check(Run { environment, size_max: 100_000, ..RUN }, 0);
}

/// The kernel splits a mapping where its pages differ in protection, advice or name, or are locked.
#[test]
fn mappings_that_are_split() {
    let environment = &[("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4096")];
    check(Run { environment, calls: 5_000, places: 500, size_max: 100_000, mode: "split", ..RUN }, 0);
    check(Run { calls: 100, places: 10, mode: "split", ..RUN }, 0);
}

#[test]
fn nothing_mapped() {
    let environment = &[("GLIBC_TUNABLES", "glibc.malloc.mmap_max=0")];
    check(Run { threads: 4, environment, ..RUN }, 3);
}

#[test]
fn static_executables() {
    // Blocks that the library of such a program allocates at startup do not depend on the program.
    let run = Run { threads: 4, flags: "-static", ..RUN };
    let library = others(Run { calls: 0, ..run });
    assert_eq!(others(run), library);
    assert_eq!(library.iter().filter(|bytes| THREAD_VECTOR_BYTES.contains(bytes)).count(), 3, "{library:#x?}");
}

#[test]
fn a_forked_child() {
    check(Run { mode: "fork", ..RUN }, 0);
}

#[test]
fn a_child_forked_by_one_of_many_threads() {
    check(Run { threads: 8, mode: "fork", ..RUN }, 7);
}

#[test]
fn a_heap_that_cannot_grow_in_place() {
    check(Run { mode: "brk", ..RUN }, 0);
}

#[test]
fn a_heap_with_foreign_memory_in_it() {
    check(Run { mode: "sbrk", ..RUN }, 0);
}
