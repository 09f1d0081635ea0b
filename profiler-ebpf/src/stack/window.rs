//! Reads the target's stack through a window: a copied stretch that follows the walk outwards.
//!
//! Reading word by word costs a helper call each, which is most of what unwinding costs. A copy must not reach into a page
//! that is not there, because `bpf_probe_read_user` reads all or nothing; so it ends with a page.

use core::mem::size_of;

use aya_ebpf::helpers::generated::bpf_probe_read_user;
use profiler_common::step::ReadMemory;

use crate::bounds::masked;
use crate::scratch::{Scratch, WINDOW_WORDS};

const PAGE_BYTES: u64 = 4096;

/// A stretch shorter than this is lengthened by the next page.
const SHORT_BYTES: u64 = 1024;

/// Words of the stretch that lie below the one asked for: a frame's saved registers are read downwards at times.
const BELOW_BYTES: u64 = 64;

const _: () = assert!(WINDOW_WORDS.is_power_of_two());

const WORD: u64 = size_of::<u64>() as u64;

/// The window of a claimed area.
pub(super) struct Window(pub(super) *mut Scratch);

/// Forgets the last walk's stretch.
#[inline(always)]
pub(super) fn clear(scratch: *mut Scratch) {
    // SAFETY: the area is claimed by this program.
    unsafe { (*scratch).window_words = 0 };
}

impl Window {
    /// The word at `address`.
    #[inline(always)]
    pub(super) fn read(&self, address: u64) -> Option<u64> {
        if address & (WORD - 1) != 0 {
            return unaligned(address);
        }
        if let Some(word) = self.held(address) {
            return Some(word);
        }
        fill(self.0, address);
        self.held(address)
    }

    #[inline(always)]
    fn held(&self, address: u64) -> Option<u64> {
        // SAFETY: the area is claimed by this program.
        let scratch = unsafe { &*self.0 };
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

/// Moves the window to `address`, which is aligned.
#[inline(never)]
fn fill(scratch: *mut Scratch, address: u64) {
    // SAFETY: the area is claimed by this program.
    let scratch = unsafe { &mut *scratch };
    let page = address & !(PAGE_BYTES - 1);
    let start = if address - page > BELOW_BYTES { address - BELOW_BYTES } else { page };
    let length = PAGE_BYTES - (start & (PAGE_BYTES - 1));
    scratch.window_start = start;
    scratch.window_words = 0;
    let window = scratch.window.as_mut_ptr();
    // SAFETY: a page or less into an array of two pages; the helper checks the address.
    if unsafe { bpf_probe_read_user(window.cast(), length as u32, start as *const _) } != 0 {
        return;
    }
    scratch.window_words = length / WORD;
    if length < SHORT_BYTES {
        let next = start.wrapping_add(length);
        // SAFETY: less than a page in, so a page fits; the helper checks the address.
        let read = unsafe {
            bpf_probe_read_user(window.cast::<u8>().add(length as usize).cast(), PAGE_BYTES as u32, next as *const _)
        };
        if read == 0 {
            scratch.window_words += PAGE_BYTES / WORD;
        }
    }
}

/// A word across the grid of the window: no compiler puts one there, but a target may.
#[inline(never)]
fn unaligned(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { aya_ebpf::helpers::bpf_probe_read_user(address as *const u64) }.ok()
}
