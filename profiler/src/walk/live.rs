//! Programs that draw calls of their allocator, say which blocks they have, and stand still: for tests of walks.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::WalkedBlock;
use crate::address::TargetAddr;
use crate::collect::ThreadState;
use crate::ids::{Pid, Tid};
use crate::linux::proc::maps::{Region, RegionKind, regions};
use crate::memory::Copied;

/// The program's text.
pub(crate) const SOURCE: &str = include_str!("live.c");

/// A running program; killed when the test is done.
pub(crate) struct Live {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Its threads, once it has run; of their registers nothing is known.
    pub(crate) threads: Vec<ThreadState>,
}

impl Live {
    /// Starts it with so many threads and blocks, and waits until it is about to begin.
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

    /// Lets it run; the blocks that it then has, by rising address.
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
                let thread = ThreadState { tid: Tid(0), registers, instruction, stack_pointer, thread_pointer: place };
                self.threads.push(thread);
                continue;
            }
            blocks.push(WalkedBlock { start: TargetAddr(number(start)), size_bytes: number(size) });
        }
        blocks.sort_by_key(|block| block.start);
        blocks
    }

    /// What it has mapped, and what is in there.
    pub(crate) fn memory(&self) -> (Vec<Region>, Copied) {
        memory(Pid(self.child.id()))
    }
}

/// What a process that stands still has mapped, and what is in all of that which can be written.
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
