//! System calls that are not restarted.

/// System calls that fail with `EINTR` after a stop without a signal; others restart (signal(7), "… by stop signals").
const NOT_RESTARTED: [libc::c_long; 21] = [
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    libc::SYS_io_uring_enter,
    libc::SYS_read,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_accept4,
    // These system calls fail for sockets only with a timeout. `connect` must not be restarted: it fails while the first attempt
    // is in progress.
    libc::SYS_accept,
    libc::SYS_recvmmsg,
    libc::SYS_readv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // This system call fails on tmpfs only.
    libc::SYS_fallocate,
];

/// Whether a system call that all processors have fails with `EINTR` after a stop without a signal.
pub(super) fn is_not_restarted(number: libc::c_long) -> bool {
    NOT_RESTARTED.contains(&number)
}
