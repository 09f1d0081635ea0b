//! Frames of CPython, which are linked from that of the thread's state outwards.
//!
//! Python code has no machine code of its own, and its names are in objects that are freed when a module has been imported. So
//! the first stack that contains a code object sends what the agent needs of it ([`cpython_code`]).
//!
//! The target controls all of this memory. Reads of wrong addresses fail, lengths are bounded, and the limit of a stack's frames
//! bounds cycles.

use core::mem::offset_of;

use profiler_common::arch::{GLIBC_BLOCK_KEYS, THREAD_DATA, ends_with_call};
use profiler_common::counter::Counter;
use profiler_common::interpreter::{
    CODE_NAME_BYTES, CODE_WORDS, COUNTS_BYTES, CodeId, CodeKind, CodeRecord, CodeText, FRAME_WORDS, FrameChain,
    INSTRUCTION_UNKNOWN, InterpretedFrame, Interpreter, NATIVE_MISSING, Runtime, SHORT_TABLE_BYTES, ShortCodeRecord,
    TABLE_BYTES, TABLE_LENGTH, TEXT_LENGTH, TEXT_STATE, USES_MUSL, runtime_index,
};
use profiler_common::limits::{INTERPRETED_CODE_BYTES_MAX, PAGE_BYTES, STACK_FRAMES_MAX};
use profiler_common::record::{RecordHeader, RecordKind};
use profiler_common::stack::{StackEnd, StackHasher};

use crate::asm::masked;
use crate::code::{drop_code, may_send};
use crate::helpers::{
    BPF_RB_NO_WAKEUP, bpf_get_current_pid_tgid, bpf_get_current_task, bpf_probe_read_kernel, bpf_probe_read_user,
    read_user,
};
use crate::interpreter::{DONE, END, IS_UNREADABLE, MORE, NEW_CODE, NEXT, frames_until};
use crate::layout::{FRAME_WINDOW_WORDS, InnerFrames, InterpreterWalk, Scratch, Walk};
use crate::maps::{EVENTS, INTERPRETERS, SCRATCH, count};
use crate::seen::is_new;
use crate::walk::is_unregistered;
use crate::window::user_word;
use crate::{asm, config, frames};

/// Adds a frame. Returns [`DONE`] after the last one of this call of the loop, and [`END`] without adding one if there is none; and
/// [`NEW_CODE`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cpython_step(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return END;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let Some(interpreter) = INTERPRETERS.get(runtime_index(walk.interpreter.number)) else {
        return END;
    };
    if walk.interpreter.has_begun == 0 {
        begin(&mut walk.interpreter, interpreter, true);
    }
    let frame = walk.interpreter.frame;
    let depth = walk.depth;
    if frame == 0 || depth >= STACK_FRAMES_MAX as u64 {
        return END;
    }
    if depth < INNER_FRAMES {
        walk.interpreter.inner = InnerFrames { frame, depth, hash: walk.hash };
    }
    if !read_frame(&mut walk.interpreter, interpreter, frame) {
        count(Counter::InterpreterUnreadable);
        walk.interpreter.frame = 0;
        walk.interpreter.has_begun = IS_UNREADABLE;
        return END;
    }
    let state = &walk.interpreter;
    let (previous, owner) = (word(state, interpreter.frame_previous), byte(state, interpreter.frame_owner));
    walk.interpreter.frame = previous;
    if interpreter.chain == FrameChain::Shim as u8 && owner >= interpreter.entry_owner {
        return DONE;
    }
    let is_new = add_frame(scratch, interpreter);
    let is_last = match interpreter.chain {
        ONE => true,
        ENTRY => owner != 0,
        _ => false,
    };
    (if is_last { DONE } else { NEXT }) | if is_new { NEW_CODE } else { 0 }
}

const ONE: u8 = FrameChain::One as u8;
const ENTRY: u8 = FrameChain::Entry as u8;

/// Frames of a stack with too many native ones that are kept: Python's own chain of frames follows the innermost ones.
const INNER_FRAMES: u64 = STACK_FRAMES_MAX as u64 / 4;

/// Sets the innermost frame of the current thread.
#[inline(always)]
fn begin(state: &mut InterpreterWalk, interpreter: &Interpreter, needs_thread: bool) {
    state.has_begun = 1;
    state.frame = match first_frame(interpreter) {
        Some(frame) => frame,
        None => {
            if needs_thread {
                count(Counter::InterpreterNoThread);
            }
            0
        }
    };
}

/// Adds a frame that stands for missing native ones at the end of a walk, if Python's own frames follow it. Takes the end, a
/// [`StackEnd`] plus 1, and returns [`StackEnd::NativeMissing`] plus 1 if they do: [`cpython_rest`] adds them.
///
/// All frames that are left in the thread's chain are callers of the last native one: generated code, for example, has no unwind
/// tables, and does not mind that it is called by Python.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cpython_cut(area: u32, end: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return end;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let Some(interpreter) = INTERPRETERS.get(runtime_index(walk.interpreter.number)) else {
        return end;
    };
    if end == StackEnd::Complete as u32 + 1 || !Runtime::Cpython.has(walk.interpreter.number) {
        return end;
    }
    let mut end = end;
    if end == StackEnd::MissingModule as u32 + 1 {
        let registers = walk.registers();
        let address = registers.lookup_address();
        if is_unregistered(walk, address) {
            if !registers.is_return_address || follows_call(registers.ip) {
                // The agent continues the walk, if it permits.
                if walk.mapping_copies != 0 {
                    return end;
                }
            } else {
                // Frame pointers of code that has none led here.
                frames::remove_last(scratch);
                end = StackEnd::BrokenChain as u32 + 1;
            }
        }
    }
    let state = &mut walk.interpreter;
    if state.has_begun == 0 {
        // Threads of other libraries have no state.
        begin(state, interpreter, false);
    }
    if end == StackEnd::Truncated as u32 + 1 {
        let inner = state.inner;
        if inner.frame == 0 {
            return end;
        }
        state.frame = inner.frame;
        walk.depth = inner.depth;
        walk.hash = inner.hash;
    }
    if state.frame == 0 || walk.depth >= STACK_FRAMES_MAX as u64 {
        return end;
    }
    let mut hasher = StackHasher::resume(walk.seed);
    hasher.add(MARK);
    state.code_id = hasher.finish();
    state.code = MARK;
    let code = CodeId(state.code_id).in_frames();
    let frame = InterpretedFrame { kind: CodeKind::Cpython, code, instruction: INSTRUCTION_UNKNOWN };
    frames::add(scratch, frame.to_word());
    if is_new(state.code_id) {
        send_mark(state.code_id);
    }
    StackEnd::NativeMissing as u32 + 1
}

/// In place of the address of a code object: the frame stands for missing native ones.
const MARK: u64 = 3;

/// Whether the address is behind a call. Other addresses are no return addresses.
#[inline(always)]
fn follows_call(address: u64) -> bool {
    match user_word(address.wrapping_sub(8)) {
        Some(code) => ends_with_call(code),
        None => false,
    }
}

/// Adds the next frames of the thread's chain after [`cpython_cut`]. Returns the end of the stack, a [`StackEnd`] plus 1, with [`MORE`].
#[inline(always)]
pub(crate) fn cpython_rest(area: u32) -> u32 {
    const END_NATIVE: u32 = StackEnd::NativeMissing as u32 + 1;
    if frames_until(area, |result| result == END, |area| cpython_step(area), |area| cpython_code(area)) == NEXT {
        return END_NATIVE | MORE;
    }
    let Some(scratch) = SCRATCH.get_ptr(area) else {
        return END_NATIVE;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &(*scratch).walk.interpreter };
    if state.has_begun == IS_UNREADABLE {
        StackEnd::Unreadable as u32 + 1
    } else if state.frame != 0 {
        StackEnd::Truncated as u32 + 1
    } else {
        END_NATIVE
    }
}

/// Sends the name of the frame that stands for missing native ones.
#[inline(always)]
fn send_mark(id: u64) {
    const ASCII: u32 = 1 << 2 | 1 << 5 | 1 << 6;
    let Some(mut entry) = EVENTS.reserve::<ShortCodeRecord>(0) else {
        drop_code(id);
        return;
    };
    let record: *mut ShortCodeRecord = entry.as_mut_ptr();
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let text = |bytes: u32| CodeText { characters: bytes as u64, state: ASCII, bytes };
    // SAFETY: within the reserved record.
    unsafe {
        (*record).header = RecordHeader::new(RecordKind::Code, tgid);
        (*record).code_id = id;
        (*record).first_line = 0;
        (*record).table_bytes = 0;
        (*record).line_table = 0;
        (*record).reserved = 0;
        asm::store(&raw mut (*record).table_address, 0);
        asm::store(&raw mut (*record).table_length, 0);
        (*record).name = text(NATIVE_MISSING.len() as u32);
        (*record).file = text(0);
        let name = (&raw mut (*record).name_bytes).cast::<u8>();
        for (index, byte) in NATIVE_MISSING.bytes().enumerate() {
            name.add(index).write(byte);
        }
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    count(Counter::Events);
}

/// The thread pointer of the current thread.
#[inline(always)]
pub(crate) fn thread_pointer() -> Option<u64> {
    let offset = config::task_thread_pointer_offset();
    // The verifier checks this function even if no process has an interpreter, and a locked-down kernel refuses the helper.
    if offset == 0 {
        return None;
    }
    // SAFETY: the helper takes no arguments.
    let task = unsafe { bpf_get_current_task() };
    // The kernel keeps the register there between two runs of the thread. On x86-64, `arch_prctl` writes it too (`do_arch_prctl_64`
    // in arch/x86/kernel/process_64.c); an arm64 program sets the register itself, so that of its first thread is missing until
    // another thread has run on this processor since (`tls_preserve_current_state` in arch/arm64/kernel/process.c).
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((task + offset) as *const u64) }.ok()
}

/// The innermost frame of the current thread.
#[inline(always)]
fn first_frame(interpreter: &Interpreter) -> Option<u64> {
    let thread = thread_pointer()?.wrapping_sub(interpreter.control_block);
    let mut state = 0;
    if interpreter.holder != 0 {
        state = of_thread(interpreter, interpreter.holder, thread).unwrap_or(0);
    }
    if state == 0 {
        state = of_thread(interpreter, thread_specific(interpreter, thread)?, thread)?;
    }
    if state == 0 {
        return None;
    }
    let frame = user_word(state.wrapping_add(u64::from(interpreter.state_frame)))?;
    if interpreter.indirect_frame == 0 || frame == 0 {
        return Some(frame);
    }
    user_word(frame.wrapping_add(u64::from(interpreter.indirect_frame - 1)))
}

/// Address of the thread-specific pointer to the thread's state. The thread is its control block.
#[inline(always)]
fn thread_specific(interpreter: &Interpreter, thread: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    let key = u64::from(unsafe { bpf_probe_read_user(interpreter.key as *const u32) }.ok()?);
    if interpreter.flags & USES_MUSL != 0 {
        return Some(user_word(thread.wrapping_add(THREAD_DATA.musl_values))?.wrapping_add(key * 8));
    }
    let (number, place) = (key / GLIBC_BLOCK_KEYS, key % GLIBC_BLOCK_KEYS);
    let first = thread.wrapping_add(THREAD_DATA.glibc_first_block);
    let block = if number == 0 {
        first
    } else {
        user_word(thread.wrapping_add(THREAD_DATA.glibc_blocks).wrapping_add(number * 8))?
    };
    if block == 0 { None } else { Some(block.wrapping_add(place * 16 + 8)) }
}

/// The thread's state that a pointer at this address refers to, if it is this thread's.
#[inline(always)]
fn of_thread(interpreter: &Interpreter, pointer: u64, thread: u64) -> Option<u64> {
    let state = user_word(pointer)?;
    if state == 0 || user_word(state.wrapping_add(u64::from(interpreter.state_thread)))? != thread {
        return None;
    }
    Some(state)
}

pub(crate) const WINDOW_BYTES: u64 = FRAME_WINDOW_WORDS as u64 * 8;
const FRAME_BYTES_MAX: u64 = FRAME_WORDS as u64 * 8;

/// Makes the frame the current one. Since CPython 3.11, callers' frames are mostly below it, on the thread's data stack, so that
/// one read covers several; earlier ones are objects anywhere. No read goes below the frame's page, which is mapped: a read that
/// faults takes microseconds.
#[inline(always)]
fn read_frame(state: &mut InterpreterWalk, interpreter: &Interpreter, frame: u64) -> bool {
    let bytes = (u64::from(interpreter.frame_bytes) + 7) & !7;
    if frame & 7 != 0 || bytes > FRAME_BYTES_MAX {
        return false;
    }
    let offset = frame.wrapping_sub(state.window_start);
    if offset > WINDOW_BYTES || offset + bytes > state.window_bytes {
        let in_page = frame & (PAGE_BYTES - 1);
        let below = if in_page + bytes > WINDOW_BYTES { WINDOW_BYTES - bytes } else { in_page };
        let below = if interpreter.chain == ONE { 0 } else { below };
        if !fill(state, frame - below, below + bytes) {
            return false;
        }
    }
    state.at = frame.wrapping_sub(state.window_start) / 8;
    true
}

#[inline(never)]
pub(crate) fn fill(state: &mut InterpreterWalk, start: u64, bytes: u64) -> bool {
    state.window_bytes = 0;
    let bytes = masked::<{ 2 * WINDOW_BYTES - 1 }>(bytes);
    if bytes > WINDOW_BYTES {
        return false;
    }
    // SAFETY: at most the array's length; the helper checks the source.
    if unsafe { read_user((&raw mut state.window).cast(), bytes as u32, start as *const _) } != 0 {
        return false;
    }
    state.window_start = start;
    state.window_bytes = bytes;
    true
}

/// A word of the current frame.
#[inline(always)]
pub(crate) fn word(state: &InterpreterWalk, offset: u16) -> u64 {
    let index = masked::<{ FRAME_WINDOW_WORDS as u64 - 1 }>(state.at + u64::from(offset) / 8);
    // SAFETY: within the array, whose length is a power of two.
    unsafe { *state.window.as_ptr().add(index as usize) }
}

#[inline(always)]
fn byte(state: &InterpreterWalk, offset: u16) -> u8 {
    (word(state, offset) >> (u64::from(offset & 7) * 8)) as u8
}

/// Adds the current frame. Returns whether its code is new.
#[inline(always)]
fn add_frame(scratch: *mut Scratch, interpreter: &Interpreter) -> bool {
    // SAFETY: this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let state = &mut walk.interpreter;
    // Since 3.14, the low bits are a tag.
    let code = word(state, interpreter.frame_code) & !7;
    // A function that calls itself has the same code object.
    if code != state.code {
        state.code = code;
        state.code_id = identify(state, interpreter, walk.seed, code);
    }
    let id = state.code_id;
    let instruction = instruction(state, interpreter, code);
    // The frame that cleans up after `__init__` (`_Py_InitCleanup` since 3.13): its file has the name of the function.
    if state.code_words[0] != 0 && state.code_words[0] == state.code_words[1] {
        return false;
    }
    let frame = InterpretedFrame { kind: CodeKind::Cpython, code: CodeId(id).in_frames(), instruction };
    frames::add(scratch, frame.to_word());
    is_new(id)
}

/// The id of the code object, of which the identifying words are read.
#[inline(always)]
fn identify(state: &mut InterpreterWalk, interpreter: &Interpreter, seed: u64, code: u64) -> u64 {
    let bytes = masked::<{ 2 * CODE_WORDS as u64 * 8 - 1 }>(u64::from(interpreter.code_words) * 8);
    let from = code.wrapping_add(u64::from(interpreter.code_first));
    // SAFETY: at most the array's length; the helper checks the source.
    if bytes > CODE_WORDS as u64 * 8
        || unsafe { read_user((&raw mut state.code_words).cast(), bytes as u32, from as *const _) } != 0
    {
        asm::zero(&mut state.code_words);
    }
    let mut hasher = StackHasher::resume(seed);
    hasher.add(code);
    for index in 0..CODE_WORDS {
        if index < usize::from(interpreter.code_words) {
            hasher.add(state.code_words[index]);
        }
    }
    hasher.finish()
}

/// Number of the code unit that is executed.
#[inline(always)]
fn instruction(state: &InterpreterWalk, interpreter: &Interpreter, code: u64) -> u32 {
    let at = word(state, interpreter.frame_instruction);
    let bytes = if interpreter.code_bytecode == 0 {
        let number = (at >> (u64::from(interpreter.frame_instruction & 4) * 8)) as u32;
        if interpreter.flags & COUNTS_BYTES != 0 { u64::from(number) } else { u64::from(number) * 2 }
    } else {
        at.wrapping_sub(code).wrapping_sub(u64::from(interpreter.code_bytecode))
    };
    // Frames that have not begun are before their first instruction.
    let units = bytes / 2;
    if units > u64::from(INSTRUCTION_UNKNOWN) { INSTRUCTION_UNKNOWN } else { units as u32 }
}

/// Sends the code object of the current frame.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn cpython_code(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &(*scratch).walk.interpreter };
    let Some(interpreter) = INTERPRETERS.get(runtime_index(state.number)) else {
        return 0;
    };
    if !may_send(state.code_id) {
        return 0;
    }
    let table = state_word(state, interpreter.code_words.wrapping_sub(1));
    let length = user_word(table.wrapping_add(TABLE_LENGTH as u64)).unwrap_or(0);
    if length <= SHORT_TABLE_BYTES as u64 {
        send::<SHORT_TABLE_BYTES>(state, interpreter, table, length)
    } else {
        send::<INTERPRETED_CODE_BYTES_MAX>(state, interpreter, table, length)
    }
}

#[inline(always)]
fn state_word(state: &InterpreterWalk, number: u8) -> u64 {
    let index = masked::<{ CODE_WORDS as u64 - 1 }>(u64::from(number));
    // SAFETY: within the array, whose length is a power of two.
    unsafe { *state.code_words.as_ptr().add(index as usize) }
}

#[inline(always)]
fn send<const TABLE: usize>(state: &InterpreterWalk, interpreter: &Interpreter, table: u64, length: u64) -> u32 {
    let Some(mut entry) = EVENTS.reserve::<CodeRecord<TABLE>>(0) else {
        drop_code(state.code_id);
        return 0;
    };
    let record: *mut CodeRecord<TABLE> = entry.as_mut_ptr();
    let line = state.code.wrapping_add(u64::from(interpreter.code_line));
    // SAFETY: the helper checks the address.
    let first_line = unsafe { bpf_probe_read_user(line as *const u32) }.unwrap_or(0);
    let name = text(state_word(state, interpreter.code_name), interpreter, unsafe {
        // SAFETY: within the reserved record.
        (&raw mut (*record).name_bytes).cast()
    });
    let file = text(state_word(state, 0), interpreter, unsafe {
        // SAFETY: within the reserved record.
        (&raw mut (*record).file_bytes).cast()
    });
    // SAFETY: as above.
    let bytes =
        copy::<TABLE>(unsafe { (&raw mut (*record).table).cast() }, table.wrapping_add(TABLE_BYTES as u64), length);
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: as above.
    unsafe {
        (*record).header = RecordHeader::new(RecordKind::Code, tgid);
        (*record).code_id = state.code_id;
        (*record).first_line = first_line;
        (*record).table_bytes = bytes as u16;
        (*record).line_table = interpreter.line_table;
        (*record).reserved = 0;
        (*record).table_address = table.wrapping_add(TABLE_BYTES as u64);
        (*record).table_length = length;
        (*record).name = name;
        (*record).file = file;
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    count(Counter::Events);
    0
}

/// Copies a text object.
#[inline(always)]
fn text(object: u64, interpreter: &Interpreter, target: *mut u8) -> CodeText {
    let characters = user_word(object.wrapping_add(TEXT_LENGTH as u64)).unwrap_or(0);
    // SAFETY: the helper checks the address.
    let state = unsafe { bpf_probe_read_user(object.wrapping_add(TEXT_STATE as u64) as *const u32) }.unwrap_or(0);
    let start = u64::from(if is_ascii(state) { interpreter.text_ascii } else { interpreter.text_wide });
    // Characters of 1, 2 or 4 bytes.
    let length = characters.wrapping_mul(u64::from(state >> 2 & 7));
    // The end of a path matters most.
    let skipped = if length > CODE_NAME_BYTES as u64 { length - CODE_NAME_BYTES as u64 } else { 0 };
    let bytes = copy::<CODE_NAME_BYTES>(target, object.wrapping_add(start).wrapping_add(skipped), length);
    CodeText { characters, state, bytes }
}

/// The bits of `PyASCIIObject.state`: interned 2, kind 3, compact, ascii.
#[inline(always)]
fn is_ascii(state: u32) -> bool {
    state >> 6 & 1 != 0
}

/// Copies up to `MAX` bytes. Returns the number of copied ones.
#[inline(always)]
pub(crate) fn copy<const MAX: usize>(target: *mut u8, from: u64, length: u64) -> u32 {
    let bytes = bounded::<MAX>(length);
    if bytes > MAX as u64 {
        return 0;
    }
    // SAFETY: the target has `MAX` bytes; the helper checks the source.
    if unsafe { read_user(target.cast(), bytes as u32, from as *const _) } == 0 { bytes as u32 } else { 0 }
}

/// At most `MAX`, as the verifier sees it.
#[inline(always)]
fn bounded<const MAX: usize>(length: u64) -> u64 {
    let bytes = if length > MAX as u64 { MAX as u64 } else { length };
    masked::<0x3fff>(bytes)
}

const _: () = assert!(INTERPRETED_CODE_BYTES_MAX <= 0x3fff && offset_of!(Walk, interpreter) % 8 == 0);
