//! Takes from this process all that reading passed descriptors does not need: capabilities, other files, system calls, memory
//! without a limit.
//!
//! Files are named by paths in libraries that map them, so descriptors need paths. The root directory becomes an empty one of
//! the process's own in which only `/fd/N` leads anywhere: to descriptor N (`/proc/self/fd`, proc_pid_fd(5)).

#![expect(unsafe_code, reason = "namespaces and descriptors are changed for a process that has one thread")]

use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal, chdir, chroot, getegid, geteuid, pivot_root};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags};
use serde::{Deserialize, Serialize};

use super::syscall_filter;

/// What the process may use at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Memory that is not a file's, in bytes.
    pub memory_bytes: u64,
    /// Addresses, mapped files among them, in bytes.
    pub address_space_bytes: u64,
    /// Bytes of the stack.
    pub stack_bytes: u64,
    /// CPU time.
    pub cpu_time: Duration,
}

/// Which files the process can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Root {
    /// An empty directory in a mount namespace of its own, with `/fd`.
    Private,
    /// `/proc/self/fd` as its root directory.
    Descriptors,
    /// All that this user can.
    Shared,
}

impl Root {
    /// The directory whose entries are the descriptors of this process.
    pub(crate) fn descriptors(self) -> &'static str {
        match self {
            Self::Private => "/fd",
            Self::Descriptors => "/",
            Self::Shared => "/proc/self/fd",
        }
    }
}

/// What is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Confinement {
    /// The files in reach.
    pub root: Root,
    /// The process has no capability, and can gain none.
    pub without_capabilities: bool,
    /// System calls outside of the list end the process.
    pub filtered: bool,
    /// Memory and CPU time are limited.
    pub limited: bool,
}

impl Confinement {
    /// Names of all parts, and whether each is in force.
    pub(crate) fn parts(&self) -> [(&'static str, bool); 4] {
        [
            ("files", self.root != Root::Shared),
            ("capabilities", self.without_capabilities),
            ("system_calls", self.filtered),
            ("limits", self.limited),
        ]
    }
}

/// Confines this process for good, as far as the kernel allows. Call it on the main thread and before there is another one:
/// capabilities and namespaces are a thread's. Descriptors stay open; standard output and standard error lead nowhere.
pub(crate) fn confine(limits: &Limits) -> Confinement {
    // When the agent is killed, nobody waits for this process's answers. A closed channel ends an idle process alone.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null");
    let root = root();
    let limited = limit(limits).is_ok();
    let without_capabilities = drop_capabilities().is_ok();
    if let Ok(nowhere) = nowhere {
        // A process that was taken over must not write to the user's terminal.
        let _ = rustix::stdio::dup2_stdout(&nowhere);
        let _ = rustix::stdio::dup2_stderr(&nowhere);
    }
    let filtered = syscall_filter::install().is_ok();
    Confinement { root, without_capabilities, filtered, limited }
}

/// Closes what other programs have left open for this one, the standard descriptors excepted. Call it before anything is opened.
pub(crate) fn close_inherited() {
    // SAFETY: nothing in this process owns a descriptor yet beside the standard ones.
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

/// Makes a mount namespace; without the privilege, in a user namespace, where any user has it.
fn own_namespace() -> io::Result<()> {
    // SAFETY: the process has one thread, and no descriptor that could lead out of the namespace stays open.
    if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }.is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // The maps belong to root where the program has capabilities of its own, unless it may be dumped.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // SAFETY: as above.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Directories to mount the new root on; what they hold stays as it is for everybody else.
const PLACES: [&str; 4] = ["/tmp", "/dev", "/run", "/sys"];

fn private_root() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let options: &CStr = c"size=64k,nr_inodes=256,mode=0700";
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let mounted = |place: &&'static str| mount("heapbpf", *place, "tmpfs", flags, Some(options)).is_ok();
    let place = PathBuf::from(PLACES.into_iter().find(mounted).ok_or(io::ErrorKind::PermissionDenied)?);
    let descriptors = place.join("fd");
    fs::create_dir(&descriptors)?;
    mount_bind("/proc/self/fd", &descriptors)?;
    chdir(&place)?;
    // The old root goes on top of the new one, from where it is taken away (pivot_root(2)).
    if pivot_root(".", ".").is_ok() {
        unmount(".", UnmountFlags::DETACH)?;
    } else {
        // The first root of a machine cannot be exchanged.
        chroot(".")?;
    }
    chdir("/")?;
    Ok(())
}

fn limit(limits: &Limits) -> io::Result<()> {
    let both = |value| Rlimit { current: Some(value), maximum: Some(value) };
    let stack = rustix::process::getrlimit(Resource::Stack);
    if stack.maximum.is_none_or(|maximum| maximum >= limits.stack_bytes) {
        let _ = rustix::process::setrlimit(
            Resource::Stack,
            Rlimit { current: Some(limits.stack_bytes), maximum: Some(limits.stack_bytes) },
        );
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
    // Nobody else of this user may look into it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
