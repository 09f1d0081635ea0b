//! Writes many elements of an array map at once: a system call each would take seconds for large tables.

#![expect(unsafe_code, reason = "aya 0.14 has no BPF_MAP_UPDATE_BATCH")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya::Pod;

/// The part of `union bpf_attr` for batches
/// (<https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h#L1566-L1587>).
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `BPF_MAP_UPDATE_BATCH` (Linux 5.6).
const BPF_MAP_UPDATE_BATCH: libc::c_long = 26;

/// Elements per system call: bounds the key buffer, and how long the kernel is busy at a stretch.
const BATCH: usize = 65_536;

/// Writes `values` to an array map, from index `first` on.
///
/// # Errors
///
/// The kernel's: `E2BIG` when an index lies beyond the map, `ENOTSUPP` (524) before Linux 5.6.
pub fn write_array<V: Pod>(map: impl AsFd, first: u32, values: &[V]) -> io::Result<()> {
    let mut next = first;
    for chunk in values.chunks(BATCH) {
        let count = u32::try_from(chunk.len()).map_err(io::Error::other)?;
        let end = next.checked_add(count).ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
        let keys: Vec<u32> = (next..end).collect();
        let mut attr = BatchAttr {
            in_batch: 0,
            out_batch: 0,
            keys: keys.as_ptr() as u64,
            values: chunk.as_ptr() as u64,
            count,
            map_fd: map.as_fd().as_raw_fd().unsigned_abs(),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: `keys` and `chunk` hold `count` elements of the map's key and value sizes and outlive the call; the
        // kernel reads them and writes `count` back. `Pod` vouches that the values have no padding to leak.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_BATCH, &raw mut attr, size_of::<BatchAttr>() as libc::c_ulong)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        next = end;
    }
    Ok(())
}
