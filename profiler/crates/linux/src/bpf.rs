//! The `bpf` system call for features that aya 0.14 lacks.

#![expect(unsafe_code, reason = "aya 0.14 has no uprobe_multi and no uprobe session")]

use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{io, thread};

use aya_obj::generated::{
    bpf_attr, bpf_cmd, bpf_insn, bpf_link_info, bpf_link_type, bpf_perf_event_type, bpf_prog_info, bpf_prog_type,
};
use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use rustix::thread::{MembarrierCommand, membarrier};

/// Kind of attachment of a program. The kernel checks it again when a link is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AttachType {
    /// Raw tracepoints, for which the kernel has no such number: not checked when the program is loaded.
    RawTracepoint = 0,
    /// Perf events (`BPF_PERF_EVENT`): not checked when the program is loaded.
    PerfEvent = 41,
    /// `BPF_TRACE_UPROBE_MULTI` (Linux 6.6): entries or returns of many functions.
    UprobeMulti = 48,
    /// `BPF_TRACE_UPROBE_SESSION` (Linux 6.13): entries and, where the program requests it, returns of many functions.
    UprobeSession = 57,
}

impl AttachType {
    const fn program_type(self) -> bpf_prog_type {
        match self {
            Self::RawTracepoint => bpf_prog_type::BPF_PROG_TYPE_RAW_TRACEPOINT,
            Self::PerfEvent | Self::UprobeMulti | Self::UprobeSession => bpf_prog_type::BPF_PROG_TYPE_KPROBE,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProgramLoad<'a> {
    /// Name of the program, of which the kernel keeps the first 15 bytes.
    pub name: &'a str,
    pub instructions: &'a [bpf_insn],
    pub license: &'a CStr,
    pub attach_type: AttachType,
    /// Function and line information, required for global functions.
    pub btf: Option<ProgramBtf<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub struct ProgramBtf<'a> {
    pub btf: &'a OwnedFd,
    /// `bpf_func_info` records, and the size of one.
    pub functions: (&'a [u8], usize),
    pub lines: (&'a [u8], usize),
}

#[derive(Debug, thiserror::Error)]
#[error("{error}: {log}")]
pub struct ProgramRefused {
    pub error: io::Error,
    pub log: String,
}

const LOG_BYTES_MIN: usize = 1 << 20;
const LOG_BYTES_MAX: usize = 16 << 20;
/// Maximum number of attempts to load a program, all but the last of which a signal has ended.
pub const LOADS_MAX: usize = 100;

/// Arguments of a command, all 0. The kernel accepts more than it knows if the rest is 0.
pub(super) fn attributes() -> bpf_attr {
    // SAFETY: a union of structures of integers.
    unsafe { std::mem::zeroed() }
}

/// Calls `bpf` with a command.
///
/// # Safety
/// `attr` must be that of the command, and what it points to must be as the command requires.
pub(super) unsafe fn command(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<libc::c_long> {
    let attr = std::ptr::from_mut(attr);
    // SAFETY: the caller guarantees `attr`, whose size is passed with it.
    match unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, attr, size_of::<bpf_attr>()) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

/// Calls `bpf` with a command that returns a new descriptor.
///
/// # Safety
/// The requirements of [`command`] apply.
unsafe fn open(new: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees both.
    unsafe { command(new, attr).and_then(|result| owned(result)) }
}

/// Takes ownership of a new descriptor.
///
/// # Safety
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

/// Number of a descriptor. Borrows it: a descriptor that is passed by value would be closed before the kernel sees its number.
pub(super) fn number(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().unsigned_abs()
}

pub fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.__bindgen_anon_7.btf = address(btf);
    attr.__bindgen_anon_7.btf_size = count(btf.len())?;
    // SAFETY: `btf` outlives the call, and its length is passed.
    unsafe { open(bpf_cmd::BPF_BTF_LOAD, &mut attr) }
}

pub fn load_program(program: ProgramLoad<'_>) -> Result<OwnedFd, ProgramRefused> {
    // Without a log first: writing it takes longer than verifying.
    let error = match try_load(program, 0, &mut []) {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    let mut log = vec![0; LOG_BYTES_MIN];
    loop {
        match try_load(program, LOG_STEPS, &mut log) {
            Ok(fd) => return Ok(fd),
            // The log is too small. Before Linux 6.4, its end is cut off, which has the reason.
            Err(full) if full.raw_os_error() == Some(libc::ENOSPC) && log.len() < LOG_BYTES_MAX => {
                log.resize(log.len() * 4, 0);
            }
            // An attempt with a log may fail for another reason, such as the log's size.
            Err(_) => return Err(ProgramRefused { error, log: text_of(&log) }),
        }
    }
}

/// Log levels `BPF_LOG_LEVEL1`, and `BPF_LOG_STATS` (Linux 5.2).
const LOG_STEPS: u32 = 1;
const LOG_STATISTICS: u32 = 4;

/// Text that the verifier logs about its work, for kernels that do not report [`verified_instructions`].
pub fn verifier_statistics(program: ProgramLoad<'_>) -> io::Result<String> {
    let mut log = vec![0; 4096];
    try_load(program, LOG_STATISTICS, &mut log).map(|_| text_of(&log))
}

fn text_of(log: &[u8]) -> String {
    shown::text(log.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Whether a pending signal has ended a verification (`EAGAIN`).
pub fn is_interrupted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn try_load(program: ProgramLoad<'_>, log_level: u32, log: &mut [u8]) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    // SAFETY: a structure of integers.
    let load = unsafe { &mut attr.__bindgen_anon_3 };
    load.prog_type = program.attach_type.program_type() as u32;
    load.insn_cnt = count(program.instructions.len())?;
    load.insns = address(program.instructions);
    load.license = program.license.as_ptr() as u64;
    if !log.is_empty() {
        load.log_level = log_level;
        load.log_size = count(log.len())?;
        load.log_buf = log.as_mut_ptr() as u64;
    }
    if !matches!(program.attach_type, AttachType::PerfEvent | AttachType::RawTracepoint) {
        load.expected_attach_type = program.attach_type as u32;
    }
    // The last byte stays 0.
    for (to, from) in load.prog_name[..15].iter_mut().zip(program.name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    if let Some(ProgramBtf { btf, functions, lines }) = program.btf {
        load.prog_btf_fd = number(&btf);
        let records = |(bytes, size): (&[u8], usize)| {
            io::Result::Ok((address(bytes), count(size)?, count(bytes.len().checked_div(size).unwrap_or(0))?))
        };
        (load.func_info, load.func_info_rec_size, load.func_info_cnt) = records(functions)?;
        (load.line_info, load.line_info_rec_size, load.line_info_cnt) = records(lines)?;
    }
    // SAFETY: every pointer is to a slice or string that outlives the call, with its length; the kernel writes only to
    // `log`.
    let mut loads = std::iter::repeat_with(|| unsafe { open(bpf_cmd::BPF_PROG_LOAD, &mut attr) }).take(LOADS_MAX);
    loads
        .find(|load| !load.as_ref().is_err_and(is_interrupted))
        .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
}

#[derive(Clone, Copy, Debug)]
pub struct MultiLink<'a> {
    pub path: &'a Path,
    pub offsets: &'a [u64],
    pub cookies: &'a [u64],
    /// Process in which to probe; `None` for all processes.
    pub pid: Option<Pid>,
    /// Whether to probe returns instead of entries; not for sessions, which see both.
    pub at_return: bool,
}

/// Links a program to many functions. Closing the descriptor detaches. Errors: `EBADF` for anything but a regular file, `EINVAL`
/// without the attach type.
pub fn link_multi(program: impl AsFd, attach_type: AttachType, link: MultiLink<'_>) -> io::Result<OwnedFd> {
    if link.offsets.len() != link.cookies.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let path = CString::new(link.path.as_os_str().as_bytes())?;
    let mut attr = link_attributes(&program, attach_type);
    // SAFETY: a structure of integers.
    let multi = unsafe { &mut attr.link_create.__bindgen_anon_3.uprobe_multi };
    multi.path = path.as_ptr() as u64;
    multi.offsets = address(link.offsets);
    multi.cookies = address(link.cookies);
    multi.cnt = count(link.offsets.len())?;
    // BPF_F_UPROBE_MULTI_RETURN
    multi.flags = u32::from(link.at_return);
    multi.pid = link.pid.map_or(0, |pid| pid.0);
    // SAFETY: path, offsets and cookies outlive the call; both arrays have `cnt` elements.
    unsafe { open(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

fn link_attributes(program: &impl AsFd, attach_type: AttachType) -> bpf_attr {
    let mut attr = attributes();
    attr.link_create.__bindgen_anon_1.prog_fd = number(program);
    attr.link_create.attach_type = attach_type as u32;
    attr
}

/// Links a program to a perf event, with a cookie (Linux 5.15).
pub(crate) fn link_perf(program: impl AsFd, event: impl AsFd, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = link_attributes(&program, AttachType::PerfEvent);
    attr.link_create.__bindgen_anon_2.target_fd = number(&event);
    attr.link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    // SAFETY: `attr` contains no pointers.
    unsafe { open(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// Runs a program at each hit of a tracepoint of the kernel (Linux 4.17), until the descriptor is closed.
pub(crate) fn link_raw_tracepoint(program: impl AsFd, tracepoint: &CStr) -> io::Result<OwnedFd> {
    let mut attr = attributes();
    attr.raw_tracepoint.name = tracepoint.as_ptr() as u64;
    attr.raw_tracepoint.prog_fd = number(&program);
    // SAFETY: the name outlives the call.
    unsafe { open(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }
}

pub fn load_nothing(attach_type: AttachType) -> Result<OwnedFd, ProgramRefused> {
    let instructions = [instruction(0xb7), instruction(0x95)];
    load_program(ProgramLoad { name: "nothing", instructions: &instructions, license: c"GPL", attach_type, btf: None })
}

/// Loads a program that uses 64 bytes of stack, the minimum for which Linux 6.13 and later allocate a private stack
#[cfg(any(test, feature = "testing"))]
pub fn load_with_stack(attach_type: AttachType) -> Result<OwnedFd, ProgramRefused> {
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

/// Whether the kernel supports links of this type. Kernels without these links load programs for them, so a link is tried: a link
/// to anything but a regular file fails with `EBADF` if the type is supported, with `EINVAL` if not, and with other errors if the
/// answer is unknown.
pub fn supports(attach_type: AttachType) -> io::Result<bool> {
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

/// An instruction on registers number 0, without offset and immediate value.
pub(super) fn instruction(code: u8) -> bpf_insn {
    bpf_insn { code, _bitfield_align_1: [], _bitfield_1: bpf_insn::new_bitfield_1(0, 0), off: 0, imm: 0 }
}

fn no_information() -> bpf_prog_info {
    // SAFETY: a structure of integers.
    unsafe { std::mem::zeroed() }
}

/// Reads the information about a program.
///
/// # Safety
/// `info` must be 0 except for pairs of an address and a length, each of memory that the kernel may write to.
unsafe fn program_info(program: impl AsFd, info: &mut bpf_prog_info) -> io::Result<()> {
    let mut attr = attributes();
    attr.info.bpf_fd = number(&program);
    attr.info.info_len = count(size_of::<bpf_prog_info>())?;
    attr.info.info = std::ptr::from_mut(info) as u64;
    // SAFETY: the kernel writes at most `info_len` bytes to `info`, which outlives the call; the caller guarantees the
    // addresses in it.
    unsafe { command(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
}

pub fn program_id(program: impl AsFd) -> io::Result<u32> {
    let mut info = no_information();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(program, &mut info) }?;
    Ok(info.id)
}

/// Numbers of all loaded programs with the same instructions, this one among them. Requires CAP_SYS_ADMIN.
pub fn equal_programs(program: impl AsFd) -> io::Result<Vec<u32>> {
    let tag_of = |program: BorrowedFd<'_>| {
        let mut info = no_information();
        // SAFETY: all of `info` is 0.
        unsafe { program_info(program, &mut info) }.map(|()| info.tag)
    };
    let tag = tag_of(program.as_fd())?;
    let mut equal = Vec::new();
    for_each(bpf_cmd::BPF_PROG_GET_NEXT_ID, bpf_cmd::BPF_PROG_GET_FD_BY_ID, |id, other| {
        equal.extend((tag_of(other.as_fd())? == tag).then_some(id));
        Ok(())
    })?;
    Ok(equal)
}

/// Opens all objects of a kind in turn: by the command that returns the number after another, and the one that opens a number.
fn for_each(next: bpf_cmd, by_id: bpf_cmd, mut visit: impl FnMut(u32, OwnedFd) -> io::Result<()>) -> io::Result<()> {
    let mut attr = attributes();
    loop {
        // SAFETY: `attr` contains no pointers.
        match unsafe { command(next, &mut attr) } {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(error) => return Err(error),
        }
        // SAFETY: the kernel has written an integer there.
        let id = unsafe { attr.__bindgen_anon_6.next_id };
        attr = attributes();
        // In the commands of all kinds, the number of an object and the number to start from are at the same place.
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: `attr` contains no pointers.
        match unsafe { open(by_id, &mut attr) } {
            Ok(object) => visit(id, object)?,
            // The object was closed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
        attr = attributes();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
    }
}

/// Number of instructions that the verifier processed (Linux 5.16; 0 before).
pub fn verified_instructions(program: impl AsFd) -> io::Result<u32> {
    let mut info = no_information();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(program, &mut info) }?;
    Ok(info.verified_insns)
}

/// Number of times that the kernel skipped a program because it was already running on that CPU (Linux 5.12; 0 before).
pub fn recursion_misses(program: impl AsFd) -> io::Result<u64> {
    let mut info = no_information();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(program, &mut info) }?;
    Ok(info.recursion_misses)
}

/// Machine code of a program with that of subprograms; empty when the kernel interprets them. `None` when the kernel hides it:
/// requires CAP_SYSLOG, and `kernel.kptr_restrict` below 2 (`bpf_dump_raw_ok` in `kernel/bpf/syscall.c`).
pub fn machine_code(program: impl AsFd) -> io::Result<Option<Vec<u8>>> {
    let mut info = no_information();
    // SAFETY: all of `info` is 0.
    unsafe { program_info(&program, &mut info) }?;
    let mut code = vec![0; info.jited_prog_len as usize];
    let jited_prog_len = info.jited_prog_len;
    info = no_information();
    (info.jited_prog_len, info.jited_prog_insns) = (jited_prog_len, code.as_mut_ptr() as u64);
    // SAFETY: the rest of `info` is 0, and `code` has as many bytes as `info` states.
    unsafe { program_info(&program, &mut info) }?;
    Ok(if info.jited_prog_insns == 0 && !code.is_empty() { None } else { Some(code) })
}

/// Uprobes of a BPF link: a path, as seen from the root directory of this process, and offsets in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UprobeLink {
    pub path: PathBuf,
    pub offsets: Vec<u64>,
}

/// Uprobes of all BPF links whose program is not in `own`; `None` for a link that the kernel does not describe (before
/// Linux 6.6 for perf events, before 6.8 for `uprobe_multi`). Requires CAP_SYS_ADMIN.
pub fn uprobe_links(own: &[u32]) -> io::Result<Vec<Option<UprobeLink>>> {
    let mut links = Vec::new();
    for_each(bpf_cmd::BPF_LINK_GET_NEXT_ID, bpf_cmd::BPF_LINK_GET_FD_BY_ID, |_, link| {
        links.extend(uprobes_of(&link, own)?);
        Ok(())
    })?;
    Ok(links)
}

/// Uprobes of a link; `None` for other links, and `Some(None)` where the kernel does not describe the link, see [`uprobe_links`].
fn uprobes_of(link: &OwnedFd, own: &[u32]) -> io::Result<Option<Option<UprobeLink>>> {
    const MULTI: u32 = bpf_link_type::BPF_LINK_TYPE_UPROBE_MULTI as u32;
    const PERF: u32 = bpf_link_type::BPF_LINK_TYPE_PERF_EVENT as u32;
    const UPROBE: u32 = bpf_perf_event_type::BPF_PERF_EVENT_UPROBE as u32;
    const URETPROBE: u32 = bpf_perf_event_type::BPF_PERF_EVENT_URETPROBE as u32;
    let mut path = vec![0u8; libc::PATH_MAX.unsigned_abs() as usize];
    let path_bytes = count(path.len())?;
    let mut info = no_link_information();
    // SAFETY: all of `info` is 0.
    unsafe { link_info(link, &mut info) }?;
    if own.contains(&info.prog_id) || ![MULTI, PERF].contains(&info.type_) {
        return Ok(None);
    }
    let offsets = if info.type_ == MULTI {
        // SAFETY: the kernel has written integers there, or nothing.
        let mut offsets = vec![0u64; unsafe { info.__bindgen_anon_1.uprobe_multi.count } as usize];
        info = no_link_information();
        // SAFETY: a structure of integers.
        let multi = unsafe { &mut info.__bindgen_anon_1.uprobe_multi };
        (multi.path, multi.path_size) = (path.as_mut_ptr() as u64, path_bytes);
        (multi.offsets, multi.count) = (offsets.as_mut_ptr() as u64, count(offsets.len())?);
        if !offsets.is_empty() {
            // SAFETY: the rest of `info` is 0; `path` and `offsets` are as long as it states, and outlive the call.
            unsafe { link_info(link, &mut info) }?;
        }
        offsets
    } else {
        info = no_link_information();
        // SAFETY: a structure of integers, in which names of events of other kinds are at the same place.
        let uprobe = unsafe { &mut info.__bindgen_anon_1.perf_event.__bindgen_anon_1.uprobe };
        (uprobe.file_name, uprobe.name_len) = (path.as_mut_ptr() as u64, path_bytes);
        // SAFETY: the rest of `info` is 0; `path` is as long as it states, and outlives the call.
        unsafe { link_info(link, &mut info) }?;
        // SAFETY: the kernel has written integers there, or nothing.
        let event = unsafe { info.__bindgen_anon_1.perf_event };
        match event.type_ {
            // SAFETY: as before.
            UPROBE | URETPROBE => vec![u64::from(unsafe { event.__bindgen_anon_1.uprobe.offset })],
            0 => Vec::new(),
            _ => return Ok(None),
        }
    };
    path.truncate(path.iter().position(|&byte| byte == 0).unwrap_or(path.len()));
    let is_described = !offsets.is_empty() && !path.is_empty();
    Ok(Some(is_described.then(|| UprobeLink { path: OsString::from_vec(path).into(), offsets })))
}

fn no_link_information() -> bpf_link_info {
    // SAFETY: a structure of integers.
    unsafe { std::mem::zeroed() }
}

/// Reads the information about a link.
///
/// # Safety
/// The requirements of [`program_info`] apply.
unsafe fn link_info(link: &OwnedFd, info: &mut bpf_link_info) -> io::Result<()> {
    let mut attr = attributes();
    attr.info.bpf_fd = number(link);
    attr.info.info_len = count(size_of::<bpf_link_info>())?;
    attr.info.info = std::ptr::from_mut(info) as u64;
    // SAFETY: the kernel writes at most `info_len` bytes to `info`, which outlives the call; the caller guarantees the
    // addresses in it.
    unsafe { command(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.map(drop)
}

/// Time that a preempted program may need to complete where `membarrier` is not available.
const PATIENCE: Duration = Duration::from_millis(50);

/// Waits for running probe programs, also preempted ones: they are RCU readers (`uprobe_prog_run`,
/// `bpf_prog_run_array_uprobe`), and `MEMBARRIER_CMD_GLOBAL` waits 10 to 30 ms for a grace period
/// (kernel/sched/membarrier.c, Linux 4.3). With one CPU or with `nohz_full` it does not wait, so this sleeps instead.
pub fn wait_for_programs() {
    let has_one_cpu = thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    if has_one_cpu || membarrier(MembarrierCommand::Global).is_err() {
        thread::sleep(PATIENCE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::maps;
    use crate::uprobe::open_uprobe;

    #[inline(never)]
    extern "C" fn probed() {}

    #[test]
    fn uprobes_of_links_of_other_programs_are_listed() {
        let pid = Pid(std::process::id());
        let address = heapbpf_base::address::TargetAddr(probed as *const () as u64);
        let mappings = maps::executable_mappings(pid).expect("readable");
        let mapping = mappings.iter().find(|at| (at.start..at.end).contains(&address)).expect("the code is mapped");
        let offset = address.0 - mapping.start.0 + mapping.offset.0;
        let path = std::env::current_exe().expect("procfs is mounted");
        let multi = load_nothing(AttachType::UprobeMulti).expect("it can be loaded");
        let link = MultiLink { path: &path, offsets: &[offset], cookies: &[0], pid: Some(pid), at_return: false };
        let _multi_link = link_multi(&multi, AttachType::UprobeMulti, link).expect("it can be attached");
        let perf = load_nothing(AttachType::PerfEvent).expect("it can be loaded");
        let event = open_uprobe(&path, offset, Some(pid), false).expect("it can be probed");
        let _perf_link = link_perf(&perf, event, 0).expect("it can be attached");
        let expected = UprobeLink { path, offsets: vec![offset] };
        let listed = |own: &[u32]| {
            let links = uprobe_links(own).expect("root may list them");
            links.into_iter().flatten().filter(|link| *link == expected).count()
        };
        let ids = [&multi, &perf].map(|program| program_id(program).expect("it is loaded"));
        assert_eq!([listed(&[]), listed(&ids[..1]), listed(&ids)], [2, 1, 0]);
        let twin = load_nothing(AttachType::UprobeMulti).expect("it can be loaded");
        let id = program_id(&twin).expect("it is loaded");
        let equal = equal_programs(&multi).expect("root may list them");
        assert!(equal.contains(&ids[0]) && equal.contains(&id), "{equal:?}");
    }
}
