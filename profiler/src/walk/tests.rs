//! Fixtures for tests of walks: programs that make random calls of their allocator, list their blocks, and wait; and memory that
//! limits the number of reads. There is also a test of what all walks share.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::memory::{Copied, Memory};
use heapbpf_linux::proc::maps::{Region, RegionKind, regions};

use super::scene::{Scene, WalkedBlock};
use crate::collect::ThreadState;

/// Source of the program.
pub(crate) const SOURCE: &str = include_str!("live.c");

/// A running program, which is killed on drop.
pub(crate) struct Live {
    child: Child,
    output: BufReader<ChildStdout>,
    /// The program's threads, once it has run, without registers.
    pub(crate) threads: Vec<ThreadState>,
}

impl Live {
    /// Starts the program with this many threads and blocks, and waits until it is ready.
    pub(crate) fn start(program: &Path, threads: u32, blocks: u32) -> Self {
        let mut command = Command::new(program);
        command.args([threads.to_string(), blocks.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut live = Self { child, output, threads: Vec::new() };
        assert_eq!(live.line(), "ready");
        live
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("readable");
        line.trim_end().to_owned()
    }

    /// Lets the program run, and returns its blocks by ascending address.
    pub(crate) fn run(&mut self) -> Vec<WalkedBlock> {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
        let mut blocks = Vec::new();
        loop {
            let line = self.line();
            if line == "done" {
                break;
            }
            let (start, size) = line.split_once(' ').unwrap_or_else(|| panic!("`{line}` is no block"));
            let number = |text| u64::from_str_radix(text, 16).expect("hexadecimal");
            if start == "t" {
                let place = TargetAddr(number(size));
                let registers = Vec::new();
                let (instruction, stack_pointer) = (TargetAddr(0), TargetAddr(0));
                let (in_syscall, exit_status) = (true, None);
                let thread = ThreadState {
                    tid: Tid(0),
                    registers,
                    instruction,
                    stack_pointer,
                    thread_pointer: place,
                    in_syscall,
                    exit_status,
                };
                self.threads.push(thread);
                continue;
            }
            blocks.push(WalkedBlock { start: TargetAddr(number(start)), size_bytes: number(size) });
        }
        blocks.sort_by_key(|block| block.start);
        blocks
    }

    /// Returns the program's mappings and their contents.
    pub(crate) fn memory(&self) -> (Vec<Region>, Copied) {
        memory(Pid(self.child.id()))
    }
}

/// Returns the mappings of a waiting process, and the contents of the writable ones.
pub(crate) fn memory(pid: Pid) -> (Vec<Region>, Copied) {
    let regions = regions(pid).expect("it lives");
    let memory = File::open(format!("/proc/{}/mem", pid.0)).expect("it may be read");
    let data = regions.iter().filter(|region| region.readable && region.writable && region.kind != RegionKind::Kernel);
    let pieces = data.map(|region| {
        let mut bytes = vec![0; usize::try_from(region.size_bytes()).expect("it fits")];
        memory.read_exact_at(&mut bytes, region.start.0).expect("all of it is there");
        (region.start, bytes.into_boxed_slice())
    });
    let copied = Copied::new(pieces);
    (regions, copied)
}

/// Returns the mappings as the kernel could have split them: each into halves, with one half of each anonymous mapping read-only.
pub(super) fn split(mappings: &[Region]) -> Vec<Region> {
    let mut parts = Vec::new();
    for (nth, mapping) in mappings.iter().enumerate() {
        let middle = mapping.start.0 + (mapping.size_bytes() / 2).next_multiple_of(4096);
        let mut halves = [mapping.clone(), mapping.clone()];
        halves[0].end = TargetAddr(middle);
        halves[1].start = TargetAddr(middle);
        halves[1].offset.0 += middle - mapping.start.0;
        halves[nth % 2].writable = !mapping.is_anonymous();
        parts.extend(halves.into_iter().filter(|half| half.start < half.end));
    }
    parts
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory that panics after too many reads, so that a test fails instead of running for hours.
pub(super) struct Patient {
    memory: Copied,
    reads_left: AtomicU64,
}

impl Patient {
    pub(super) fn new(memory: Copied, reads_max: u64) -> Self {
        Self { memory, reads_left: AtomicU64::new(reads_max) }
    }
}

impl Memory for Patient {
    fn present(&self, range: Range<TargetAddr>) -> Vec<Range<TargetAddr>> {
        self.memory.present(range)
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        assert!(self.reads_left.fetch_sub(1, Ordering::Relaxed) > 0, "memory is read too often");
        self.memory.read(address, buffer)
    }

    fn slice(&self, address: TargetAddr, length: usize) -> Option<&[u8]> {
        self.memory.slice(address, length)
    }
}

#[test]
fn adjoining_mappings_of_one_kind_are_one_region() {
    let named = |name: &str| RegionKind::Anonymous { name: Some(name.to_owned()) };
    let anonymous = || RegionKind::Anonymous { name: None };
    let file = |path: &str| RegionKind::File { path: path.into() };
    let at = Region::synthetic;
    let closed = |region: Region| Region { readable: false, writable: false, ..region };
    let read_only = |region: Region| Region { writable: false, ..region };
    let shared = |region: Region| Region { shared: true, ..region };
    let offset = |offset, region: Region| Region { offset: FileOffset(offset), ..region };
    let check = |mappings: &[Region], expected: &[(u64, u64)]| {
        let memory = Copied::new([]);
        let scene = Scene::new(&memory, mappings, &[]);
        let spans: Vec<_> = scene.regions().iter().map(|it| (it.start.0, it.end.0)).collect();
        assert_eq!(spans, expected, "{mappings:x?}");
        for mapping in mappings {
            assert!(scene.is_start_of_mapping(mapping.start.0) && scene.is_end_of_mapping(mapping.end.0));
        }
    };
    // Memory that was added to `brk` before and after a fork.
    let brk = |start| at(start, 0x1000, RegionKind::Brk);
    check(
        &[at(0x1000, 0x1000, anonymous()), brk(0x2000), brk(0x3000), brk(0x5000)],
        &[(0x1000, 0x2000), (0x2000, 0x4000), (0x5000, 0x6000)],
    );
    // Anonymous memory with locked or advised pages, closed ones, read-only ones, and ones with a name.
    let split = [
        at(0x1000, 0x1000, anonymous()),
        at(0x2000, 0x1000, anonymous()),
        closed(at(0x3000, 0x1000, anonymous())),
        at(0x4000, 0x1000, anonymous()),
        read_only(at(0x5000, 0x1000, anonymous())),
        at(0x6000, 0x1000, named("a")),
        at(0x7000, 0x1000, named("b")),
    ];
    check(&split, &[(0x1000, 0x8000)]);
    let memory = Copied::new([]);
    assert!(Scene::new(&memory, &split, &[]).anonymous().all(|region| region.readable && region.writable));
    check(
        &[at(0x1000, 0x1000, anonymous()), shared(at(0x2000, 0x1000, anonymous()))],
        &[(0x1000, 0x2000), (0x2000, 0x3000)],
    );
    // Data of a module of which pages are locked: it is joined, but neither with the module's other segments nor with another
    // module.
    let parts = [
        read_only(at(0x1000, 0x1000, file("/a"))),
        offset(0x1000, at(0x2000, 0x1000, file("/a"))),
        offset(0x2000, at(0x3000, 0x1000, file("/a"))),
        at(0x4000, 0x1000, file("/a")),
        at(0x5000, 0x1000, file("/b")),
    ];
    check(&parts, &[(0x1000, 0x2000), (0x2000, 0x4000), (0x4000, 0x5000), (0x5000, 0x6000)]);
}
