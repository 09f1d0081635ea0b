//! Frames of interpreters. Where the walk meets the interpreter loop, the frames of the functions that this call of the loop executes
//! follow.

use profiler_common::interpreter::{Runtime, runtime_index};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;

use crate::cpython::{cpython_code, cpython_cut, cpython_rest, cpython_step};
use crate::layout::InterpreterWalk;
use crate::maps::{INTERPRETERS, PHPS, RUBIES, SCRATCH};
use crate::php::{php_rest, php_step};
use crate::ruby::{ruby_code, ruby_step};
use crate::{asm, config};

/// Initialises the state for a process whose interpreter has this number.
#[inline(always)]
pub(crate) fn start(state: &mut InterpreterWalk, number: u32) {
    state.number = 0;
    if number == 0 {
        return;
    }
    let index = runtime_index(number);
    if Runtime::Cpython.has(number)
        && config::task_thread_pointer_offset() != 0
        && let Some(interpreter) = INTERPRETERS.get(index)
    {
        asm::copy_ranges(&mut state.loops, &interpreter.loops);
    } else if Runtime::Ruby.has(number)
        && config::task_thread_pointer_offset() != 0
        && let Some(ruby) = RUBIES.get(index)
    {
        asm::copy_ranges(&mut state.loops, &ruby.loops);
    } else if Runtime::Php.has(number)
        && let Some(php) = PHPS.get(index)
    {
        asm::copy_ranges(&mut state.loops, &php.loops);
    } else {
        return;
    }
    state.number = number;
    state.has_begun = 0;
    state.window_bytes = 0;
    state.code = NO_CODE;
    state.inner.frame = 0;
}

/// No object has this address: those of objects are even.
const NO_CODE: u64 = 1;

/// Whether the address is in the interpreter loop.
#[inline(always)]
pub(crate) fn is_loop(state: &InterpreterWalk, address: u64) -> bool {
    state.number != 0 && (state.loops[0].contains(address) || state.loops[1].contains(address))
}

/// State before the first frame, if the thread may be none of the interpreter's.
pub(crate) const MAY_LACK_THREAD: u32 = 2;
/// State after frames could not be read.
pub(crate) const IS_UNREADABLE: u32 = 3;

/// Result of a step if this call of the loop has another frame.
pub(crate) const NEXT: u32 = 0;
/// Result after the last one.
pub(crate) const DONE: u32 = 1;
/// Result if the thread has no other frame.
pub(crate) const END: u32 = 2;
/// Flag of a result: the frame's code is new, and must be sent. The loop does it: the stacks of nested BPF functions have 512 bytes in
/// all, before Linux 6.8 each rounded up to 32.
pub(crate) const NEW_CODE: u32 = 1 << 8;

/// Frames that one call of [`interpreter_frames`] or [`outermost_frames`] adds at most. These calls repeat in a second loop: the
/// verifier adds the bounds of both, while at run time they multiply.
pub(crate) const BATCH: usize = 32;
const BATCHES: usize = STACK_FRAMES_MAX / BATCH;

const _: () = assert!(STACK_FRAMES_MAX.is_multiple_of(BATCH));

/// Adds the frames of one call of the interpreter loop.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn frames_of_call(area: u32) -> u32 {
    for _ in 0..BATCHES {
        if interpreter_frames(area) != NEXT {
            break;
        }
    }
    0
}

/// Adds the next frames of one call of the interpreter loop. Returns [`NEXT`] if it may have more, else [`DONE`].
///
/// Called beside the function that unwinds a native frame, not by it: the stacks of nested BPF functions have 512 bytes in all.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn interpreter_frames(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr(area) else {
        return DONE;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let number = unsafe { (*scratch).walk.interpreter.number };
    if Runtime::Cpython.has(number) {
        frames_until(area, |result| result != NEXT, |area| cpython_step(area), |area| cpython_code(area))
    } else if Runtime::Ruby.has(number) {
        frames_until(area, |result| result != NEXT, |area| ruby_step(area), |area| ruby_code(area))
    } else if Runtime::Php.has(number) {
        frames_until(area, |result| result != NEXT, |area| php_step(area), |_| 0)
    } else {
        DONE
    }
}

/// Adds frames until a step has a last result, for which it returns [`DONE`], or until a batch is full, for which it returns [`NEXT`].
#[inline(always)]
pub(crate) fn frames_until(
    area: u32,
    is_last: impl Fn(u32) -> bool,
    step: impl Fn(u32) -> u32,
    send: impl Fn(u32) -> u32,
) -> u32 {
    for _ in 0..BATCH {
        let result = step(area);
        if result & NEW_CODE != 0 {
            send(area);
        }
        if is_last(result & !NEW_CODE) {
            return DONE;
        }
    }
    NEXT
}

/// Flag of a result of [`outermost_frames`]: there may be more frames.
pub(crate) const MORE: u32 = 1 << 8;

/// Adds the frames that no call of the loop in this stack executes: those of runtimes that need no native frames, also of cut stacks.
/// Takes the end of the walk, a [`StackEnd`] plus 1, and returns that of the stack. The process has an
/// interpreter.
#[inline(always)]
pub(crate) fn frames_at_end(area: u32, end: u32) -> u32 {
    let mut end = cpython_cut(area, end);
    for _ in 0..BATCHES {
        let result = outermost_frames(area, end);
        end = result & !MORE;
        if result & MORE == 0 {
            break;
        }
    }
    end
}

/// Adds the next frames at the end of a walk. Takes and returns its end, with [`MORE`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn outermost_frames(area: u32, end: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return end;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.interpreter };
    if Runtime::Ruby.has(state.number) {
        // Threads of other libraries have no execution context.
        if state.has_begun == 0 {
            state.has_begun = MAY_LACK_THREAD;
        }
        // A call of the loop is not the last one.
        if frames_until(area, |result| result == END, |area| ruby_step(area), |area| ruby_code(area)) == NEXT {
            return end | MORE;
        }
    } else if Runtime::Php.has(state.number) {
        return php_rest(area, end);
    } else if end == StackEnd::NativeMissing as u32 + 1 {
        return cpython_rest(area);
    }
    end
}
