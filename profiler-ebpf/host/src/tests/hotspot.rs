//! Stacks of virtual threads of HotSpot in memory that is written here: the innermost frame is on the stack, the others are in two chunks.

use profiler_common::arch::JAVA_FRAMES;
use profiler_common::hotspot::{CodeHeap, FrozenFrames, Hotspot};
use profiler_common::interpreter::{AddressRange, CodePlaceRecord};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;

use crate::{Memory, Process, Runtimes, Thread, Walked};

const CODE: u64 = 0x1_0000_0000;
/// Each blob begins there, in a block of its own.
const BLOCK_BYTES: u64 = 0x1000;
const BLOCK_HEADER: u64 = 16;
const BLOCKS: u64 = 8;
const SEGMENT_SHIFT: u32 = 7;
const SEGMENTS: u64 = 0x2000_0000;
const METHOD_TEXT: u64 = 0x2100_0000;
const STUBS_TEXT: u64 = 0x2100_1000;
const STACK: u64 = 0x7f00_0000_0000;
const CONTINUATION: u64 = 0x8_0000_0000;
const CHUNKS: [u64; 2] = [0x8_0010_0000, 0x8_0020_0000];
const METHOD: u64 = 0x2200_0000;
const BASE: u64 = 0x8_0000_0000 - 0x1000;
const CLASS: u64 = 0x1234_5678;
/// Words of each frame of compiled code.
const FRAME_WORDS: u64 = 4;

// Blobs. The interpreter has the first one.
const INTERPRETER: u64 = 0;
const STUBS: u64 = 1;

fn frozen() -> FrozenFrames {
    FrozenFrames {
        class: CLASS,
        class_mask: u64::from(u32::MAX),
        reference_base: BASE,
        class_at: 8,
        class_shift: 0,
        reference_shift: 3,
        is_compressed: 1,
        tail: 32,
        parent: 40,
        sp: 24,
        bottom: 28,
        stack: 48,
        reserved: [0; 3],
    }
}

fn machine(frozen: FrozenFrames) -> Hotspot {
    let code = AddressRange { start: CODE, bytes: BLOCKS * BLOCK_BYTES };
    let heap = CodeHeap { range: code, segments: SEGMENTS, segment_shift: SEGMENT_SHIFT, reserved: 0 };
    Hotspot {
        code,
        interpreter: AddressRange { start: CODE, bytes: BLOCK_BYTES },
        heaps: [heap, CodeHeap::default(), CodeHeap::default()],
        block_header: 16,
        blob_bytes: 40,
        blob_name: 0,
        blob_frame_words: 8,
        blob_method: 16,
        blob_compilation: 24,
        frozen,
        ..Hotspot::default()
    }
}

fn blob(number: u64) -> u64 {
    CODE + number * BLOCK_BYTES + BLOCK_HEADER
}

/// A return address in a blob.
const fn inside(number: u64) -> u64 {
    CODE + number * BLOCK_BYTES + 0x100
}

fn reference(address: u64) -> u64 {
    (address - BASE) >> 3
}

/// Writes a chunk whose words begin at index 2: the innermost frame has the words before.
fn write_chunk(memory: &mut Memory, chunk: u64, words: &[u64], parent: u64) {
    memory.write_words(chunk, &[1, CLASS | 0xffff_ffff << 32, 0]);
    memory.write(chunk + 24, &2u32.to_le_bytes());
    memory.write(chunk + 28, &u32::try_from(words.len()).expect("few").to_le_bytes());
    memory.write_words(chunk + 32, &[0, if parent == 0 { 0 } else { reference(parent) }]);
    memory.write_words(chunk + 48, words);
}

/// Words from the locals of a frame of the interpreter to its frame pointer, and in it the words that the walk reads.
fn interpreted(locals: u64, caller_sp: u64, link: u64, caller: u64) -> Vec<u64> {
    let bytecode = usize::try_from(JAVA_FRAMES.bytecode / 8).expect("small");
    let mut words = vec![0; bytecode + 2];
    (words[0], words[1]) = (0x2200_1000, locals);
    (words[bytecode - 3], words[bytecode - 1]) = (METHOD, caller_sp);
    (words[bytecode], words[bytecode + 1]) = (link, caller);
    words
}

fn memory() -> Memory {
    let mut memory = Memory::default();
    memory.write(METHOD_TEXT, b"nmethod\0");
    memory.write(STUBS_TEXT, b"StubRoutines (continuation stubs)\0");
    let segments = BLOCK_BYTES >> SEGMENT_SHIFT;
    let distances: Vec<u8> = (0..BLOCKS * segments).map(|index| (index % segments) as u8).collect();
    memory.write(SEGMENTS, &distances);
    for number in 0..BLOCKS {
        let text = if number == STUBS { STUBS_TEXT } else { METHOD_TEXT };
        memory.write_words(blob(number), &[text, FRAME_WORDS, 0x2300_0000 + number, number, 0]);
    }
    // Returns to the stub that copies frames. The frame pointer is that of another thread's stack.
    memory.write_words(STACK, &[0, 0, 0x7e00_0000_0000, inside(STUBS)]);
    // After a word for alignment, the entry: its parent, and the continuation of a virtual thread.
    memory.write_words(STACK + 40, &[0, CONTINUATION, 0, 1]);
    memory.write_words(CONTINUATION + 32, &[reference(CHUNKS[0]) | 0xffff_ffff << 32]);
    // A frame of compiled code, one of the interpreter with two locals, and another of compiled code.
    let bytecode = JAVA_FRAMES.bytecode / 8;
    let mut words = vec![0, inside(3), 0, 0, bytecode + 2, inside(INTERPRETER)];
    // The link is before the return address, at the end of the first frame.
    words.extend(interpreted(3, 4, 0xdead_beef, inside(4)));
    words.extend([7, 7]);
    words.extend([0, 0, 0, inside(STUBS)]);
    write_chunk(&mut memory, CHUNKS[0], &words, CHUNKS[1]);
    write_chunk(&mut memory, CHUNKS[1], &[0, inside(5), 0, 0, 0, 0], 0);
    memory
}

fn walk(memory: Memory, frozen: FrozenFrames) -> Walked {
    let runtimes = Runtimes { hotspot: Some(machine(frozen)), ..Runtimes::default() };
    let mut process = Process::new(7, &runtimes, [], []);
    process.walk(Thread { tgid: 7, tid: 7, pointer: 0, ip: inside(2), sp: STACK, bp: 5 }, memory)
}

/// Where the code of the frames is, in the order in which it was sent.
fn places(walked: &Walked) -> Vec<u64> {
    let place = |record: &Vec<u8>| {
        assert_eq!(record.len(), size_of::<CodePlaceRecord>());
        // SAFETY: the walker has written a value of this type; a vector of bytes need not be aligned.
        unsafe { record.as_ptr().cast::<CodePlaceRecord>().read_unaligned() }.place.address
    };
    walked.records.iter().map(place).collect()
}

#[test]
fn frames_of_all_chunks_follow_those_on_the_stack() {
    let walked = walk(memory(), frozen());
    assert_eq!(places(&walked), [blob(2), blob(3), METHOD, blob(4), blob(5)]);
    assert_eq!((walked.frames.len(), walked.end), (5, StackEnd::Complete));
}

#[test]
fn chunks_without_frames_are_skipped() {
    let mut memory = memory();
    // All of its words are unused.
    let bottom = memory_integer(&mut memory, CHUNKS[0] + 28);
    memory.write(CHUNKS[0] + 24, &bottom);
    let walked = walk(memory, frozen());
    assert_eq!((places(&walked), walked.end), (vec![blob(2), blob(5)], StackEnd::Complete));
}

fn memory_integer(memory: &mut Memory, address: u64) -> [u8; 4] {
    let mut bytes = [0; 4];
    assert!(memory.read(address, &mut bytes));
    bytes
}

#[test]
fn stacks_end_where_the_chunk_is_not_known() {
    let mut other_class = memory();
    other_class.write_words(CHUNKS[0] + 8, &[CLASS + 1]);
    let mut no_continuation = memory();
    no_continuation.write_words(STACK + 48, &[0]);
    let mut too_long = memory();
    too_long.write(CHUNKS[0] + 28, &u32::MAX.to_le_bytes());
    let unknown = FrozenFrames { stack: 0, ..frozen() };
    for (memory, frozen) in
        [(other_class, frozen()), (no_continuation, frozen()), (too_long, frozen()), (memory(), unknown)]
    {
        let walked = walk(memory, frozen);
        assert_eq!((places(&walked), walked.end), (vec![blob(2)], StackEnd::Frozen));
    }
}

/// A chunk that refers to itself.
#[test]
fn a_cycle_of_chunks_ends_at_the_limit_of_a_stack() {
    let mut memory = memory();
    memory.write_words(CHUNKS[1] + 40, &[reference(CHUNKS[1])]);
    let walked = walk(memory, frozen());
    // One step of the walk finds the first chunk.
    assert_eq!((walked.frames.len(), walked.end), (STACK_FRAMES_MAX - 1, StackEnd::Truncated));
}
