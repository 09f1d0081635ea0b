//! Features of BPF programs, tried by loading programs of a few instructions.

#![expect(unsafe_code, reason = "the `ioctl` that sets the program of an event")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{BPF_F_NO_PREALLOC, bpf_insn, bpf_map_type, bpf_prog_type};

use super::attempt::{create_map, end, instruction, load};
use super::bpf::link_perf;

/// Whether programs may read a link's cookie (`bpf_get_attach_cookie`, Linux 5.15, with perf-event links that carry one).
pub fn has_cookies() -> io::Result<bool> {
    let [_, exit] = end();
    accepts(bpf_prog_type::BPF_PROG_TYPE_KPROBE, &[instruction(0x85, 0, 174), exit])
}

/// Whether atomic instructions may return the previous value (Linux 5.12).
pub fn has_atomics() -> io::Result<bool> {
    // *(u64 *)(r10 - 8) = 0; r2 = 1; r2 = xchg(r10 - 8, r2)
    let exchange = [
        bpf_insn { off: -8, ..instruction(0x7a, 10, 0) },
        instruction(0xb7, 2, 1),
        bpf_insn { off: -8, _bitfield_1: bpf_insn::new_bitfield_1(10, 2), ..instruction(0xdb, 0, 0xe1) },
    ];
    accepts(bpf_prog_type::BPF_PROG_TYPE_KPROBE, &[&exchange[..], &end()].concat())
}

/// Whether tracing programs may use hash maps that are allocated at run time (Linux 6.1). Before, programs of type perf event are
/// refused, and others make the kernel warn (`check_map_prog_compatibility` in kernel/bpf/verifier.c).
pub fn has_run_time_allocation() -> io::Result<bool> {
    let map = create_map(bpf_map_type::BPF_MAP_TYPE_HASH, [8, 8, 1], BPF_F_NO_PREALLOC)?;
    // r1 = map, in two instructions
    let address = bpf_insn { _bitfield_1: bpf_insn::new_bitfield_1(1, 1), ..instruction(0x18, 0, map.as_raw_fd()) };
    accepts(bpf_prog_type::BPF_PROG_TYPE_PERF_EVENT, &[&[address, instruction(0, 0, 0)][..], &end()].concat())
}

fn accepts(kind: bpf_prog_type, program: &[bpf_insn]) -> io::Result<bool> {
    match load(kind, program) {
        Ok(_) => Ok(true),
        // These errors are answers of the verifier. Without permission to load any program, the error is EPERM.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Runs a program at each hit of the event of a probe, until the result is closed. With a cookie requires Linux 5.15.
pub fn run_at(event: OwnedFd, program: impl AsFd, cookie: Option<u64>) -> io::Result<OwnedFd> {
    match cookie {
        Some(cookie) => link_perf(program, event, cookie),
        None => set_program(event.as_fd(), program.as_fd()).map(|()| event),
    }
}

/// Runs a program at each hit of an event, without a link (Linux 4.17). Closing the event ends that.
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
        let unknown = instruction(0x85, 0, 0x7fff_ffff);
        assert!(!accepts(bpf_prog_type::BPF_PROG_TYPE_KPROBE, &[unknown, end()[1]]).expect("as root"));
    }
}
