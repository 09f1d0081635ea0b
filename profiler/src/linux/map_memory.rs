//! Writes array maps through their memory, where the kernel lets it be mapped: half a microsecond per element less than by
//! system calls, which adds up to a second for the tables of a compiler. And counts together with the kernel side, which
//! no system call can.

#![expect(unsafe_code, reason = "maps memory that the kernel shares")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::Pod;

/// What offsets of mappings are multiples of, in bytes.
const PAGE_BYTES: usize = 4096;

/// A mapped stretch of a map. Unmapped when dropped.
struct Mapped {
    start: NonNull<libc::c_void>,
    length: usize,
}

impl Mapped {
    fn new(map: &impl AsFd, offset: usize, length: usize) -> io::Result<Self> {
        Self::with(libc::PROT_READ | libc::PROT_WRITE, map, offset, length)
    }

    fn with(protection: libc::c_int, map: &impl AsFd, offset: usize, length: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let fd = map.as_fd().as_raw_fd();
        // SAFETY: a new mapping at a place of the kernel's choice; nothing that exists is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd, offset) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the very mapping that `new` made, which nobody else knows of.
        unsafe { libc::munmap(self.start.as_ptr(), self.length) };
    }
}

// SAFETY: the mapping belongs to no thread, and is read and written by atomic instructions alone.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

/// How far a ring buffer was written and read, as its first two pages say.
pub(crate) struct RingPositions(Mapped);

impl RingPositions {
    /// Of this ring.
    ///
    /// # Errors
    ///
    /// The kernel's, when it cannot be mapped.
    pub(crate) fn new(ring: impl AsFd) -> io::Result<Self> {
        // The second page may not be written to.
        Ok(Self(Mapped::with(libc::PROT_READ, &ring, 0, 2 * PAGE_BYTES)?))
    }

    /// Bytes that were written, headers with them, and have not been read.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let start = self.0.start.as_ptr();
        // SAFETY: both pages are mapped and begin with a word that is written by atomic instructions (`struct bpf_ringbuf` in
        // kernel/bpf/ringbuf.c: the reader's position, then the writers').
        let (read, written) = unsafe {
            let position = |page: usize| AtomicU64::from_ptr(start.byte_add(page * PAGE_BYTES).cast::<u64>());
            (position(0).load(Ordering::Acquire), position(1).load(Ordering::Acquire))
        };
        written.saturating_sub(read)
    }
}

/// Writes `values` to an array map with `BPF_F_MMAPABLE` (Linux 5.5), from index `first` on. Nothing may read these
/// elements meanwhile that would mind finding some of them written and others not.
///
/// # Errors
///
/// The kernel's: `EINVAL` where the map has no such flag or an index lies beyond its last page, `ENOTSUPP` (524) where it is no
/// array. Nothing is written then.
pub(crate) fn write_mapped<V: Pod>(map: impl AsFd, first: u32, values: &[V]) -> io::Result<()> {
    // The kernel rounds elements up to 8 bytes; values of another size would not lie side by side.
    const { assert!(size_of::<V>().is_multiple_of(8) && align_of::<V>() <= 8) };
    if values.is_empty() {
        return Ok(());
    }
    let too_far = || io::Error::from_raw_os_error(libc::EINVAL);
    let begin = (first as usize).checked_mul(size_of::<V>()).ok_or_else(too_far)?;
    let offset = begin - begin % PAGE_BYTES;
    let length = (begin - offset).checked_add(size_of_val(values)).ok_or_else(too_far)?;
    let mapped = Mapped::new(&map, offset, length)?;
    // SAFETY: the mapping has `length` bytes, of which the last `size_of_val(values)` begin here; they are aligned to 8,
    // because the mapping begins with a page and elements are multiples of 8. The kernel side reads words of 8 bytes and
    // gives any value a meaning. `Pod` vouches that the values have no padding to leak.
    unsafe {
        let place = mapped.start.as_ptr().byte_add(begin - offset).cast::<V>();
        std::ptr::copy_nonoverlapping(values.as_ptr(), place, values.len());
    }
    Ok(())
}

/// An array map of words that the kernel side counts in at the same time, by atomic instructions.
pub(crate) struct SharedCounts {
    mapped: Mapped,
    count: usize,
}

impl SharedCounts {
    /// Maps the first `count` words of an array map with `BPF_F_MMAPABLE` (Linux 5.5).
    ///
    /// # Errors
    ///
    /// As in [`write_mapped`].
    pub(crate) fn new(map: impl AsFd, count: u32) -> io::Result<Self> {
        let count = count as usize;
        let length = count.checked_mul(size_of::<u64>()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(Self { mapped: Mapped::new(&map, 0, length)?, count })
    }

    /// The sum of all words. What is counted meanwhile may be in it or not.
    pub(crate) fn sum(&self) -> u64 {
        let words = self.mapped.start.as_ptr().cast::<u64>();
        // SAFETY: within the mapping, as in `add`.
        let word = |index| unsafe { AtomicU64::from_ptr(words.add(index)) }.load(Ordering::Relaxed);
        (0..self.count).map(word).fold(0, u64::wrapping_add)
    }

    /// Adds to a word, wrapping around. Words beyond the last are left alone.
    pub(crate) fn add(&self, index: u32, change: i64) {
        let index = index as usize;
        if index < self.count {
            // SAFETY: within the mapping, which lives as long as this and is aligned to a page; whoever else writes to it
            // does so atomically.
            let word = unsafe { AtomicU64::from_ptr(self.mapped.start.as_ptr().cast::<u64>().add(index)) };
            word.fetch_add(change.cast_unsigned(), Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;
    use crate::linux::map_batch::write_array;

    const BPF_MAP_CREATE: libc::c_long = 0;
    const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
    const BPF_MAP_TYPE_ARRAY: u32 = 2;
    const BPF_F_MMAPABLE: u32 = 1 << 10;

    /// An array of 1000 values of 8 bytes.
    fn array(flags: u32) -> OwnedFd {
        let attr: [u32; 5] = [BPF_MAP_TYPE_ARRAY, 4, 8, 1000, flags];
        // SAFETY: type, key size, value size, entries and flags are what the command begins with, and all that it needs.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
        let fd = i32::try_from(fd).expect("descriptors are small");
        assert!(fd >= 0, "no map: {}; run as root", io::Error::last_os_error());
        // SAFETY: a new descriptor, which is nobody else's.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn value(map: &OwnedFd, key: u32) -> u64 {
        let value = 0_u64;
        let attr: [u64; 4] =
            [u64::from(map.as_raw_fd().unsigned_abs()), &raw const key as u64, &raw const value as u64, 0];
        // SAFETY: descriptor, key, value and flags; both live until after the call, in the map's sizes.
        let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, attr.as_ptr(), size_of_val(&attr)) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        // SAFETY: of this function alone.
        unsafe { std::ptr::read_volatile(&raw const value) }
    }

    #[test]
    fn what_is_written_is_there_and_nothing_else() {
        let map = array(BPF_F_MMAPABLE);
        // Across a page, which holds 512.
        let values: Vec<u64> = (1..=600).collect();
        write_mapped(&map, 200, &values).expect("the map allows it");
        let read = [0, 199, 200, 511, 512, 799, 800, 999].map(|key| value(&map, key));
        assert_eq!(read, [0, 0, 1, 312, 313, 600, 0, 0]);
        write_mapped::<u64>(&map, 5, &[]).expect("nothing is little enough");
        write_array(&map, 999, &[7_u64]).expect("system calls still do");
        assert_eq!(value(&map, 999), 7);
    }

    #[test]
    fn counts_are_shared() {
        let map = array(BPF_F_MMAPABLE);
        let (counts, others) = (SharedCounts::new(&map, 1000).expect("mappable"), SharedCounts::new(&map, 1000));
        counts.add(999, 5);
        others.expect("mappable twice").add(999, -2);
        counts.add(1000, 1);
        assert_eq!([0, 998, 999].map(|key| value(&map, key)), [0, 0, 3]);
        assert!(SharedCounts::new(array(0), 1000).is_err(), "no flag");
    }

    #[test]
    fn what_cannot_be_mapped_is_refused_whole() {
        let plain = array(0);
        assert_eq!(write_mapped(&plain, 0, &[1_u64]).expect_err("no flag").raw_os_error(), Some(libc::EINVAL));
        assert_eq!(value(&plain, 0), 0);
        let map = array(BPF_F_MMAPABLE);
        let error = write_mapped(&map, 900, &[1_u64; 600]).expect_err("ends beyond the map's last page");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(value(&map, 900), 0);
        assert!(write_mapped(&map, u32::MAX, &[1_u64]).is_err());
    }
}
