//! Memory mappings of this process.

#![expect(unsafe_code, reason = "maps memory")]

use std::ffi::c_void;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// A mapping. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapped {
    start: NonNull<c_void>,
    length: usize,
}

impl Mapped {
    /// Maps a range of a BPF map or ring buffer.
    pub(super) fn shared(map: impl AsFd, protection: ProtFlags, offset: usize, length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice; existing mappings are not touched.
        let start = unsafe { mmap(null_mut(), length, protection, MapFlags::SHARED, map, offset as u64) }?;
        Self::new(start, length)
    }

    fn anonymous(length: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as above.
        let start = unsafe { mmap_anonymous(null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Self::new(start, length)
    }

    fn new(start: *mut c_void, length: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, length })
    }

    pub(super) fn start(&self) -> *mut c_void {
        self.start.as_ptr()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that a constructor created; no reference to it outlives this value.
        let _ = unsafe { munmap(self.start(), self.length) };
    }
}

// SAFETY: the mapping belongs to no thread, and is accessed atomically or by the rules of borrowing.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

/// Zeroed anonymous memory with its own mapping. Excluded from core dumps, because it holds copies of another process's
/// memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    mapped: Mapped,
    length: usize,
}

impl Buffer {
    /// Creates a buffer whose pages are allocated when they are written, or [prepared](Self::prepare). Errors: `ENOMEM`
    /// without enough address space.
    pub(crate) fn new(length: usize) -> io::Result<Self> {
        let buffer = Self { mapped: Mapped::anonymous(length.max(1))?, length };
        // Without huge pages: copying into them was not faster, and on a machine with little free memory finding them
        // took four times as long as filling small ones (2 s of CPU time per GiB, not 0.5 s).
        let _ = buffer.advise(Advice::LinuxDontDump, buffer.mapped.length);
        Ok(buffer)
    }

    /// Allocates the first `length` bytes now, so that later writes do not wait for page faults. Has no effect before
    /// Linux 5.14.
    pub(crate) fn prepare(&mut self, length: usize) {
        let _ = self.advise(Advice::LinuxPopulateWrite, length.min(self.length));
    }

    fn advise(&self, advice: Advice, length: usize) -> io::Result<()> {
        // SAFETY: the range lies in this mapping, and none of these advices changes its contents.
        Ok(unsafe { madvise(self.mapped.start(), length, advice) }?)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the whole mapping is initialised, lives as long as this, and is written only through `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.mapped.start().cast(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.mapped.start().cast(), self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_writable() {
        for length in [0, 1, 4096, 5 << 20] {
            let mut buffer = Buffer::new(length).expect("a small mapping");
            buffer.prepare(length / 2);
            assert_eq!(buffer.len(), length);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn a_buffer_larger_than_the_address_space_is_refused() {
        assert!(Buffer::new(1 << 60).is_err());
    }
}
