//! Frames of PHP 8. Where the walk meets the interpreter loop, `execute_ex`, the frames that this call of the loop executes follow:
//! functions in PHP up to the one that C code has called, and functions in C that they call. What is left at the end of the walk
//! follows there: frames outside of a fiber, and those of code that opcache has compiled.
//!
//! Functions are freed at the end of a request, and those of closures before. So the first stack that contains a function sends its
//! names ([`php_code`]). A function is identified by the hashes that PHP keeps of these names, and by its first line: a script that
//! is compiled for each request has the same functions each time.
//!
//! The target controls all of this memory. Reads of wrong addresses fail, lengths are bounded, and the limit of a stack's frames
//! bounds cycles.

use profiler_common::counter::Counter;
use profiler_common::interpreter::{CodeId, CodeKind, INSTRUCTION_UNKNOWN, InterpretedFrame, Runtime, runtime_index};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::php::{
    CLASS_NAME, FRAME_CALLER, FRAME_FLAGS, FRAME_FUNCTION, FRAME_INSTRUCTION, FRAME_OBJECT, FRAMELESS_FIRST,
    FRAMELESS_LAST, FUNCTION_CLASS, FUNCTION_COMMON_WORDS, FUNCTION_KIND, FUNCTION_NAME, FUNCTION_WORDS,
    GENERATOR_DELEGATE, GENERATOR_FRAME, GENERATOR_PLACEHOLDER, GENERATORS_MAX, INSTRUCTION_EXTENDED, INSTRUCTION_LINE,
    IS_INTERNAL, IS_TOP, PHP_TEXT_BYTES, Php, PhpCodeRecord, PhpText, TEXT_BYTES, TEXT_HASH, TEXT_LENGTH,
};
use profiler_common::record::{RecordHeader, RecordKind};
use profiler_common::stack::{StackEnd, StackHasher};

use crate::asm::masked;
use crate::code::{drop_code, may_send};
use crate::helpers::{BPF_RB_NO_WAKEUP, bpf_get_current_pid_tgid, bpf_probe_read_user, read_user};
use crate::interpreter::{BATCH, DONE, MORE, NEXT};
use crate::layout::{FUNCTION_ROOM, InterpreterWalk, PhpWalk, TEXTS, Walk};
use crate::maps::{EVENTS, PHPS, SCRATCH, count};
use crate::seen::is_new;
use crate::walk::find_mapping;
use crate::window::user_word;
use crate::{asm, frames};

/// Whether the process has PHP. Then walks that end in code without unwind information are [finished](php_rest) here, and that code has
/// no frame: it is what opcache has compiled, or the outermost function of a fiber (`make_fcontext`).
#[inline(always)]
pub(crate) fn is_in(state: &InterpreterWalk) -> bool {
    state.number != 0 && Runtime::Php.has(state.number)
}

/// Initialises the state for a process that has PHP.
#[inline(always)]
pub(crate) fn start(walk: &mut Walk) {
    if !is_in(&walk.interpreter) {
        return;
    }
    let state = &mut walk.php;
    asm::store(&mut state.has_begun, 0);
    asm::store(&mut state.frame, 0);
    asm::store(&mut state.generator, 0);
}

/// Adds a frame. Returns [`DONE`] after the last one of this call of the loop.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn php_step(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return DONE;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let depth = walk.depth;
    let Some(php) = PHPS.get(runtime_index(walk.interpreter.number)) else {
        return DONE;
    };
    let state = &mut walk.php;
    if state.has_begun == 0 {
        state.has_begun = 1;
        match user_word(php.current) {
            Some(frame) => state.frame = frame,
            None => count(Counter::InterpreterNoThread),
        }
    }
    if state.frame == 0 || depth >= STACK_FRAMES_MAX as u64 {
        return DONE;
    }
    if state.generator != 0 && php_delegating(area) == 0 {
        state.generator = 0;
        state.frame = state.outside;
        return NEXT;
    }
    let frame = state.frame;
    // SAFETY: as long as the array; the helper checks the source.
    if unsafe { read_user((&raw mut state.words).cast(), size_of_val(&state.words) as u32, frame as *const _) } != 0 {
        count(Counter::InterpreterUnreadable);
        asm::store(&mut state.frame, 0);
        asm::store(&mut state.generator, 0);
        return DONE;
    }
    let (object, caller) = (state.words[FRAME_OBJECT], state.words[FRAME_CALLER]);
    let is_top = state.words[FRAME_FLAGS] & IS_TOP != 0;
    if state.words[FRAME_FUNCTION] == 0 {
        // PHP inserts frames: for generators that delegate, and to hide the instruction of another frame.
        let is_placeholder = frame == object.wrapping_add(GENERATOR_PLACEHOLDER) && state.generator == 0;
        state.outside = caller;
        asm::store(&mut state.delegate, 0);
        state.generator = if is_placeholder { object } else { 0 };
        state.frame = if is_placeholder { frame } else { caller };
        return NEXT;
    }
    // Generators that delegate are not executed.
    let is_executed = state.generator == 0;
    if is_executed {
        state.frame = caller;
    } else if state.delegate == state.generator {
        state.generator = 0;
        state.frame = state.outside;
    }
    let is_internal = add_frame(area, state, php);
    if is_top && is_executed && !is_internal { DONE } else { NEXT }
}

/// Adds the next frames that are left at the end of the walk, a [`StackEnd`] plus 1. Returns that of the stack, with [`MORE`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn php_rest(area: u32, end: u32) -> u32 {
    const MISSING_MODULE: u32 = StackEnd::MissingModule as u32 + 1;
    const NO_ROW: u32 = StackEnd::NoRow as u32 + 1;
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return end;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    // The agent continues walks that end outside of the mappings that it knows.
    let address = walk.registers().lookup_address();
    if end == MISSING_MODULE && find_mapping(walk.mapping_first, walk.mapping_count, address).is_none() {
        return end;
    }
    let thread = bpf_get_current_pid_tgid();
    // PHP is mostly on the first thread; others may allocate meanwhile.
    if walk.php.has_begun == 0 && thread >> 32 != thread & 0xffff_ffff {
        return end;
    }
    let depth = walk.depth;
    let mut more = MORE;
    for _ in 0..BATCH {
        php_step(area);
        // SAFETY: as above.
        if unsafe { (*scratch).walk.php.frame == 0 || (*scratch).walk.depth >= STACK_FRAMES_MAX as u64 } {
            more = 0;
            break;
        }
    }
    // SAFETY: as above.
    let has_added = unsafe { (*scratch).walk.depth != depth };
    (if end == NO_ROW && has_added { StackEnd::Complete as u32 + 1 } else { end }) | more
}

/// Makes the next generator that delegates, from the inside outwards, the current one. Returns 0 if there is none.
///
/// They are linked from the outside inwards.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn php_delegating(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.php };
    let mut generator = state.generator;
    for _ in 0..GENERATORS_MAX {
        let delegate = user_word(generator.wrapping_add(GENERATOR_DELEGATE)).unwrap_or(0);
        if delegate == 0 {
            return 0;
        }
        let is_next = if state.delegate == 0 {
            // The innermost one is executed.
            user_word(delegate.wrapping_add(GENERATOR_DELEGATE)).unwrap_or(0) == 0
        } else {
            delegate == state.delegate
        };
        if is_next {
            state.delegate = generator;
            state.frame = user_word(generator.wrapping_add(GENERATOR_FRAME)).unwrap_or(0);
            return (state.frame != 0) as u32;
        }
        generator = delegate;
    }
    0
}

/// Adds a frame, whose words have been read. Returns whether its function is in C.
#[inline(always)]
fn add_frame(area: u32, state: &mut PhpWalk, php: &Php) -> bool {
    let function = state.words[FRAME_FUNCTION];
    // Of a function in C, what follows the common words is read in vain: two reads take longer.
    if !read_function::<FUNCTION_WORDS>(state, function) {
        asm::zero(&mut state.function);
        read_function::<FUNCTION_COMMON_WORDS>(state, function);
    }
    let is_internal = state.function[FUNCTION_KIND] & IS_INTERNAL != 0;
    if is_internal {
        add_internal(area, function);
        return is_internal;
    }
    let instruction = instruction(state, php);
    let line = user_word(instruction.wrapping_add(INSTRUCTION_LINE)).unwrap_or(0);
    let opcode = (line >> 32) as u8;
    if php.frameless != 0 && opcode >= FRAMELESS_FIRST && opcode <= FRAMELESS_LAST {
        // SAFETY: the helper checks the address.
        let number = unsafe { bpf_probe_read_user(instruction.wrapping_add(INSTRUCTION_EXTENDED) as *const u32) };
        let functions = user_word(php.frameless).unwrap_or(0);
        let entry = functions.wrapping_add(u64::from(number.unwrap_or(0)) * 8);
        add_internal(area, user_word(entry).unwrap_or(0));
    }
    state.texts[NAME] = state.function[FUNCTION_NAME];
    state.texts[CLASS] = class_name(state.function[FUNCTION_CLASS]);
    state.texts[FILE] = word(state, php.function_file);
    add(area, integer(state, php.function_line), line as u32);
    is_internal
}

#[inline(always)]
fn read_function<const WORDS: usize>(state: &mut PhpWalk, function: u64) -> bool {
    const { assert!(WORDS <= FUNCTION_ROOM) };
    // SAFETY: at most the array; the helper checks the source.
    unsafe { read_user((&raw mut state.function).cast(), WORDS as u32 * 8, function as *const _) == 0 }
}

#[inline(always)]
fn add_internal(area: u32, function: u64) {
    if php_internal(area, function) != 0 {
        add(area, 0, 0);
    }
}

/// Adds a frame of the function with the current texts. `line` is 0 if unknown.
#[inline(always)]
fn add(area: u32, first_line: u32, line: u32) {
    if php_add(area, first_line, line) != 0 {
        php_code(area);
    }
}

/// Finds the texts of a function that is in C. Returns 0 if it has none.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn php_internal(area: u32, function: u64) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.php };
    let name = user_word(function.wrapping_add(FUNCTION_NAME as u64 * 8)).unwrap_or(0);
    if name == 0 {
        // The outermost one of a fiber.
        return 0;
    }
    state.texts[NAME] = name;
    state.texts[CLASS] = class_name(user_word(function.wrapping_add(FUNCTION_CLASS as u64 * 8)).unwrap_or(0));
    state.texts[FILE] = 0;
    1
}

#[inline(always)]
fn class_name(class: u64) -> u64 {
    if class == 0 { 0 } else { user_word(class.wrapping_add(CLASS_NAME)).unwrap_or(0) }
}

/// As [`add`], without sending the function. Returns 1 if that is new.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn php_add(area: u32, first_line: u32, line: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let (state, seed) = unsafe { (&mut (*scratch).walk.php, (*scratch).walk.seed) };
    let mut hasher = StackHasher::resume(seed);
    hasher.add(u64::from(first_line));
    for index in 0..TEXTS {
        hasher.add(identity(state.texts[index]));
    }
    let id = hasher.finish();
    state.code_id = id;
    let instruction = if line == 0 || line > INSTRUCTION_UNKNOWN { INSTRUCTION_UNKNOWN } else { line };
    let word = InterpretedFrame { kind: CodeKind::Php, code: CodeId(id).in_frames(), instruction };
    frames::add(scratch, word.to_word());
    is_new(id) as u32
}

// Indices of texts.
const NAME: usize = 0;
const CLASS: usize = 1;
const FILE: usize = 2;

/// What distinguishes a text from others.
#[inline(always)]
fn identity(text: u64) -> u64 {
    if text == 0 {
        return 0;
    }
    match user_word(text.wrapping_add(TEXT_HASH)) {
        None | Some(0) => text,
        Some(hash) => hash,
    }
}

/// The instruction that is executed. Those that allocate store where they are, because they can fail (`memory_limit`).
#[inline(always)]
fn instruction(state: &PhpWalk, php: &Php) -> u64 {
    let stored = state.words[FRAME_INSTRUCTION];
    if php.globals.contains(stored) {
        // `EG(exception_op)`, which follows `EG(opline_before_exception)`.
        return user_word(stored.wrapping_sub(8)).unwrap_or(0);
    }
    stored
}

/// A word of the current function.
#[inline(always)]
fn word(state: &PhpWalk, offset: u16) -> u64 {
    let index = masked::<{ FUNCTION_ROOM as u64 - 1 }>(u64::from(offset) / 8);
    // SAFETY: within the array, whose length is a power of two.
    unsafe { *state.function.as_ptr().add(index as usize) }
}

/// An integer of 4 bytes.
#[inline(always)]
fn integer(state: &PhpWalk, offset: u16) -> u32 {
    (word(state, offset) >> (u64::from(offset & 4) * 8)) as u32
}

/// Sends the function of the current frame.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn php_code(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &(*scratch).walk.php };
    if !may_send(state.code_id) {
        return 0;
    }
    let Some(mut entry) = EVENTS.reserve::<PhpCodeRecord>(0) else {
        drop_code(state.code_id);
        return 0;
    };
    let record: *mut PhpCodeRecord = entry.as_mut_ptr();
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // Each text is written at once: nested BPF functions have 512 bytes of stack in all.
    // SAFETY: within the reserved record.
    unsafe {
        (*record).header = RecordHeader::new(RecordKind::PhpCode, tgid);
        (*record).code_id = state.code_id;
        text(state.texts[NAME], &raw mut (*record).name, (&raw mut (*record).name_bytes).cast(), false);
        text(state.texts[CLASS], &raw mut (*record).class, (&raw mut (*record).class_bytes).cast(), false);
        text(state.texts[FILE], &raw mut (*record).file, (&raw mut (*record).file_bytes).cast(), true);
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    count(Counter::Events);
    0
}

/// Copies the beginning or the end of a text.
///
/// # Safety
///
/// `head` and `target`, of [`PHP_TEXT_BYTES`], must be in a reserved record.
#[inline(always)]
unsafe fn text(text: u64, head: *mut PhpText, target: *mut u8, is_path: bool) {
    if text == 0 {
        // SAFETY: as the caller promises.
        unsafe { head.write(PhpText { length: 0, bytes: 0, is_present: 0 }) };
        return;
    }
    const MAX: u64 = PHP_TEXT_BYTES as u64;
    let length = user_word(text.wrapping_add(TEXT_LENGTH)).unwrap_or(0);
    let skipped = if is_path && length > MAX { length - MAX } else { 0 };
    let bytes = masked::<{ 2 * MAX - 1 }>(if length > MAX { MAX } else { length });
    let from = text.wrapping_add(TEXT_BYTES).wrapping_add(skipped);
    // SAFETY: the target has so many bytes; the helper checks the source.
    let is_copied = bytes <= MAX && unsafe { read_user(target.cast(), bytes as u32, from as *const _) } == 0;
    // SAFETY: as the caller promises.
    unsafe { head.write(PhpText { length, bytes: if is_copied { bytes as u32 } else { 0 }, is_present: 1 }) };
}

const _: () =
    assert!(PHP_TEXT_BYTES.is_power_of_two() && FUNCTION_ROOM.is_power_of_two() && FUNCTION_WORDS <= FUNCTION_ROOM);
