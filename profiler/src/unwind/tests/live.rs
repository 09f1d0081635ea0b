//! Stacks of sleeping threads, unwound with heapbpf's tables through `/proc`.
//!
//! The kernel reports a sleeping thread's instruction and stack pointer, but not its rbp; a frame that needs it before another frame
//! has restored it ends the walk. The threads here sleep in code that does not.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;
use profiler_common::step::{ReadMemory, Registers, Step, step};
use profiler_common::unwind::{Rule, TableRef, find_rule};

use super::super::{Image, Table, build};

/// An unmapped address as placeholder for the unknown rbp.
const UNKNOWN: u64 = 0xdead_0000_0000_0000;

/// A process's memory.
struct Memory(File);

impl ReadMemory for Memory {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// A process's code with its tables.
struct Process {
    memory: Memory,
    mappings: Vec<(u64, u64, String, TableRef)>,
    tables: BTreeMap<String, Table>,
}

impl Process {
    fn read(pid: u32) -> Self {
        let memory = Memory(File::open(format!("/proc/{pid}/mem")).expect("one's own child may be read"));
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process lives");
        let mut process = Self { memory, mappings: Vec::new(), tables: BTreeMap::new() };
        for line in maps.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let [range, permissions, offset, _, _, path] = fields[..]
                && permissions.contains('x')
            {
                let hex = |digits| u64::from_str_radix(digits, 16).expect("maps are in hexadecimal");
                let (start, end) = range.split_once('-').expect("a range");
                process.add(hex(start), hex(end), hex(offset), path);
            }
        }
        process
    }

    fn add(&mut self, start: u64, end: u64, offset: u64, path: &str) {
        // Target address and link address of the file's first byte in this segment.
        let (table, link) = if path == "[vdso]" {
            let mut image = vec![0; usize::try_from(end - start).expect("a few pages")];
            self.memory.0.read_exact_at(&mut image, start).expect("mapped");
            (build(&super::file(&image)).expect("the kernel's own ELF image"), 0)
        } else if path.starts_with('/') {
            let cache = super::super::File::new(File::open(path).expect("mapped files are there")).expect("a file");
            let image = Image::parse(&cache).expect("a module");
            let holds = |code: &&super::super::image::Code| {
                (code.file_offset & !0xfff..code.file_offset + (code.end - code.start)).contains(&offset)
            };
            let code = image.code.iter().find(holds).expect("an executable mapping is of an executable segment");
            (build(&cache).expect("a module"), code.start - code.file_offset + offset)
        } else {
            return;
        };
        let place = table.place(TargetAddr(start.wrapping_sub(link).wrapping_add(table.base.0)), 0);
        self.mappings.push((start, end, path.to_owned(), place));
        self.tables.insert(path.to_owned(), table);
    }

    fn rule(&self, address: u64) -> Option<Rule> {
        let (_, _, path, place) = self.mappings.iter().find(|(start, end, ..)| (*start..*end).contains(&address))?;
        Some(find_rule(&self.tables[path], place, address).unwrap_or(Rule::GAP))
    }

    /// Addresses of the frames, innermost first, and the end of the stack.
    fn walk(&self, mut registers: Registers) -> (Vec<u64>, StackEnd) {
        let mut frames = vec![registers.ip];
        while frames.len() < STACK_FRAMES_MAX {
            let Some(rule) = self.rule(registers.lookup_address()) else {
                return (frames, StackEnd::MissingModule);
            };
            match step(&registers, rule, &self.memory) {
                Step::Caller(caller) => registers = caller,
                Step::End(end) => return (frames, end),
            }
            frames.push(registers.ip);
        }
        (frames, StackEnd::Truncated)
    }
}

/// Registers of a thread that sleeps in the kernel.
fn waiting(pid: u32, tid: u32) -> Registers {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let line = fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).expect("the thread lives");
        let fields: Vec<&str> = line.split_whitespace().collect();
        // Number, six arguments, stack pointer, instruction pointer. For a running thread the file contains `running`.
        if let [_, _, _, _, _, _, _, sp, ip] = fields[..] {
            let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal");
            return Registers { ip: hex(ip), sp: hex(sp), bp: UNKNOWN, link: 0, is_return_address: false };
        }
        assert!(Instant::now() < deadline, "thread {tid} never waits: `{line}`");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A program that is killed on drop.
struct Running(Child);

impl Running {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("`{program}` is needed here: {error}")))
    }

    /// Waits until the program sleeps, so that the loader and its startup code have finished.
    fn until_it_sleeps(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let path = format!("/proc/{}/syscall", self.0.id());
        // 230 is clock_nanosleep.
        while !fs::read_to_string(&path).is_ok_and(|line| line.starts_with("230 ")) {
            assert!(Instant::now() < deadline, "the program does not sleep");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sorting calls a key function, which sorts: each level is half a dozen frames of the interpreter.
const DEEP_PYTHON: &str = "
import time
def down(n):
    if n == 0: time.sleep(600)
    return sorted([n], key=lambda x: down(x - 1))
down(12)";

#[test]
fn a_deep_stack_of_an_interpreter_is_complete() {
    let python = Running::start("python3", &["-S", "-c", DEEP_PYTHON]);
    python.until_it_sleeps();
    let pid = python.0.id();
    let (frames, end) = Process::read(pid).walk(waiting(pid, pid));
    assert_eq!(end, StackEnd::Complete, "{} frames: {frames:x?}", frames.len());
    // Every level consists of the same calls.
    let repeated = frames.iter().filter(|ip| frames.iter().filter(|other| other == ip).count() >= 11).count();
    assert!(repeated >= 4 * 11, "the recursion is seen {repeated} times in {} frames: {frames:x?}", frames.len());
}

#[test]
fn a_sleeping_program_is_complete() {
    let sleep = Running::start("sleep", &["600"]);
    sleep.until_it_sleeps();
    let pid = sleep.0.id();
    let (frames, end) = Process::read(pid).walk(waiting(pid, pid));
    assert_eq!(end, StackEnd::Complete, "{frames:x?}");
    // nanosleep and its wrappers, main, two of the C library's start, _start.
    assert!((5..16).contains(&frames.len()), "{frames:x?}");
}

#[test]
fn the_vdso_has_a_table() {
    let process = Process::read(std::process::id());
    let table = process.tables.get("[vdso]").expect("the kernel maps one");
    assert!(table.stats.functions >= 3, "{:?}", table.stats);
    assert_eq!(table.stats.functions_outside_code, 0);
}
