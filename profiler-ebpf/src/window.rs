//! The target's stack, read through a window: a copied range that follows the walk outwards. Reading word by word takes a helper
//! call each, which is most of the cost of unwinding. A copy must not reach into an unmapped page, because
//! `bpf_probe_read_user` reads all or nothing; so it ends at a page boundary.

use core::mem::size_of;

use profiler_common::step::ReadMemory;

use crate::asm::masked;
use crate::helpers::{bpf_probe_read_user, read_user};
use crate::layout::{Scratch, WINDOW_WORDS};
use crate::maps::SCRATCH;

const PAGE_BYTES: u64 = 4096;

/// Length of the first window. Most stacks are shallow, and copying a page takes as long as unwinding several frames.
const FIRST_BYTES: u64 = 1024;

/// A window shorter than this is extended into the next page.
const SHORT_BYTES: u64 = 512;

/// Bytes of the window below the requested word: saved registers of a frame are sometimes read downwards.
const BELOW_BYTES: u64 = 64;

const WORD: u64 = size_of::<u64>() as u64;

/// The window of a claimed area.
pub(crate) struct Window {
    scratch: *mut Scratch,
    area: u32,
}

impl Window {
    #[inline(always)]
    pub(crate) fn of(scratch: *mut Scratch, area: u32) -> Self {
        Self { scratch, area }
    }

    #[inline(always)]
    pub(crate) fn read(&self, address: u64) -> Option<u64> {
        if address & (WORD - 1) != 0 {
            return unaligned(address);
        }
        if let Some(word) = self.buffered(address) {
            return Some(word);
        }
        fill_window(self.area, address);
        self.buffered(address)
    }

    #[inline(always)]
    fn buffered(&self, address: u64) -> Option<u64> {
        // SAFETY: this program has claimed the area.
        let scratch = unsafe { &*self.scratch };
        let index = address.wrapping_sub(scratch.window_start) / WORD;
        if index >= scratch.window_words {
            return None;
        }
        let index = masked::<{ WINDOW_WORDS as u64 - 1 }>(index);
        // SAFETY: within the array, whose length is a power of two.
        Some(unsafe { *scratch.window.as_ptr().add(index as usize) })
    }
}

impl ReadMemory for Window {
    #[inline(always)]
    fn read_u64(&self, address: u64) -> Option<u64> {
        self.read(address)
    }
}

/// Moves the window to `address`, which is aligned. If that cannot be read, the window is empty.
///
/// A global function, so that the verifier checks it once, not at each of its many calls.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn fill_window(area: u32, address: u64) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 0;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let scratch = unsafe { &mut *scratch };
    let page = address & !(PAGE_BYTES - 1);
    let start = if address - page > BELOW_BYTES { address - BELOW_BYTES } else { page };
    let left = PAGE_BYTES - (start & (PAGE_BYTES - 1));
    let wanted = if scratch.window_words == 0 { FIRST_BYTES } else { PAGE_BYTES };
    let length = if left < wanted { left } else { wanted };
    scratch.window_start = start;
    scratch.window_words = 0;
    let window = scratch.window.as_mut_ptr();
    // SAFETY: a page or less into an array of two pages; the helper checks the address.
    if unsafe { read_user(window.cast(), length as u32, start as *const _) } != 0 {
        return 0;
    }
    scratch.window_words = length / WORD;
    if length < SHORT_BYTES {
        let next = start.wrapping_add(length);
        // SAFETY: starts less than a page in, so a page fits; the helper checks the address.
        let read =
            unsafe { read_user(window.cast::<u8>().add(length as usize).cast(), wanted as u32, next as *const _) };
        if read == 0 {
            scratch.window_words += wanted / WORD;
        }
    }
    0
}

/// Reads a word that is not on the stack.
#[inline(always)]
pub(crate) fn user_word(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(address as *const u64) }.ok()
}

/// Reads an unaligned word. Compilers do not create such frames, but a target may.
#[inline(never)]
fn unaligned(address: u64) -> Option<u64> {
    user_word(address)
}
