//! Features of BPF programs, tried by loading programs of a few instructions.

#![expect(unsafe_code, reason = "the `bpf` system call")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{bpf_cmd, bpf_insn, bpf_prog_type};

use super::bpf::{attributes, command, link_perf, owned};

const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R10: u8 = 10;

const fn instruction(code: u8, destination: u8, source: u8, off: i16, imm: i32) -> (u8, u8, i16, i32) {
    (code, destination | source << 4, off, imm)
}

/// `r0 = 0; exit`
const END: [(u8, u8, i16, i32); 2] = [instruction(0xb7, R0, 0, 0, 0), instruction(0x95, 0, 0, 0, 0)];

/// Whether programs may read a link's cookie (`bpf_get_attach_cookie`, Linux 5.15, with perf-event links that carry one).
pub(crate) fn has_cookies() -> io::Result<bool> {
    let call = instruction(0x85, 0, 0, 0, 174);
    accepts(bpf_prog_type::BPF_PROG_TYPE_KPROBE, &[&[call], &END[1..]].concat())
}

/// Whether atomic instructions may return the previous value (Linux 5.12).
pub(crate) fn has_atomics() -> io::Result<bool> {
    // *(u64 *)(r10 - 8) = 0; r2 = 1; r2 = xchg(r10 - 8, r2)
    let exchange =
        [instruction(0x7a, R10, 0, -8, 0), instruction(0xb7, R2, 0, 0, 1), instruction(0xdb, R10, R2, -8, 0xe1)];
    accepts(bpf_prog_type::BPF_PROG_TYPE_KPROBE, &[&exchange[..], &END].concat())
}

/// Whether tracing programs may use hash maps that are allocated at run time (Linux 6.1). Before, programs of type perf event are
/// refused, and others make the kernel warn (`check_map_prog_compatibility` in kernel/bpf/verifier.c).
pub(crate) fn has_run_time_allocation() -> io::Result<bool> {
    let map = hash_map()?;
    // r1 = map, in two instructions
    let load = [instruction(0x18, R1, 1, 0, map.as_raw_fd()), instruction(0, 0, 0, 0, 0)];
    accepts(bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT, &[&load[..], &END].concat())
}

fn hash_map() -> io::Result<OwnedFd> {
    let mut attr = attributes();
    // SAFETY: a structure of integers.
    let create = unsafe { &mut attr.__bindgen_anon_1 };
    (create.map_type, create.key_size, create.value_size, create.max_entries) = (1, 8, 8, 1);
    // BPF_F_NO_PREALLOC
    create.map_flags = 1;
    // SAFETY: `attr` contains no pointers; the result is a new descriptor.
    unsafe { command(bpf_cmd::BPF_MAP_CREATE, &mut attr).and_then(|result| owned(result)) }
}

fn accepts(kind: bpf_prog_type, program: &[(u8, u8, i16, i32)]) -> io::Result<bool> {
    let encode = |&(code, registers, off, imm): &(u8, u8, i16, i32)| bpf_insn {
        code,
        _bitfield_align_1: [],
        _bitfield_1: bpf_insn::new_bitfield_1(registers & 15, registers >> 4),
        off,
        imm,
    };
    let instructions: Vec<bpf_insn> = program.iter().map(encode).collect();
    let mut attr = attributes();
    // SAFETY: a structure of integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = kind as u32;
    load.insn_cnt = u32::try_from(instructions.len()).map_err(io::Error::other)?;
    load.insns = instructions.as_ptr() as u64;
    load.license = c"GPL".as_ptr() as u64;
    // SAFETY: the instructions and the licence outlive the call; the result is a new descriptor.
    match unsafe { command(bpf_cmd::BPF_PROG_LOAD, &mut attr).and_then(|result| owned(result)) } {
        Ok(_) => Ok(true),
        // The verifier's answers. Without permission to load any program, the error is EPERM.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs a program at each hit of the event of a probe, until the result is closed. With a cookie requires Linux 5.15.
pub(crate) fn run_at(event: OwnedFd, program: impl AsFd, cookie: Option<u64>) -> io::Result<OwnedFd> {
    match cookie {
        Some(cookie) => link_perf(program, event, cookie),
        None => set_program(event.as_fd(), program.as_fd()).map(|()| event),
    }
}

/// Without a link (Linux 4.17). Closing the event ends that.
fn set_program(event: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // PERF_EVENT_IOC_SET_BPF: _IOW('$', 8, __u32)
    const SET_BPF: libc::c_ulong = 0x4004_2408;
    // SAFETY: the argument is a number.
    match unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_kernels_have_all() {
        // The others are older.
        if super::super::bpf::supports(super::super::bpf::AttachType::UprobeMulti).expect("tests run as root") {
            let all = [has_cookies(), has_atomics(), has_run_time_allocation()];
            assert!(all.iter().all(|has| *has.as_ref().expect("tests run as root")), "{all:?}");
        }
    }

    #[test]
    fn refused_programs_are_an_answer() {
        let unknown = instruction(0x85, 0, 0, 0, 0x7fff_ffff);
        assert!(!accepts(bpf_prog_type::BPF_PROG_TYPE_KPROBE, &[&[unknown], &END[1..]].concat()).expect("as root"));
    }
}
