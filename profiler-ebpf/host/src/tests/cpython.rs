//! Stacks of CPython in memory that is written here, field by field, in the layout of CPython 3.12.

use profiler_common::counter::Counter;
use profiler_common::interpreter::{
    AddressRange, CodeKind, FrameChain, INSTRUCTION_UNKNOWN, InterpretedFrame, Interpreter, LineTable, NATIVE_MISSING,
    ShortCodeRecord,
};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;
use profiler_common::unwind::Rule;

use crate::{Memory, Process, Runtimes, Thread, Walked};

const LOOP: u64 = 0x40_0000;
const GENERATED: u64 = 0x20_0000;
const STACK: u64 = 0x7f00_0000_0000;
const HOLDER: u64 = 0x50_0000;
const STATE: u64 = 0x60_0000;
const CFRAME: u64 = 0x60_1000;
const FRAMES: u64 = 0x70_0000;
const CODES: u64 = 0x80_0000;
const TEXTS: u64 = 0x90_0000;
const TABLE: u64 = 0xa0_0000;
const POINTER: u64 = 0xb0_0000;

const CODE_BYTES: u64 = 0x1000;
const FRAME_BYTES: u64 = 96;

/// Frames up to this owner have code.
const ENTRY_OWNER: u8 = 3;

fn interpreter() -> Interpreter {
    Interpreter {
        loops: [AddressRange { start: LOOP, bytes: 0x1000 }, AddressRange::default()],
        holder: HOLDER,
        key: 0,
        control_block: 0,
        state_frame: 56,
        state_thread: 152,
        indirect_frame: 1,
        frame_bytes: 72,
        frame_previous: 8,
        frame_code: 0,
        frame_instruction: 56,
        frame_owner: 70,
        code_first: 112,
        code_bytecode: 192,
        code_line: 68,
        text_ascii: 40,
        text_wide: 56,
        chain: FrameChain::Shim as u8,
        entry_owner: ENTRY_OWNER,
        code_words: 4,
        code_name: 1,
        flags: 0,
        line_table: LineTable::Locations as u8,
    }
}

/// Writes a code object with this number, whose function is called `fNUMBER`.
fn write_code(memory: &mut Memory, number: u64) {
    let code = CODES + number * CODE_BYTES;
    let text = |index: u64| TEXTS + number * 512 + index * 256;
    memory.write_words(code + 112, &[text(0), text(1), text(1), TABLE]);
    memory.write(code + 68, &(10 * u32::try_from(number).expect("small")).to_ne_bytes());
    for (index, name) in ["file.py".to_owned(), format!("f{number}")].into_iter().enumerate() {
        let object = text(index as u64);
        memory.write_words(object + 16, &[name.len() as u64]);
        // Characters of 1 byte, compact and ASCII.
        memory.write(object + 32, &(1u32 << 2 | 1 << 5 | 1 << 6).to_ne_bytes());
        memory.write(object + 40, name.as_bytes());
    }
}

/// Writes the frames of one call of the loop, the innermost first, and the frame without code behind them. Returns the first.
fn write_frames(memory: &mut Memory, codes: &[u64], outside: u64) -> u64 {
    let first = FRAMES + outside;
    let last = codes.len() as u64;
    for (index, number) in (0..).zip(codes) {
        let code = CODES + number * CODE_BYTES;
        // Its seventh code unit.
        memory.write_words(first + index * FRAME_BYTES, &[code, first + (index + 1) * FRAME_BYTES]);
        memory.write_words(first + index * FRAME_BYTES + 56, &[code + 192 + 14, 0]);
    }
    memory.write_words(first + last * FRAME_BYTES, &[0, 0]);
    memory.write_words(first + last * FRAME_BYTES + 56, &[0, u64::from(ENTRY_OWNER) << 48]);
    first
}

/// The memory of a thread that executes this frame.
fn thread(frame: u64) -> Memory {
    let mut memory = Memory::default();
    memory.write_words(HOLDER, &[STATE]);
    memory.write_words(STATE + 56, &[CFRAME]);
    memory.write_words(STATE + 152, &[POINTER]);
    memory.write_words(CFRAME, &[frame]);
    // The loop's frame, whose caller has none.
    memory.write_words(STACK, &[0, 0]);
    memory.write_words(TABLE + 16, &[0, 0]);
    memory
}

fn walk(memory: Memory) -> Walked {
    walk_from(interpreter(), LOOP + 8, memory)
}

/// Walks from a frame that a chain of frame pointers follows, in the loop, in generated code and outwards.
fn walk_from(interpreter: Interpreter, ip: u64, memory: Memory) -> Walked {
    let runtimes = Runtimes { cpython: Some(interpreter), ..Runtimes::default() };
    let rules = [LOOP, GENERATED].map(|code| (code + 7, Rule::FRAME_POINTER));
    let mut process = Process::new(7, &runtimes, [(GENERATED, GENERATED + 0x1000)], rules);
    process.walk(Thread { tgid: 7, tid: 7, pointer: POINTER, ip, sp: STACK - 16, bp: STACK }, memory)
}

/// The instructions of interpreted frames, and the names of the functions that were sent.
fn read(walked: &Walked) -> (Vec<u32>, Vec<String>) {
    let interpreted = walked.frames.iter().filter_map(|&word| InterpretedFrame::from_word(word));
    let instructions = interpreted.inspect(|frame| assert_eq!(frame.kind, CodeKind::Cpython)).map(|it| it.instruction);
    let name = |record: &Vec<u8>| {
        assert_eq!(record.len(), size_of::<ShortCodeRecord>());
        // SAFETY: the walker has written a value of this type; a vector of bytes need not be aligned.
        let record = unsafe { record.as_ptr().cast::<ShortCodeRecord>().read_unaligned() };
        String::from_utf8(record.name_bytes[..record.name.bytes as usize].to_vec()).expect("it is ASCII")
    };
    (instructions.collect(), walked.records.iter().map(name).collect())
}

#[test]
fn frames_of_one_call_of_the_loop_follow_it_and_their_code_is_sent_once() {
    let mut memory = thread(FRAMES);
    write_frames(&mut memory, &[1, 2, 2, 3], 0);
    (1..=3).for_each(|number| write_code(&mut memory, number));
    let walked = walk(memory);
    assert_eq!(read(&walked), (vec![7; 4], ["f1", "f2", "f3"].map(str::to_owned).to_vec()));
    assert_eq!((walked.frames.len(), walked.frames[0]), (5, LOOP + 8), "the loop's own frame is first");
    assert_eq!(walked.end, StackEnd::Complete);
    assert!(walked.counts.keys().all(|&counter| counter == Counter::Events as u32));
    let ids: Vec<u64> = walked.frames[1..].to_vec();
    assert!(ids[1] == ids[2] && ids[0] != ids[1] && ids[2] != ids[3], "{ids:x?}");
}

#[test]
fn another_threads_state_is_not_followed() {
    let mut memory = thread(FRAMES);
    write_frames(&mut memory, &[1], 0);
    write_code(&mut memory, 1);
    memory.write_words(STATE + 152, &[POINTER + 8]);
    let walked = walk(memory);
    assert_eq!(walked.frames, [LOOP + 8]);
    assert_eq!(walked.counts.get(&(Counter::InterpreterNoThread as u32)), Some(&1));
}

#[test]
fn a_cycle_of_frames_ends_at_the_limit_of_a_stack() {
    let mut memory = thread(FRAMES);
    write_frames(&mut memory, &[1, 2], 0);
    (1..=2).for_each(|number| write_code(&mut memory, number));
    memory.write_words(FRAMES + FRAME_BYTES + 8, &[FRAMES]);
    let walked = walk(memory);
    assert_eq!(walked.frames.len(), STACK_FRAMES_MAX);
    assert_eq!(walked.records.len(), 2);
}

#[test]
fn frames_that_cannot_be_read_end_the_walk_and_are_counted() {
    for frame in [FRAMES + 4, 0x1000, u64::MAX - 7] {
        let walked = walk(thread(frame));
        assert_eq!(walked.frames, [LOOP + 8], "{frame:#x}");
        let unreadable = walked.counts.get(&(Counter::InterpreterUnreadable as u32));
        assert_eq!(unreadable, Some(&1), "{frame:#x}");
    }
}

/// Names of functions, the innermost first; `None` for native ones.
fn names(walked: &Walked) -> Vec<Option<String>> {
    let (_, sent) = read(walked);
    let mut known = Vec::new();
    let mut sent = sent.into_iter();
    let mut name = |frame: InterpretedFrame| {
        if !known.iter().any(|(code, _)| *code == frame.code) {
            known.push((frame.code, sent.next().expect("new code is sent")));
        }
        known.iter().find(|(code, _)| *code == frame.code).map(|(_, name)| name.clone())
    };
    walked.frames.iter().map(|&word| name(InterpretedFrame::from_word(word)?)).collect()
}

#[test]
fn frames_of_all_calls_of_the_loop_follow_generated_code_without_frame_pointers() {
    let expected = ["f1", "f2", "f3"].map(|name| Some(name.to_owned()));
    // The register has something else: the address of data, or of memory that is not a stack.
    for garbage in [[STATE, STATE], [STACK, CODES + 3], [0x1234_5678, 0xdead_beef_0000]] {
        let mut memory = thread(FRAMES);
        write_frames(&mut memory, &[1, 2], 0);
        write_frames(&mut memory, &[3], 0x1000);
        // Behind the first call of the loop is another one.
        memory.write_words(FRAMES + 2 * FRAME_BYTES + 8, &[FRAMES + 0x1000]);
        (1..=3).for_each(|number| write_code(&mut memory, number));
        memory.write_words(STACK, &garbage);
        let walked = walk_from(interpreter(), GENERATED + 8, memory);
        let found = names(&walked);
        assert_eq!(found[..2], [None, Some(NATIVE_MISSING.to_owned())], "{garbage:x?}");
        assert_eq!(found[2..], expected, "{garbage:x?}");
        assert_eq!((walked.frames[0], walked.end), (GENERATED + 8, StackEnd::NativeMissing), "{garbage:x?}");
        assert_eq!(read(&walked).0[0], INSTRUCTION_UNKNOWN);
    }
}

#[test]
fn stacks_that_are_cut_on_threads_without_python_stay_cut() {
    let mut memory = thread(FRAMES);
    memory.write_words(STATE + 152, &[POINTER + 8]);
    memory.write_words(STACK, &[STATE, STATE]);
    let walked = walk_from(interpreter(), GENERATED + 8, memory);
    assert_eq!((&*walked.frames, walked.end), (&[GENERATED + 8][..], StackEnd::BrokenChain));
    assert!(walked.counts.is_empty(), "{:?}", walked.counts);
}

#[test]
fn an_unknown_address_behind_a_call_is_code() {
    let mut memory = thread(FRAMES);
    write_frames(&mut memory, &[1], 0);
    write_code(&mut memory, 1);
    memory.write_words(STACK, &[0, 0x30_0008]);
    // `call` on x86-64, and `bl` on aarch64.
    memory.write(0x30_0000, &[0, 0, 0, 0xe8, 0, 0, 0, 0x94]);
    let walked = walk_from(interpreter(), GENERATED + 8, memory);
    assert_eq!(walked.frames[..2], [GENERATED + 8, 0x30_0008]);
    assert_eq!(names(&walked)[2..], [NATIVE_MISSING, "f1"].map(|name| Some(name.to_owned())));
    assert_eq!(walked.end, StackEnd::NativeMissing);
}

#[test]
fn functions_outside_of_too_many_native_frames_follow() {
    const CALLS: u64 = 700;
    let one = Interpreter { chain: FrameChain::One as u8, ..interpreter() };
    let mut memory = thread(FRAMES);
    (1..=3).for_each(|number| write_code(&mut memory, number));
    for call in 0..CALLS {
        let (frame, outer) = (FRAMES + call * FRAME_BYTES, STACK + (call + 1) * 32);
        let code = CODES + if call + 1 == CALLS { 3 } else { 1 + call % 2 } * CODE_BYTES;
        memory.write_words(frame, &[code, if call + 1 == CALLS { 0 } else { frame + FRAME_BYTES }]);
        memory.write_words(frame + 56, &[code + 192 + 14, 0]);
        // A call of the loop for each function.
        let caller = if call + 1 == CALLS { [0, 0] } else { [outer, LOOP + 8] };
        memory.write_words(outer - 32, &caller);
    }
    let walked = walk_from(one, LOOP + 8, memory);
    assert_eq!(walked.end, StackEnd::NativeMissing);
    let python: Vec<String> = names(&walked).into_iter().flatten().filter(|name| *name != NATIVE_MISSING).collect();
    assert_eq!(python.len() as u64, CALLS);
    assert_eq!([&python[0], &python[1], &python[2], &python[699]], ["f1", "f2", "f1", "f3"]);
    assert!(walked.frames.len() < STACK_FRAMES_MAX, "{} frames", walked.frames.len());
    let missing = names(&walked).into_iter().position(|name| name.as_deref() == Some(NATIVE_MISSING));
    assert!(missing.is_some_and(|missing| missing > STACK_FRAMES_MAX / 5), "{missing:?}");
}
