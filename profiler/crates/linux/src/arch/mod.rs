//! Code that depends on the CPU. Support for another CPU is another file with the same items.

mod restart;

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(target_arch = "aarch64")]
mod aarch64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;

/// The part of the aarch64 code without assembly and system calls, tested on every CPU.
#[cfg(all(test, not(target_arch = "aarch64")))]
#[path = "aarch64/registers.rs"]
#[expect(unreachable_pub, reason = "what is public on that processor is private to tests here")]
mod aarch64_registers;
#[cfg(all(test, not(target_arch = "aarch64")))]
#[path = "aarch64/threads.rs"]
#[expect(unreachable_pub, reason = "what is public on that processor is private to tests here")]
mod aarch64_threads;

#[cfg(not(any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))))]
compile_error!("heapbpf supports x86-64 and little-endian aarch64 only");

/// Information in a thread's registers about a system call that a stop has interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    /// The registers show the whole call, or that there is none.
    Visible,
    /// The call has failed with `EINTR`, and its first argument is not among the registers.
    Failed,
    /// The call is about to be made again, or for the first time. A signal handler that runs first may change that, depending on an
    /// error number that is not among the registers.
    Rewound,
}
