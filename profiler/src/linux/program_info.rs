//! `BPF_OBJ_GET_INFO_BY_FD` for what aya 0.14 does not read of a loaded program.

#![expect(unsafe_code, reason = "the kernel writes to memory that the request points to")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use super::bpf::count;

/// The beginning of `struct bpf_prog_info`, up to the last field that is read here
/// (<https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h#L6543-L6584>).
#[repr(C)]
#[derive(Default)]
struct ProgInfo {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    jited_prog_len: u32,
    xlated_prog_len: u32,
    jited_prog_insns: u64,
    skipped: [u64; 22],
    recursion_misses: u64,
}

const _: () = assert!(std::mem::offset_of!(ProgInfo, recursion_misses) == 208);

#[repr(C)]
struct InfoAttr {
    fd: u32,
    length: u32,
    info: u64,
}

/// Asks the kernel about a program.
///
/// # Safety
///
/// `info` must be 0 but for pairs of an address and a length, each of memory that the kernel may write to.
unsafe fn program_info(program: impl AsFd, info: &mut ProgInfo) -> io::Result<()> {
    const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
    let length = count(size_of::<ProgInfo>())?;
    let fd = program.as_fd().as_raw_fd().unsigned_abs();
    let mut attr = InfoAttr { fd, length, info: std::ptr::from_mut(info) as u64 };
    let size = size_of::<InfoAttr>() as libc::c_ulong;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which outlives the call, and the caller vouches for the
    // addresses in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw mut attr, size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Number of times that the kernel did not run a program because it ran on that CPU already (Linux 5.12; 0 before).
pub(crate) fn recursion_misses(program: impl AsFd) -> io::Result<u64> {
    let mut info = ProgInfo::default();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(program, &mut info) }?;
    Ok(info.recursion_misses)
}

/// Machine code of a loaded program, its subprograms one after the other. Empty when the kernel interprets the program.
/// `None` when the kernel hides it: reading it requires CAP_SYSLOG, and `kernel.kptr_restrict` below 2
/// (`bpf_dump_raw_ok` in `kernel/bpf/syscall.c`).
pub(crate) fn machine_code(program: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut info = ProgInfo::default();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(&program, &mut info) }?;
    let mut code = vec![0; info.jited_prog_len as usize];
    let wanted = ProgInfo {
        jited_prog_len: info.jited_prog_len,
        jited_prog_insns: code.as_mut_ptr() as u64,
        ..ProgInfo::default()
    };
    info = wanted;
    // SAFETY: the rest of `info` is 0, and `code` has as many bytes as `info` states.
    unsafe { program_info(&program, &mut info) }?;
    Ok(if info.jited_prog_insns == 0 && !code.is_empty() { None } else { Some(code) })
}
