//! The frames of the stack that is being captured.

use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackHasher;

use crate::asm::masked;
use crate::layout::{Scratch, Walk};

/// Adds a frame to the stack of a claimed area.
#[inline(always)]
pub(crate) fn add(scratch: *mut Scratch, frame: u64) {
    // SAFETY: this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    write(scratch, walk.depth as usize, frame);
    walk.depth += 1;
    walk.hash_before = walk.hash;
    let mut hasher = StackHasher::resume(walk.hash);
    hasher.add(frame);
    walk.hash = hasher.state();
}

/// Makes the stack's id depend on a word that is no frame.
#[inline(always)]
pub(crate) fn distinguish(walk: &mut Walk, word: u64) {
    let mut hasher = StackHasher::resume(walk.hash);
    hasher.add(word);
    walk.hash = hasher.state();
}

/// Removes the frame that was added last.
#[inline(always)]
pub(crate) fn remove_last(scratch: *mut Scratch) {
    // SAFETY: this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    if walk.depth != 0 {
        walk.depth -= 1;
        walk.hash = walk.hash_before;
    }
}

#[inline(always)]
fn write(scratch: *mut Scratch, index: usize, address: u64) {
    if index < STACK_FRAMES_MAX {
        let index = masked::<{ STACK_FRAMES_MAX as u64 - 1 }>(index as u64);
        // SAFETY: within the array, whose length is a power of two, in an area that this program has claimed.
        unsafe { (&raw mut (*scratch).record.frames).cast::<u64>().add(index as usize).write(address) };
    }
}
