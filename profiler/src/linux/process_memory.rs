//! Reads memory of another process.

#![expect(unsafe_code, reason = "rustix has no process_vm_readv")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::ids::Pid;

/// Most ranges that one call reads (`UIO_MAXIOV`).
pub(crate) const RANGES_MAX: usize = 1024;

/// Copies ranges of a process's memory, each an address and a length, one behind the other into the buffer, and tells how many
/// bytes that were. Where something cannot be read, or the buffer is full, copying ends.
///
/// # Errors
///
/// `EFAULT` if not even the first byte could be read, `ESRCH` if there is no such process, `EPERM` without the right to, `EINVAL`
/// with more than [`RANGES_MAX`] ranges.
pub(crate) fn read(pid: Pid, ranges: &[(u64, usize)], buffer: &mut [u8]) -> io::Result<usize> {
    let raw_pid = libc::pid_t::try_from(pid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let there: Vec<libc::iovec> = ranges.iter().map(|&(address, length)| remote(address, length)).collect();
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let count = libc::c_ulong::try_from(there.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel writes to `here` alone, which is all of a buffer that is borrowed for writing; `there` are addresses
    // of another process, which are only read, and checked by the kernel.
    let copied = unsafe { libc::process_vm_readv(raw_pid, &raw const here, 1, there.as_ptr(), count, 0) };
    usize::try_from(copied).map_err(|_| io::Error::last_os_error())
}

/// Copies memory that the process itself may not read at the time, as debuggers do; how many bytes that was.
///
/// # Errors
///
/// Where it is not there, or the kernel lets nobody do so (`proc_mem.force_override=never`).
pub(crate) fn read_closed(pid: Pid, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
    File::open(format!("/proc/{pid}/mem"))?.read_at(buffer, address)
}

fn remote(address: u64, length: usize) -> libc::iovec {
    // Addresses have as many bits as here: x86-64.
    let base = std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(usize::MAX));
    libc::iovec { iov_base: base, iov_len: length }
}
