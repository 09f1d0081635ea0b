//! Fixtures for tests of walks: programs that make random calls of their allocator, list their blocks, and wait; and
//! memory that limits the number of reads. And a test of what all walks share.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use super::scene::WalkedBlock;
use super::with_one_break;
use crate::address::TargetAddr;
use crate::collect::ThreadState;
use crate::ids::{Pid, Tid};
use crate::linux::proc::maps::{Region, RegionKind, regions};
use crate::memory::{Copied, Memory};

/// Source of the program.
pub(crate) const SOURCE: &str = include_str!("live.c");

/// A running program; killed on drop.
pub(crate) struct Live {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Its threads, once it has run, without registers.
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

    /// Returns its mappings and their contents.
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
fn brk_regions_from_before_and_after_a_fork_are_joined() {
    let other = || RegionKind::Anonymous { name: None };
    let regions = [
        Region::synthetic(0x1000, 0x1000, other()),
        Region::synthetic(0x2000, 0x1000, RegionKind::Brk),
        Region::synthetic(0x3000, 0x1000, RegionKind::Brk),
        Region::synthetic(0x5000, 0x1000, RegionKind::Brk),
    ];
    let spans = |regions: &[Region]| regions.iter().map(|it| (it.start.0, it.end.0)).collect::<Vec<_>>();
    let expected = [(0x1000, 0x2000), (0x2000, 0x4000), (0x5000, 0x6000)];
    assert_eq!(spans(&with_one_break(&regions)), expected);
}
