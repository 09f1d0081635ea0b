//! The `bpf` system call for what aya 0.14 lacks: programs and links of uprobe sessions and multi-uprobes, and
//! information about programs; and `perf_event_open(2)` for uprobes.
//!
//! The structures are prefixes of `union bpf_attr` for each command
//! (<https://github.com/torvalds/linux/blob/v6.13/include/uapi/linux/bpf.h#L1527-L1790>); the kernel takes the rest as
//! 0.

#![expect(unsafe_code, reason = "aya 0.14 has no uprobe_multi and no uprobe session")]

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use aya_obj::generated::bpf_insn;
use rustix::thread::{MembarrierCommand, membarrier};

use crate::ids::Pid;

/// How a program will be attached. The kernel checks it again when a link is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachType {
    /// Perf events (`BPF_PERF_EVENT`): not checked when the program is loaded.
    PerfEvent,
    /// `BPF_TRACE_UPROBE_MULTI` (Linux 6.6): entries or returns of many functions.
    UprobeMulti,
    /// `BPF_TRACE_UPROBE_SESSION` (Linux 6.13): entries and, where the program requests it, returns of many functions.
    UprobeSession,
}

impl AttachType {
    const fn number(self) -> u32 {
        match self {
            Self::PerfEvent => 41,
            Self::UprobeMulti => 48,
            Self::UprobeSession => 57,
        }
    }
}

/// A program to load.
#[derive(Clone, Copy, Debug)]
pub struct ProgramLoad<'a> {
    /// The kernel keeps the first 15 bytes.
    pub name: &'a str,
    /// Relocated instructions.
    pub instructions: &'a [bpf_insn],
    /// From the object's `license` section.
    pub license: &'a std::ffi::CStr,
    /// How it will be attached.
    pub attach_type: AttachType,
    /// Function and line information, required for global functions.
    pub btf: Option<ProgramBtf<'a>>,
}

/// A program's BTF.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBtf<'a> {
    pub btf: &'a OwnedFd,
    /// `bpf_func_info` records, and the size of one.
    pub functions: (&'a [u8], usize),
    /// `bpf_line_info` records, and the size of one.
    pub lines: (&'a [u8], usize),
}

/// The kernel refused a program.
#[derive(Debug, thiserror::Error)]
#[error("{error}: {log}")]
pub struct ProgramRefused {
    pub error: io::Error,
    /// Log of the verifier.
    pub log: String,
}

#[repr(C)]
#[derive(Default)]
struct ProgLoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreateAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

#[repr(C)]
struct PerfLinkAttr {
    prog_fd: u32,
    event_fd: u32,
    attach_type: u32,
    flags: u32,
    cookie: u64,
}

#[repr(C)]
#[derive(Default)]
struct BtfLoadAttr {
    btf: u64,
    log_buf: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    reserved: u32,
}

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;

/// Size of the log buffer. The kernel truncates longer logs.
const LOG_BYTES: usize = 1 << 20;

/// Runs a command that returns a descriptor.
///
/// # Safety
///
/// `attr` must be that of the command, and what it points to must be as the command requires.
unsafe fn command<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees `attr`, whose size is passed with it; these commands return a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>())) }
}

/// Converts the result of a system call.
///
/// # Safety
///
/// The result must be that of a system call that returns a new descriptor.
pub(super) unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the caller guarantees that it is new, so it has no other owner.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn address<T>(values: &[T]) -> u64 {
    values.as_ptr() as u64
}

pub(super) fn count(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))
}

/// Loads an object's BTF.
pub(crate) fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = BtfLoadAttr { btf: address(btf), size: count(btf.len())?, ..BtfLoadAttr::default() };
    // SAFETY: `btf` outlives the call, and its length is passed.
    unsafe { command(BPF_BTF_LOAD, &mut attr) }
}

/// Loads a program. On errors, loads it again for the verifier's log.
pub fn load_program(program: ProgramLoad<'_>) -> Result<OwnedFd, ProgramRefused> {
    // Without a log first: writing it takes longer than verifying.
    match try_load(program, &mut []) {
        Ok(fd) => Ok(fd),
        Err(_) => {
            let mut log = vec![0; LOG_BYTES];
            try_load(program, &mut log).map_err(|error| {
                let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
                ProgramRefused { error, log: String::from_utf8_lossy(&log[..end]).into_owned() }
            })
        }
    }
}

fn try_load(program: ProgramLoad<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = ProgLoadAttr {
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: count(program.instructions.len())?,
        insns: address(program.instructions),
        license: program.license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: count(log.len())?,
        log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        expected_attach_type: match program.attach_type {
            AttachType::PerfEvent => 0,
            other => other.number(),
        },
        ..ProgLoadAttr::default()
    };
    let kept = program.name.len().min(attr.prog_name.len() - 1);
    attr.prog_name[..kept].copy_from_slice(&program.name.as_bytes()[..kept]);
    if let Some(ProgramBtf { btf, functions, lines }) = program.btf {
        attr.prog_btf_fd = btf.as_raw_fd().unsigned_abs();
        if functions.1 > 0 {
            attr.func_info = address(functions.0);
            attr.func_info_rec_size = count(functions.1)?;
            attr.func_info_cnt = count(functions.0.len() / functions.1)?;
        }
        if lines.1 > 0 {
            attr.line_info = address(lines.0);
            attr.line_info_rec_size = count(lines.1)?;
            attr.line_info_cnt = count(lines.0.len() / lines.1)?;
        }
    }
    // SAFETY: every pointer is to a slice or string that outlives the call, with its length; the kernel writes only to
    // `log`.
    unsafe { command(BPF_PROG_LOAD, &mut attr) }
}

/// Sites of a multi-uprobe link.
#[derive(Clone, Copy, Debug)]
pub struct MultiLink<'a> {
    /// The file with the instructions.
    pub path: &'a Path,
    /// File offsets of instructions.
    pub offsets: &'a [u64],
    /// Cookie of each offset.
    pub cookies: &'a [u64],
    /// `None` for all processes.
    pub pid: Option<Pid>,
    /// At returns instead of entries; not for sessions, which see both.
    pub at_return: bool,
}

/// Attaches a program to many instructions of a file. Closing the descriptor detaches. Errors: `EBADF` for anything but
/// a regular file, `EINVAL` where the kernel lacks the attach type.
pub fn link_multi(program: impl AsFd, attach_type: AttachType, link: MultiLink<'_>) -> io::Result<OwnedFd> {
    if link.offsets.len() != link.cookies.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let path = CString::new(link.path.as_os_str().as_bytes())?;
    let mut attr = LinkCreateAttr {
        prog_fd: program.as_fd().as_raw_fd().unsigned_abs(),
        attach_type: attach_type.number(),
        path: path.as_ptr() as u64,
        offsets: address(link.offsets),
        cookies: address(link.cookies),
        count: count(link.offsets.len())?,
        // BPF_F_UPROBE_MULTI_RETURN
        multi_flags: u32::from(link.at_return),
        pid: link.pid.map_or(0, |pid| pid.0),
        ..LinkCreateAttr::default()
    };
    // SAFETY: path, offsets and cookies outlive the call; both arrays have `count` elements.
    unsafe { command(BPF_LINK_CREATE, &mut attr) }
}

/// Links a program to a perf event, with a cookie (Linux 5.15).
pub(crate) fn link_perf(program: impl AsFd, event: impl AsFd, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = PerfLinkAttr {
        prog_fd: program.as_fd().as_raw_fd().unsigned_abs(),
        event_fd: event.as_fd().as_raw_fd().unsigned_abs(),
        attach_type: AttachType::PerfEvent.number(),
        flags: 0,
        cookie,
    };
    // SAFETY: `attr` contains no pointers.
    unsafe { command(BPF_LINK_CREATE, &mut attr) }
}

/// Loads a program that does nothing: `r0 = 0; exit`.
pub(crate) fn load_nothing(attach_type: AttachType) -> Result<OwnedFd, ProgramRefused> {
    let instructions = [instruction(0xb7), instruction(0x95)];
    load_program(ProgramLoad { name: "nothing", instructions: &instructions, license: c"GPL", attach_type, btf: None })
}

/// Loads a program that uses 64 bytes of stack, the minimum for which Linux 6.13 and later allocate a private stack
#[cfg(test)]
pub(crate) fn load_with_stack(attach_type: AttachType) -> Result<OwnedFd, ProgramRefused> {
    // `*(u64 *)(r10 - 64) = 0; r0 = *(u64 *)(r10 - 64); exit`
    let store = bpf_insn { off: -64, _bitfield_1: bpf_insn::new_bitfield_1(10, 0), ..instruction(0x7a) };
    let load = bpf_insn { off: -64, _bitfield_1: bpf_insn::new_bitfield_1(0, 10), ..instruction(0x79) };
    let instructions = [store, load, instruction(0x95)];
    load_program(ProgramLoad {
        name: "with_stack",
        instructions: &instructions,
        license: c"GPL",
        attach_type,
        btf: None,
    })
}

/// Whether the kernel has links of this type. Loading a program proves nothing: kernels without these links accept it.
/// A link to anything but a regular file fails with `EBADF` if the type is supported, and with `EINVAL` otherwise.
/// Other errors mean that the answer is unknown.
pub(crate) fn supports(attach_type: AttachType) -> io::Result<bool> {
    let program = match load_nothing(attach_type) {
        Ok(program) => program,
        Err(refused) if refused.error.raw_os_error() == Some(libc::EINVAL) => return Ok(false),
        Err(refused) => return Err(refused.error),
    };
    let link = MultiLink { path: Path::new("/"), offsets: &[0], cookies: &[0], pid: None, at_return: false };
    match link_multi(program, attach_type, link) {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EBADF) => Ok(true),
            Some(libc::EINVAL | libc::EOPNOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}

fn instruction(code: u8) -> bpf_insn {
    bpf_insn { code, _bitfield_align_1: [], _bitfield_1: bpf_insn::new_bitfield_1(0, 0), off: 0, imm: 0 }
}

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

/// Reads the kernel's information about a program.
///
/// # Safety
///
/// `info` must be 0 except for pairs of an address and a length, each of memory that the kernel may write to.
unsafe fn program_info(program: impl AsFd, info: &mut ProgInfo) -> io::Result<()> {
    const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
    let length = count(size_of::<ProgInfo>())?;
    let fd = program.as_fd().as_raw_fd().unsigned_abs();
    let mut attr = InfoAttr { fd, length, info: std::ptr::from_mut(info) as u64 };
    let size = size_of::<InfoAttr>() as libc::c_ulong;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which outlives the call; the caller guarantees the
    // addresses in it.
    let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw mut attr, size) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Number of times that the kernel skipped a program because it was already running on that CPU (Linux 5.12; 0 before).
pub(crate) fn recursion_misses(program: impl AsFd) -> io::Result<u64> {
    let mut info = ProgInfo::default();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(program, &mut info) }?;
    Ok(info.recursion_misses)
}

/// Machine code of a loaded program, followed by that of its subprograms. Empty when the kernel interprets the program.
/// `None` when the kernel hides it: reading it requires CAP_SYSLOG, and `kernel.kptr_restrict` below 2
/// (`bpf_dump_raw_ok` in `kernel/bpf/syscall.c`).
pub(crate) fn machine_code(program: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut info = ProgInfo::default();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(&program, &mut info) }?;
    let mut code = vec![0; info.jited_prog_len as usize];
    info = ProgInfo {
        jited_prog_len: info.jited_prog_len,
        jited_prog_insns: code.as_mut_ptr() as u64,
        ..ProgInfo::default()
    };
    // SAFETY: the rest of `info` is 0, and `code` has as many bytes as `info` states.
    unsafe { program_info(&program, &mut info) }?;
    Ok(if info.jited_prog_insns == 0 && !code.is_empty() { None } else { Some(code) })
}

/// Sysfs directory of the uprobe event source (Linux 4.17).
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

/// Opens a perf event at an instruction of a file, or at the returns of the function that begins there, in all threads
/// of one process. Closing it and all links to it detaches. Errors: `EINVAL` for anything but an instruction of a
/// regular file, `ESRCH`, `NotFound` where the kernel has no uprobes.
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
    // SAFETY: `attr` and its path outlive the call, which only reads them and returns a new descriptor.
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

/// The bit of `config` that makes it a return probe: the kernel writes `config:0`.
fn return_bit(format: &str) -> io::Result<u32> {
    let bit = format.trim().strip_prefix("config:").and_then(|bit| bit.parse().ok());
    bit.filter(|&bit| bit < u64::BITS).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Time that a preempted program may need to complete where `membarrier` is not available.
const PATIENCE: Duration = Duration::from_millis(50);

/// Returns when every probe program that was running has completed, including preempted ones: they run as RCU readers
/// (`uprobe_prog_run` in kernel/trace/bpf_trace.c, `bpf_prog_run_array_uprobe` in include/linux/bpf.h), and
/// `MEMBARRIER_CMD_GLOBAL` waits for a grace period (kernel/sched/membarrier.c, Linux 4.3), which takes 10 to 30 ms.
/// With one CPU or with `nohz_full` it does not wait, so this sleeps instead.
pub(crate) fn wait_for_programs() {
    let has_one_cpu = thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    if has_one_cpu || membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(PATIENCE);
    }
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
