//! `perf_event_open(2)` for uprobes.

#![expect(unsafe_code, reason = "no safe crate opens perf events for uprobes")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::bpf::owned;
use crate::ids::Pid;

/// Where the kernel describes its perf event source for uprobes (Linux 4.17).
pub(crate) const UPROBE_SOURCE: &str = "/sys/bus/event_source/devices/uprobe";

/// `PERF_FLAG_FD_CLOEXEC`
/// (<https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>).
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;

/// `struct perf_event_attr`, second version (`PERF_ATTR_SIZE_VER1`), with the names that uprobes give its fields.
#[repr(C)]
struct EventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 3],
    flags: u64,
    wakeup: [u32; 2],
    path: u64,
    offset: u64,
}

const _: () = assert!(size_of::<EventAttr>() == 72);

/// Opens a perf event at an instruction of a file, or at the returns of the function that begins there, in all threads of one
/// process. It counts from now on; closing it, and all links to it, detaches.
///
/// # Errors
///
/// The kernel's: `EINVAL` for what is no instruction of a regular file, `ESRCH` when there is no such process; `NotFound` where the
/// kernel has no uprobes.
pub(crate) fn open_uprobe(path: &Path, offset: u64, pid: Pid, at_return: bool) -> io::Result<OwnedFd> {
    let source = Path::new(UPROBE_SOURCE);
    let kind = fs::read_to_string(source.join("type"))?;
    let kind = kind.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let config = if at_return { 1 << return_bit(&fs::read_to_string(source.join("format/retprobe"))?)? } else { 0 };
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = EventAttr {
        kind,
        size: 72,
        config,
        sample: [0; 3],
        flags: 0,
        wakeup: [0; 2],
        path: path.as_ptr() as u64,
        offset,
    };
    let process = libc::pid_t::try_from(pid.0).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let (any_cpu, no_group): (libc::c_int, libc::c_int) = (-1, -1);
    // SAFETY: `attr` and the path that it points to outlive the call, which only reads them and returns a new descriptor.
    unsafe {
        owned(libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            process,
            any_cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        ))
    }
}

/// The bit of `config` that makes it a return probe: `config:0` in the kernel's words.
fn return_bit(format: &str) -> io::Result<u32> {
    let bit = format.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    bit.filter(|&bit| bit < u64::BITS).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_return_bit_is_what_the_kernel_says() {
        assert_eq!(return_bit("config:0\n").expect("valid"), 0);
        assert_eq!(return_bit("config:63\n").expect("valid"), 63);
        for malformed in ["", "config:64", "config1:0", "config:0-7"] {
            assert_eq!(return_bit(malformed).expect_err(malformed).kind(), io::ErrorKind::InvalidData);
        }
    }
}
