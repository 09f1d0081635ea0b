//! Uprobes as perf events (Linux 4.17).

#![expect(unsafe_code, reason = "rustix has no `perf_event_open`")]

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{fs, io};

use aya_obj::generated::{PERF_FLAG_FD_CLOEXEC, perf_event_attr};
use heapbpf_base::ids::Pid;

use super::bpf::{count, owned};

/// Sysfs directory of the uprobe event source (Linux 4.17).
pub const UPROBE_SOURCE: &str = "/sys/bus/event_source/devices/uprobe";

/// Probes an instruction of a file, or the returns of the function that begins there. Closing the event and all links detaches.
/// Errors: `EINVAL` for anything but an instruction of a regular file, `ESRCH`, `NotFound` without uprobes.
pub fn open_uprobe(path: &Path, offset: u64, pid: Option<Pid>, at_return: bool) -> io::Result<OwnedFd> {
    let source = Path::new(UPROBE_SOURCE);
    let kind = fs::read_to_string(source.join("type"))?;
    let kind = kind.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let config = if at_return { 1 << return_bit(&fs::read_to_string(source.join("format/retprobe"))?)? } else { 0 };
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a structure of integers.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    (attr.type_, attr.config, attr.size) = (kind, config, count(size_of::<perf_event_attr>())?);
    attr.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
    attr.__bindgen_anon_4.probe_offset = offset;
    // An event for all processes is one of a CPU.
    let (process, cpu) = pid.map_or((-1, 0), |pid| (pid.0.cast_signed(), -1));
    let (no_group, flags): (libc::c_int, _) = (-1, libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC));
    // SAFETY: `attr` and its path outlive the call, which only reads them and returns a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_perf_event_open, &raw const attr, process, cpu, no_group, flags)) }
}

/// Number of the bit of `config` that selects a return probe: the kernel writes `config:0`.
fn return_bit(format: &str) -> io::Result<u32> {
    let bit = format.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    bit.filter(|&bit| bit < u64::BITS).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_return_bit_is_read_from_sysfs() {
        assert_eq!(return_bit("config:0\n").expect("valid"), 0);
        assert_eq!(return_bit("config:63\n").expect("valid"), 63);
        for malformed in ["", "config:64", "config1:0", "config:0-7"] {
            assert_eq!(return_bit(malformed).expect_err(malformed).kind(), io::ErrorKind::InvalidData);
        }
    }
}
