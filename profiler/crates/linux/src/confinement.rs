//! Confines this process. Libraries that map files open them by path, so the root directory becomes an empty one with
//! only `/fd/N` (`/proc/self/fd`, proc_pid_fd(5)).

#![expect(unsafe_code, reason = "changes namespaces and descriptors of a process that has one thread")]

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::arch::{LEGACY_OPEN, LEGACY_SYSCALLS_ALLOWED, SECCOMP_ARCH};
use crate::place::null_device;
use crate::proc::writable;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, chdir, chroot, getegid, geteuid, pivot_root};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub memory_bytes: u64,
    pub address_space_bytes: u64,
    pub stack_bytes: u64,
    pub cpu_time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Root {
    /// The root is an empty directory in a private mount namespace, with `/fd`.
    Private,
    Descriptors,
    Shared,
}

impl Root {
    pub fn descriptors(self) -> &'static str {
        match self {
            Self::Private => "/fd",
            Self::Descriptors => "/",
            Self::Shared => "/proc/self/fd",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    pub root: Root,
    pub without_capabilities: bool,
    pub filtered: bool,
    pub limited: bool,
}

impl Confinement {
    pub fn parts(&self) -> [(&'static str, bool); 4] {
        [
            ("files", self.root != Root::Shared),
            ("capabilities", self.without_capabilities),
            ("system_calls", self.filtered),
            ("limits", self.limited),
        ]
    }
}

/// Confines this process permanently, as far as the kernel allows. Call it before there is a second thread:
/// capabilities and namespaces are per thread. Standard output and standard error become `/dev/null`.
pub fn confine(limits: &Limits) -> Confinement {
    // A closed channel ends only an idle process: when the agent is killed, its answers are useless.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let nowhere = null_device();
    let root = root();
    let limited = limit(limits).is_ok();
    let without_capabilities = drop_capabilities().is_ok();
    if let Ok(nowhere) = nowhere {
        // A compromised process must not write to the user's terminal.
        silence(&nowhere);
    }
    let filtered = install_syscall_filter().is_ok();
    Confinement { root, without_capabilities, filtered, limited }
}

/// Replaces standard output and standard error.
fn silence(nowhere: &File) {
    let _ = rustix::stdio::dup2_stdout(nowhere);
    let _ = rustix::stdio::dup2_stderr(nowhere);
}

/// Makes standard output and standard error `/dev/null`. A program that reads heapbpf's would wait for the end of this process too.
pub fn close_outputs() -> io::Result<()> {
    silence(&null_device()?);
    Ok(())
}

/// Closes inherited descriptors except the standard ones. Call it before anything is opened.
pub fn close_inherited() {
    // SAFETY: no value in this process owns a descriptor other than the standard ones yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

fn root() -> Root {
    if own_namespace().and_then(|()| private_root()).is_ok() {
        return Root::Private;
    }
    match chdir("/proc/self/fd").and_then(|()| chroot(".")) {
        Ok(()) => Root::Descriptors,
        Err(_) => Root::Shared,
    }
}

/// Creates a mount namespace; without the privilege to do so, in a user namespace, where any user has it.
fn own_namespace() -> io::Result<()> {
    // SAFETY: the process has one thread, and keeps no descriptor open that leads out of the namespace.
    if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // In a program with file capabilities the maps belong to root unless the process is dumpable.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    writable::write_own("setgroups", "deny")?;
    writable::write_own("uid_map", &format!("{user} {user} 1"))?;
    writable::write_own("gid_map", &format!("{group} {group} 1"))
}

/// Directories on which the new root can be mounted. Other processes do not see the mount.
const MOUNT_POINTS: [&str; 4] = ["/tmp", "/dev", "/run", "/sys"];

fn private_root() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let options: &CStr = c"size=64k,nr_inodes=256,mode=0700";
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = |point: &&'static str| mount("heapbpf", *point, "tmpfs", flags, Some(options)).is_ok();
    let point = PathBuf::from(MOUNT_POINTS.into_iter().find(mounted).ok_or(io::ErrorKind::PermissionDenied)?);
    let descriptors = point.join("fd");
    fs::create_dir(&descriptors)?;
    mount_bind("/proc/self/fd", &descriptors)?;
    chdir(&point)?;
    // The old root is stacked on the new one and unmounted from there (pivot_root(2)).
    if pivot_root(".", ".").is_ok() {
        unmount(".", UnmountFlags::DETACH)?;
    } else {
        // `pivot_root` does not work on the initial ramfs.
        chroot(".")?;
    }
    chdir("/")?;
    Ok(())
}

fn limit(limits: &Limits) -> io::Result<()> {
    let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
    let stack = rustix::process::getrlimit(Resource::Stack);
    if stack.maximum.is_none_or(|maximum| maximum >= limits.stack_bytes) {
        let _ = rustix::process::setrlimit(Resource::Stack, both(limits.stack_bytes));
    }
    for (resource, value) in [
        (Resource::Data, limits.memory_bytes),
        (Resource::As, limits.address_space_bytes),
        (Resource::Cpu, limits.cpu_time.as_secs()),
        (Resource::Core, 0),
        (Resource::Fsize, 0),
        (Resource::Memlock, 0),
        (Resource::Nproc, 0),
    ] {
        let now = rustix::process::getrlimit(resource);
        let value = now.maximum.map_or(value, |maximum| maximum.min(value));
        rustix::process::setrlimit(resource, both(value))?;
    }
    Ok(())
}

fn drop_capabilities() -> io::Result<()> {
    // Kernels before 4.3 have no ambient set.
    let _ = rustix::thread::clear_ambient_capability_set();
    let none = CapabilitySet::empty();
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    rustix::thread::set_no_new_privs(true)?;
    // Other processes of this user cannot trace it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}

/// System calls that are allowed. None of them acts on another process, on the network or on a file's contents.
const ALLOWED: &[i64] = &[
    // Messages.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    // Files.
    libc::SYS_close,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_fcntl,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Rust runtime.
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Flags of files that are opened for more than reading.
const NOT_READING: u64 = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64;

/// Calls that are allowed if an argument (its index) has none of these bits.
const WITHOUT_BITS: &[(i64, u8, u64)] = &[
    // Files are opened read-only.
    (libc::SYS_openat, 2, NOT_READING),
    // No new code can be made executable.
    (libc::SYS_mmap, 2, libc::PROT_EXEC as u64),
    (libc::SYS_mprotect, 2, libc::PROT_EXEC as u64),
];

/// Installs a filter: system calls that are not allowed kill the process by `SIGSYS`. Fails without seccomp filters or
/// `no_new_privs`.
fn install_syscall_filter() -> io::Result<()> {
    let program = program().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| match error {
        seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error) => error,
        error => io::Error::other(error),
    })
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: Vec<(i64, Vec<SeccompRule>)> =
        ALLOWED.iter().chain(&LEGACY_SYSCALLS_ALLOWED).map(|&number| (number, Vec::new())).collect();
    let legacy_open = LEGACY_OPEN.map(|(number, argument)| (number, argument, NOT_READING));
    for (number, argument, bits) in WITHOUT_BITS.iter().copied().chain(legacy_open) {
        let without = SeccompCmpOp::MaskedEq(bits);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, without, 0)?;
        rules.push((number, vec![SeccompRule::new(vec![condition])?]));
    }
    // `abort` calls `tgkill` with SIGABRT.
    let abort =
        SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(libc::SIGABRT.unsigned_abs()))?;
    rules.push((libc::SYS_tgkill, vec![SeccompRule::new(vec![abort])?]));
    let filter = SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        SECCOMP_ARCH,
    )?;
    filter.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_compiles() {
        assert!(program().expect("valid rules").len() > ALLOWED.len());
    }
}
