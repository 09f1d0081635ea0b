//! Errors of loading the kernel side.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use thiserror::Error;

/// Environment variable with the path of an object to load instead of the built-in one: the debug object, or a rebuilt one.
pub(crate) const OBJECT_VARIABLE: &str = "HEAPBPF_BPF_OBJECT";

#[derive(Debug, Error)]
pub enum LoadError {
    #[error(
        "this kernel has no `{0}` links (multi needs Linux 6.6, session 6.13); omit `--backend` to use the best available"
    )]
    NoLinks(&'static str),
    /// Perf events for uprobes need more privileges than the other two (`perf_uprobe_event_init` in `kernel/events/core.c`).
    #[error(
        "not allowed: probes by perf events, the only kind available here, need CAP_SYS_ADMIN; run heapbpf with `sudo`"
    )]
    NeedsAdmin,
    /// The kernel has no uprobes, or sysfs is not mounted.
    #[error(
        "this kernel has no uprobes: `{0}` is missing (needs CONFIG_UPROBES and CONFIG_UPROBE_EVENTS, and sysfs mounted at /sys)"
    )]
    NoUprobes(PathBuf),
    #[error("this kernel has no BPF: the system call is not there (needs CONFIG_BPF_SYSCALL)")]
    NoBpf,
    #[error(
        "not enough kernel memory for heapbpf's maps: lower `--ring-size`, `--unwind-memory` or `--live-blocks`, or raise the \
         memory limit of heapbpf's control group (`memory.max`)"
    )]
    NoMemory,
    #[error(
        "too many open files: heapbpf needs about 50 for its maps and programs, and more for its targets; raise the limit (`ulimit -n`)"
    )]
    NoDescriptors,
    #[error("cannot read the BPF object `{path}` named by {OBJECT_VARIABLE}: {source}")]
    Object { path: PathBuf, source: io::Error },
    #[error("the kernel rejects heapbpf's programs: {0}; run `heapbpf doctor` and see docs/kernel-support.md")]
    Refused(#[from] EbpfError),
    #[error("the kernel rejects the program `{name}`: {reason}; run `heapbpf doctor` and see docs/kernel-support.md")]
    Program { name: &'static str, reason: String },
    #[error("cannot relocate the BPF object: {0}")]
    Relocation(String),
    #[error(
        "the kernel gives the program `{0}` a private stack, which threads that preempt each other would overwrite; \
         heapbpf does not attach it: see docs/kernel-support.md, and please report the kernel's version"
    )]
    PrivateStack(&'static str),
    #[error("the BPF object has no `{0}`: it is of another version than this binary")]
    Missing(&'static str),
    #[error("cannot set the addresses of probes: {0}")]
    Probes(String),
    #[error("BPF map `{name}`: {source}")]
    Map { name: &'static str, source: aya::maps::MapError },
}

impl LoadError {
    /// A rejected program. The last lines of the verifier's log state the reason; the rest goes to heapbpf's log.
    pub(super) fn program(name: &'static str, text: &str) -> Self {
        const LINES: usize = 6;
        tracing::info!("{text}");
        let lines: Vec<&str> = text.lines().collect();
        let reason = if lines.len() <= LINES {
            text.to_owned()
        } else {
            let first: String = lines[0].chars().take(120).collect();
            format!("{first} … {}", lines[lines.len() - LINES..].join("\n"))
        };
        Self::Program { name, reason }
    }
}

/// A missing system call and missing memory have their own messages: the programs are not the cause.
pub(super) fn refused(error: EbpfError) -> LoadError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            Some(libc::ENOSYS) => return LoadError::NoBpf,
            Some(libc::ENOMEM) => return LoadError::NoMemory,
            Some(libc::EMFILE) => return LoadError::NoDescriptors,
            _ => cause = error.source(),
        }
    }
    LoadError::Refused(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_bpf_and_exhausted_resources_have_their_own_errors() {
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::ENOSYS) };
        assert!(matches!(refused(error), LoadError::NoBpf));
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::ENOMEM) };
        assert!(matches!(refused(error), LoadError::NoMemory));
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::EMFILE) };
        assert!(matches!(refused(error), LoadError::NoDescriptors));
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::EPERM) };
        assert!(matches!(refused(error), LoadError::Refused(_)));
    }
}
