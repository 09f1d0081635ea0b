//! The system calls that a process which parses hostile files may still make.

use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// What reading files, allocating memory, exchanging messages and exiting take. None of them acts on another process, on the
/// network or on a file's contents.
const ALLOWED: &[i64] = &[
    // Messages.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_poll,
    libc::SYS_ppoll,
    // Files.
    libc::SYS_close,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_fcntl,
    // Names for passed descriptors, in a root directory that nobody else sees.
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // The runtime.
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

/// Calls that are allowed where an argument (its index) has none of these bits.
const WITHOUT_BITS: &[(i64, u8, u64)] = &[
    // Only for reading.
    (libc::SYS_openat, 2, (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64),
    (libc::SYS_open, 1, (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC) as u64),
    // No code but heapbpf's.
    (libc::SYS_mmap, 2, libc::PROT_EXEC as u64),
    (libc::SYS_mprotect, 2, libc::PROT_EXEC as u64),
];

/// Installs the filter for this process for good. Any other system call ends the process by `SIGSYS`.
///
/// # Errors
///
/// When the kernel has no seccomp filters, or the process may still gain privileges (`no_new_privs` is not set).
pub(super) fn install() -> io::Result<()> {
    let program = program().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| match error {
        seccompiler::Error::Seccomp(error) | seccompiler::Error::Prctl(error) => error,
        error => io::Error::other(error),
    })
}

fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: Vec<(i64, Vec<SeccompRule>)> = ALLOWED.iter().map(|&number| (number, Vec::new())).collect();
    for &(number, argument, bits) in WITHOUT_BITS {
        let without = SeccompCmpOp::MaskedEq(bits);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, without, 0)?;
        rules.push((number, vec![SeccompRule::new(vec![condition])?]));
    }
    // What `abort` does.
    let abort =
        SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(libc::SIGABRT.unsigned_abs()))?;
    rules.push((libc::SYS_tgkill, vec![SeccompRule::new(vec![abort])?]));
    let filter = SeccompFilter::new(
        rules.into_iter().collect(),
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        TargetArch::x86_64,
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
