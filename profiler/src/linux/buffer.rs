//! Large pieces of this process's own memory, made ready before they are needed.

#![expect(unsafe_code, reason = "maps memory")]

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed memory, mapped by itself and given back when dropped. It is in no core dump, because what is copied there is not this
/// process's own.
#[derive(Debug)]
pub(crate) struct Buffer {
    start: NonNull<u8>,
    length: usize,
}

impl Buffer {
    /// Of this many bytes, which take memory only when they are written, or [prepared](Self::prepare).
    ///
    /// # Errors
    ///
    /// `ENOMEM` where so much address space is not to be had.
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mapped_length = length.max(1);
        // SAFETY: a new mapping at a place of the kernel's choice; nothing that exists is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped_length, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        let buffer = Self { start, length };
        // Large pages are not asked for: copying into them was no faster, and on a machine whose memory is in use finding them
        // took four times as long as filling small ones (2 s of processor time for a GiB, not 0.5 s).
        let _ = buffer.advise(libc::MADV_DONTDUMP, mapped_length);
        Ok(buffer)
    }

    /// Takes memory for the first `length` bytes now, so that writing there waits for nothing later. Only a matter of time: a
    /// kernel that cannot (before Linux 5.14) takes it later.
    pub(crate) fn prepare(&mut self, length: usize) {
        let _ = self.advise(libc::MADV_POPULATE_WRITE, length.min(self.length));
    }

    fn advise(&self, advice: libc::c_int, length: usize) -> io::Result<()> {
        // SAFETY: the range lies in the mapping that `new` made, and none of these advices changes what is in there.
        let result = unsafe { libc::madvise(self.start.as_ptr().cast(), length, advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: all of the mapping is initialised, lives as long as this, and is written through `deref_mut` alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has it while it is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the very mapping that `new` made, which nobody else knows of.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length.max(1)) };
    }
}

// SAFETY: the mapping belongs to no thread, and Rust's rules for borrowing hold for it as for a `Box<[u8]>`.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_hold_what_is_written() {
        for length in [0, 1, 4096, 5 << 20] {
            let mut buffer = Buffer::new(length).expect("little memory");
            buffer.prepare(length / 2);
            assert_eq!(buffer.len(), length);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn what_no_address_space_holds_is_refused() {
        assert!(Buffer::new(1 << 60).is_err());
    }
}
