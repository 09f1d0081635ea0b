//! The `bpf` system call for what aya 0.14 does not offer: programs and links of uprobe sessions and multi-uprobes.
//!
//! The structures are the beginnings of `union bpf_attr` for each command
//! (<https://github.com/torvalds/linux/blob/v6.13/include/uapi/linux/bpf.h#L1527-L1790>); the kernel takes what is not
//! passed as 0.

#![expect(unsafe_code, reason = "aya 0.14 has no uprobe_multi and no uprobe session")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use aya_obj::generated::bpf_insn;

use crate::ids::Pid;

/// How a program will be attached; the kernel checks it again when a link is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachType {
    /// Perf events (`BPF_PERF_EVENT`): nothing is checked when the program is loaded.
    PerfEvent,
    /// `BPF_TRACE_UPROBE_MULTI` (Linux 6.6): entries, or returns, of many functions.
    UprobeMulti,
    /// `BPF_TRACE_UPROBE_SESSION` (Linux 6.13): entries and, where the program wishes, returns of many functions.
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
    /// At most 15 bytes of it are kept.
    pub name: &'a str,
    /// Relocated instructions.
    pub instructions: &'a [bpf_insn],
    /// Licence, as the object states it.
    pub license: &'a std::ffi::CStr,
    /// How it will be attached.
    pub attach_type: AttachType,
    /// Types and lines, for functions that are verified by themselves.
    pub btf: Option<ProgramBtf<'a>>,
}

/// A program's BTF.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBtf<'a> {
    /// The object's BTF, loaded.
    pub btf: &'a OwnedFd,
    /// Records of functions, and the size of one.
    pub functions: (&'a [u8], usize),
    /// Records of lines, and the size of one.
    pub lines: (&'a [u8], usize),
}

/// A refused program: the system's word, and the verifier's.
#[derive(Debug, thiserror::Error)]
#[error("{error}: {log}")]
pub struct ProgramRefused {
    /// The system's word.
    pub error: io::Error,
    /// The verifier's log.
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

/// Enough for the log of a program that is refused early; the whole of a long one is cut by the kernel.
const LOG_BYTES: usize = 1 << 20;

/// Runs a command that gives a descriptor.
///
/// # Safety
///
/// `attr` must be the command's, and the memory that it points to must be as the command wants it.
unsafe fn command<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller vouches for `attr`, whose size is passed with it; these commands return a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>())) }
}

/// The descriptor that a system call has returned, or why it has not.
///
/// # Safety
///
/// The result must be that of a system call that returns a new descriptor.
pub(super) unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the caller vouches that it is new, so nobody else owns it.
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

/// Loads a program.
///
/// # Errors
///
/// The kernel's, with the verifier's log.
pub fn load_program(program: ProgramLoad<'_>) -> Result<OwnedFd, ProgramRefused> {
    // Without a log first: writing one takes longer than verifying.
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
    // SAFETY: every pointer is to a slice or string that outlives the call, with its length; the kernel writes to `log`
    // alone.
    unsafe { command(BPF_PROG_LOAD, &mut attr) }
}

/// Where a multi-uprobe link attaches.
#[derive(Clone, Copy, Debug)]
pub struct MultiLink<'a> {
    /// The file.
    pub path: &'a Path,
    /// Instructions in it.
    pub offsets: &'a [u64],
    /// What the program is told at each.
    pub cookies: &'a [u64],
    /// The process, or all.
    pub pid: Option<Pid>,
    /// At returns instead of entries; sessions see both.
    pub at_return: bool,
}

/// Attaches a program to many instructions of a file. Closing the descriptor detaches.
///
/// # Errors
///
/// The kernel's: `EBADF` for what is no regular file, `EINVAL` where the attach type is not known.
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
    // SAFETY: `attr` points to nothing.
    unsafe { command(BPF_LINK_CREATE, &mut attr) }
}

/// A program that does nothing: `r0 = 0; exit`.
pub(crate) fn load_nothing(attach_type: AttachType) -> Result<OwnedFd, ProgramRefused> {
    let instructions = [instruction(0xb7), instruction(0x95)];
    load_program(ProgramLoad { name: "nothing", instructions: &instructions, license: c"GPL", attach_type, btf: None })
}

/// A program that uses 64 bytes of stack, as few as make Linux 6.13 and later give it a private stack
/// (`BPF_PRIV_STACK_MIN_SIZE` in `kernel/bpf/verifier.c`).
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

/// Whether the kernel makes links of this type. Loading alone says nothing: kernels that lack them accept the programs.
/// A link to what is no regular file is refused with `EBADF` after the type has been accepted, and with `EINVAL` before.
///
/// # Errors
///
/// When the kernel does neither, so that it could not be told.
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
