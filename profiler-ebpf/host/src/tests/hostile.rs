//! Processes that do their worst: random memory, most of whose words refer to other parts of it, and random layouts of runtimes.
//! Whatever there is, a walk ends, within the limit of a stack, and accesses nothing but its area.

use profiler_common::hotspot::Hotspot;
use profiler_common::interpreter::{AddressRange, Interpreter};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::php::{FRAME_CALLER, FRAME_FUNCTION, Php};
use profiler_common::ruby::Ruby;
use profiler_common::unwind::Rule;
use profiler_common::v8::V8;
use proptest::prelude::*;

use crate::{Memory, Process, Random, Runtimes, Thread, Walked};

const CODE: u64 = 0x40_0000;
const DATA: u64 = 0x7f00_0000_0000;
const DATA_BYTES: u64 = 4 * 4096;

impl Random {
    /// A word as data structures have them.
    fn field(&mut self) -> u64 {
        let random = self.word();
        match random >> 60 {
            0 => self.word(),
            1 => 0,
            2 | 3 => random & 0xff,
            4 => CODE + (random & 0xfff),
            5 => DATA + random % DATA_BYTES,
            _ => DATA + random % DATA_BYTES / 8 * 8 + (random >> 59 & 1),
        }
    }

    /// Words of four offsets, or addresses.
    fn layout(&mut self) -> u64 {
        let random = self.word();
        match random >> 62 {
            0 => self.field(),
            1 => random & 0x0101_0101_0101_0101,
            2 => random,
            _ => random & 0x00f8_00f8_00f8_00f8,
        }
    }

    /// A value of integers.
    fn value<T: Copy + Integers>(&mut self) -> T {
        let words: Vec<u64> = (0..size_of::<T>().div_ceil(8)).map(|_| self.layout()).collect();
        // SAFETY: there are as many bytes, and every bit pattern is a value.
        unsafe { words.as_ptr().cast::<T>().read_unaligned() }
    }
}

/// Types of which every bit pattern is a value.
trait Integers {}
impl Integers for Interpreter {}
impl Integers for Ruby {}
impl Integers for Php {}
impl Integers for Hotspot {}
impl Integers for V8 {}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Cpython,
    Ruby,
    Php,
    Hotspot,
    V8,
}

fn runtimes(random: &mut Random, kind: Kind) -> Runtimes {
    let none = AddressRange::default();
    let code = AddressRange { start: CODE, bytes: 0x1000 };
    let mut runtimes = Runtimes::default();
    match kind {
        Kind::Cpython => {
            let chain = (random.word() % 4) as u8;
            let layout: Interpreter = random.value();
            let words = layout.code_words % 16;
            runtimes.cpython = Some(Interpreter {
                loops: [code, none],
                holder: DATA,
                key: DATA + 8,
                control_block: 0,
                indirect_frame: 0,
                chain,
                code_words: words,
                ..layout
            });
        }
        Kind::Ruby => {
            let tls_module = random.word() % 4;
            let layout: Ruby = random.value();
            let frame_bytes = layout.frame_bytes % 72;
            runtimes.ruby = Some(Ruby { loops: [code, none], tls_module, tls_offset: 0, frame_bytes, ..layout });
        }
        Kind::Php => runtimes.php = Some(Php { loops: [code, none], current: DATA, ..random.value() }),
        Kind::Hotspot => {
            let mut machine: Hotspot = random.value();
            machine.code = code;
            machine.interpreter = AddressRange { start: CODE, bytes: random.word() % 0x1000 };
            machine.heaps[0].range = code;
            machine.heaps[0].segments = DATA;
            runtimes.hotspot = Some(machine);
        }
        // The upper bytes of addresses are 0.
        Kind::V8 => {
            runtimes.v8 = Some(V8 {
                generated: code,
                builtins: [none, none],
                map_type: 6,
                shared_type: 0,
                bytecode_type: 0,
                ..random.value()
            })
        }
    }
    runtimes
}

/// Makes the beginning right, so that walkers go on to what is random.
fn begin(memory: &mut Memory, random: &mut Random, runtimes: &Runtimes) -> Thread {
    let place = |random: &mut Random| DATA + random.word() % DATA_BYTES / 8 * 8;
    let pointer = place(random);
    if let Some(layout) = &runtimes.cpython {
        let (state, frame) = (DATA + DATA_BYTES / 2, place(random));
        memory.write_words(DATA, &[state]);
        memory.write_words(state + u64::from(layout.state_frame), &[frame]);
        memory.write_words(state + u64::from(layout.state_thread), &[pointer]);
    }
    if runtimes.ruby.is_some() {
        let (context, frame) = (DATA + DATA_BYTES / 2, DATA + random.word() % 0x1000 / 8 * 8);
        memory.write_words(pointer, &[context]);
        memory.write_words(context, &[DATA, DATA_BYTES / 8, frame]);
    }
    if runtimes.php.is_some() {
        memory.write_words(DATA, &[DATA + 256]);
        for frame in (DATA + 256..DATA + DATA_BYTES / 2).step_by(128) {
            memory.write_words(frame + 8 * FRAME_CALLER as u64, &[frame + 128]);
            memory.write_words(frame + 8 * FRAME_FUNCTION as u64, &[place(random)]);
        }
    }
    // A chain of frames in the upper half.
    let (first, bytes) = (DATA + DATA_BYTES / 2 + 64, 64);
    for frame in (first..DATA + DATA_BYTES).step_by(bytes) {
        let next = frame + bytes as u64;
        memory.write_words(frame, &[next, CODE + random.word() % 0x1000]);
    }
    Thread { tgid: 7, tid: 7, pointer, ip: CODE + 8, sp: first - 16, bp: first }
}

fn walk(seed: u64, kind: Kind) -> Walked {
    let mut random = Random::new(seed);
    let runtimes = runtimes(&mut random, kind);
    let mut memory = Memory::default();
    let words: Vec<u64> = (0..DATA_BYTES / 8).map(|_| random.field()).collect();
    memory.write_words(DATA, &words);
    let thread = begin(&mut memory, &mut random, &runtimes);
    let rules = (CODE..CODE + 0x1000).map(|address| (address, Rule::FRAME_POINTER));
    let mut process = Process::new(7, &runtimes, [], rules);
    process.walk(thread, memory)
}

/// Reads for each frame, of the functions that read the most.
const READS_MAX: u64 = 256;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_walk_ends_within_the_limit_of_a_stack(
        seed in any::<u64>(),
        kind in prop::sample::select(vec![Kind::Cpython, Kind::Ruby, Kind::Php, Kind::Hotspot, Kind::V8]),
    ) {
        let walked = walk(seed, kind);
        prop_assert!(walked.frames.len() <= STACK_FRAMES_MAX);
        prop_assert!(walked.reads <= READS_MAX * STACK_FRAMES_MAX as u64, "{} reads", walked.reads);
    }
}

/// Random memory that the walkers leave at once would test nothing.
#[test]
fn walkers_go_far_into_random_memory() {
    for kind in [Kind::Cpython, Kind::Ruby, Kind::Php, Kind::Hotspot, Kind::V8] {
        let walks: Vec<Walked> = (1..200u64).map(|seed| walk(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), kind)).collect();
        let frames = walks.iter().map(|it| it.frames.len()).max().unwrap_or(0);
        let records: usize = walks.iter().map(|it| it.records.len()).sum();
        eprintln!("{kind:?}: at most {frames} frames, {records} records in all");
        assert!(frames > 20 && records >= 10, "{kind:?}: at most {frames} frames, {records} records in all");
    }
}
