//! Frames of CRuby: an array of control frames at the end of the current execution context's stack, the innermost first.
//!
//! Instruction sequences of files and of `eval` are freed when they have been executed: so the first stack that contains one sends its
//! names ([`ruby_code`]), and frames have their lines.
//!
//! The target controls all of this memory. Reads of wrong addresses fail, and the limit of a stack's frames bounds the array.

use profiler_common::arch::STORAGE_TABLE;
use profiler_common::counter::Counter;
use profiler_common::interpreter::{CODE_NAME_BYTES, CodeKind, CodePlace, INSTRUCTION_UNKNOWN, runtime_index};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::record::{RecordHeader, RecordKind};
use profiler_common::ruby::{
    BODY_INSTRUCTIONS, BODY_LABEL, BODY_TYPE, CONTEXT_FRAME, CONTEXT_STACK, CONTEXT_STACK_WORDS, ENVIRONMENT_METHOD,
    ENVIRONMENT_PREVIOUS, EXECUTES_C, FRAME_BYTES_MAX, FRAME_ENVIRONMENT, FRAME_ISEQ, FRAME_PC, IS_LAST, IS_LOCAL,
    IS_SINGLETON, KIND_C, KIND_MASK, METHOD_DEFINITION, NAMES_OWNERS, OBJECT_MASK, OBJECT_METHOD, OBJECT_VARIABLES,
    OWNER_BYTES, Ruby, RubyCodeRecord, SEQUENCE_BODY, TYPE_ENSURE, TYPE_RESCUE, USES_MUSL, detail, labelled, line,
    method_name, owner, path, text,
};
use profiler_common::step::ReadMemory;

use crate::asm::masked;
use crate::cpython::{WINDOW_BYTES, copy, fill, thread_pointer, word};
use crate::helpers::{BPF_RB_NO_WAKEUP, bpf_get_current_pid_tgid, read_user};
use crate::interpreter::{DONE, END, MAY_LACK_THREAD, NEW_CODE, NEXT};
use crate::layout::{BODY_ROOM, InterpreterWalk, Scratch};
use crate::maps::{EVENTS, RUBIES, SCRATCH, count};
use crate::window::user_word;
use crate::{asm, code};

/// The target's memory.
struct User;

impl ReadMemory for User {
    #[inline(always)]
    fn read_u64(&self, address: u64) -> Option<u64> {
        user_word(address)
    }
}

/// The beginning of a body, which was read at once, and the target's memory elsewhere.
struct Body<'a> {
    words: &'a [u64; BODY_ROOM],
    start: u64,
}

impl ReadMemory for Body<'_> {
    #[inline(always)]
    fn read_u64(&self, address: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.start);
        if offset & 7 != 0 || offset >= BODY_BYTES {
            return user_word(address);
        }
        let index = masked::<{ BODY_ROOM as u64 - 1 }>(offset / 8);
        // SAFETY: within the array, whose length is a power of two.
        Some(unsafe { *self.words.as_ptr().add(index as usize) })
    }
}

/// Up to the end of the table of lines, in all versions.
const BODY_BYTES: u64 = 152;

/// Adds a frame. Returns [`DONE`] after the last one of this call of the loop, and [`END`] without adding one if there is none; and
/// [`NEW_CODE`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn ruby_step(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return END;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let depth = walk.depth;
    let state = &mut walk.interpreter;
    let Some(ruby) = RUBIES.get(runtime_index(state.number)) else {
        return END;
    };
    if state.has_begun != 1 {
        let may_lack_thread = state.has_begun == MAY_LACK_THREAD;
        state.has_begun = 1;
        if !begin(state, ruby) {
            state.frame = 0;
            if !may_lack_thread {
                count(Counter::InterpreterNoThread);
            }
        }
    }
    let frame = state.frame;
    if frame == 0 || frame >= state.end || depth >= STACK_FRAMES_MAX as u64 {
        return END;
    }
    let flags = if read_frame(state, ruby, frame) { user_word(word(state, FRAME_ENVIRONMENT as u16)) } else { None };
    let Some(flags) = flags else {
        count(Counter::InterpreterUnreadable);
        state.frame = 0;
        return END;
    };
    state.frame = frame.wrapping_add(u64::from(ruby.frame_bytes));
    let (pc, sequence) = (word(state, FRAME_PC as u16), word(state, FRAME_ISEQ as u16));
    let is_new = if sequence == 0 {
        flags & KIND_MASK == KIND_C && add_method(scratch)
    } else {
        pc != 0 && flags & EXECUTES_C == 0 && add_sequence(area, scratch, ruby, pc, sequence)
    };
    (if flags & IS_LAST != 0 { DONE } else { NEXT }) | if is_new { NEW_CODE } else { 0 }
}

/// Sets the innermost frame of the current thread. Returns false if there is none.
#[inline(always)]
fn begin(state: &mut InterpreterWalk, ruby: &Ruby) -> bool {
    state.skip = 0;
    let find = || {
        let context = user_word(context_pointer(ruby)?)?;
        let stack = user_word(context.wrapping_add(CONTEXT_STACK))?;
        let words = user_word(context.wrapping_add(CONTEXT_STACK_WORDS))?;
        let frame = user_word(context.wrapping_add(CONTEXT_FRAME))?;
        // The outermost frame executes nothing (`th_init` in `vm.c`).
        let end = stack.wrapping_add(words.wrapping_mul(8)).wrapping_sub(u64::from(ruby.frame_bytes));
        Some((frame, end))
    };
    let Some((frame, end)) = find() else {
        return false;
    };
    state.frame = frame;
    state.end = end;
    frame != 0
}

/// Address of the pointer to the execution context of the current thread.
#[inline(always)]
fn context_pointer(ruby: &Ruby) -> Option<u64> {
    let thread = thread_pointer()?;
    if ruby.tls_module == 0 {
        return Some(thread.wrapping_add(ruby.tls_offset));
    }
    // Entries of glibc have a second word.
    let (offset, shift) = if ruby.flags & USES_MUSL != 0 { (STORAGE_TABLE.musl, 3) } else { (STORAGE_TABLE.glibc, 4) };
    let table = user_word(thread.wrapping_add(offset))?;
    // Storage that the thread has not used yet is at no address.
    Some(user_word(table.wrapping_add(ruby.tls_module << shift))?.wrapping_add(ruby.tls_offset))
}

/// Makes the frame the current one. Those of its callers follow it up to the end of the stack.
#[inline(always)]
fn read_frame(state: &mut InterpreterWalk, ruby: &Ruby, frame: u64) -> bool {
    let bytes = u64::from(ruby.frame_bytes);
    let room = state.end.wrapping_sub(frame);
    if frame & 7 != 0 || bytes > u64::from(FRAME_BYTES_MAX) || room < bytes {
        return false;
    }
    let offset = frame.wrapping_sub(state.window_start);
    if offset > WINDOW_BYTES || offset + bytes > state.window_bytes {
        let wanted = if room > WINDOW_BYTES { WINDOW_BYTES } else { room };
        if !fill(state, frame, wanted & !7) {
            return false;
        }
    }
    state.at = frame.wrapping_sub(state.window_start) / 8;
    true
}

/// Adds the current frame, of a method in C. Returns whether it is new.
#[inline(always)]
fn add_method(scratch: *mut Scratch) -> bool {
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.interpreter };
    let environment = word(state, FRAME_ENVIRONMENT as u16);
    let method = user_word(environment.wrapping_sub(ENVIRONMENT_METHOD)).unwrap_or(0);
    let definition = user_word(method.wrapping_add(METHOD_DEFINITION)).unwrap_or(0);
    state.code = 0;
    state.method = method;
    let place = CodePlace { address: method, refers_to: definition, detail: 0 };
    code::add_only(scratch, CodeKind::Ruby, place, 0, INSTRUCTION_UNKNOWN)
}

/// Adds the current frame, of an instruction sequence. Returns whether that is new.
#[inline(always)]
fn add_sequence(area: u32, scratch: *mut Scratch, ruby: &Ruby, pc: u64, sequence: u64) -> bool {
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.interpreter };
    let body = user_word(sequence.wrapping_add(SEQUENCE_BODY)).unwrap_or(0);
    // SAFETY: less than the array; the helper checks the source.
    if unsafe { read_user((&raw mut state.body).cast(), BODY_BYTES as u32, body as *const _) } != 0 {
        asm::zero(&mut state.body);
    }
    let instructions = state.body[(BODY_INSTRUCTIONS / 8) as usize];
    let mut method = 0;
    state.method = 0;
    if ruby.flags & NAMES_OWNERS != 0 {
        let is_skipped = state.skip != 0;
        let kind = state.body[(BODY_TYPE / 8) as usize] as u32;
        state.skip = if kind == TYPE_RESCUE || kind == TYPE_ENSURE { 1 } else { 0 };
        if is_skipped {
            return false;
        }
        ruby_method(area);
        method = state.method;
    }
    // The address is behind the current instruction.
    let words = pc.wrapping_sub(instructions) / 8;
    let position = if words == 0 { 0 } else { words - 1 };
    let instruction = match line(&Body { words: &state.body, start: body }, ruby, body, position) {
        Some(line) if line < INSTRUCTION_UNKNOWN => line,
        _ => INSTRUCTION_UNKNOWN,
    };
    state.code = body;
    let place = CodePlace { address: sequence, refers_to: method, detail: detail(body, instructions) };
    code::add_only(scratch, CodeKind::Ruby, place, 0, instruction)
}

/// Sends the current frame's instruction sequence or method in C.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn ruby_code(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &(*scratch).walk };
    let Some(ruby) = RUBIES.get(runtime_index(walk.interpreter.number)) else {
        return 0;
    };
    if !code::may_send(walk.code.id) {
        return 0;
    }
    let Some(mut entry) = EVENTS.reserve::<RubyCodeRecord>(0) else {
        code::drop_code(walk.code.id);
        return 0;
    };
    let record: *mut RubyCodeRecord = entry.as_mut_ptr();
    let body = walk.interpreter.code;
    let label = if body == 0 {
        method_name(&User, ruby.names, walk.interpreter.method)
    } else if ruby.flags & NAMES_OWNERS != 0 {
        user_word(labelled(&User, body).unwrap_or(body).wrapping_add(BODY_LABEL))
    } else {
        user_word(body.wrapping_add(BODY_LABEL))
    };
    let label = label.unwrap_or(0);
    // SAFETY: within the reserved record.
    let label_bytes = copy_text::<CODE_NAME_BYTES>(ruby, label, unsafe { (&raw mut (*record).label).cast() });
    let file = if body == 0 { 0 } else { path(&User, body).unwrap_or(0) };
    // SAFETY: as above.
    let path_bytes = copy_text::<CODE_NAME_BYTES>(ruby, file, unsafe { (&raw mut (*record).path).cast() });
    let has_owner = ruby.flags & NAMES_OWNERS != 0 && walk.interpreter.method != 0;
    let owner = if has_owner { owner(&User, walk.interpreter.method) } else { None };
    let (owner, is_singleton) = owner.unwrap_or((0, false));
    // SAFETY: as above.
    let owner_bytes = copy_text::<OWNER_BYTES>(ruby, owner, unsafe { (&raw mut (*record).owner).cast() });
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: as above.
    unsafe {
        (*record).header = RecordHeader::new(RecordKind::RubyCode, tgid);
        (*record).code_id = walk.code.id;
        (*record).flags = (ruby.flags & NAMES_OWNERS) | if is_singleton { IS_SINGLETON } else { 0 };
        (*record).label_bytes = label_bytes;
        (*record).path_bytes = path_bytes;
        (*record).owner_bytes = owner_bytes;
    }
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    count(Counter::Events);
    0
}

/// Copies a string: the end of a long one, which matters most of a path. Returns the number of copied bytes.
#[inline(always)]
fn copy_text<const MAX: usize>(ruby: &Ruby, string: u64, target: *mut u8) -> u32 {
    let Some((start, length)) = text(&User, ruby.flags, string) else {
        return 0;
    };
    let skipped = if length > MAX as u64 { length - MAX as u64 } else { 0 };
    copy::<MAX>(target, start.wrapping_add(skipped), length)
}

/// Blocks between a frame and that of its method.
const BLOCKS_MAX: usize = 24;

/// Finds the method of the current frame, in its environment or those around it (`rb_vm_frame_method_entry` in `vm_insnhelper.c`).
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn ruby_method(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.interpreter };
    let mut environment = word(state, FRAME_ENVIRONMENT as u16);
    for _ in 0..BLOCKS_MAX {
        let object = user_word(environment.wrapping_sub(ENVIRONMENT_METHOD)).unwrap_or(0);
        let kind = user_word(object).unwrap_or(0) & OBJECT_MASK;
        if kind == OBJECT_METHOD {
            state.method = object;
            return 1;
        }
        let flags = user_word(environment).unwrap_or(IS_LOCAL);
        if flags & IS_LOCAL != 0 {
            if kind == OBJECT_VARIABLES {
                let object = user_word(object.wrapping_add(8)).unwrap_or(0);
                if user_word(object).unwrap_or(0) & OBJECT_MASK == OBJECT_METHOD {
                    state.method = object;
                    return 1;
                }
            }
            return 0;
        }
        environment = user_word(environment.wrapping_sub(ENVIRONMENT_PREVIOUS)).unwrap_or(0) & !3;
    }
    0
}
