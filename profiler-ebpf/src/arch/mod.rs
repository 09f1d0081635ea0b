//! Registers, as a probe sees them. All of the kernel side that depends on the processor is here and in `profiler-common`'s `arch`.

#[cfg(bpf_target_arch = "aarch64")]
mod aarch64;
#[cfg(not(bpf_target_arch = "aarch64"))]
mod x86_64;

#[cfg(bpf_target_arch = "aarch64")]
pub(crate) use aarch64::*;
#[cfg(not(bpf_target_arch = "aarch64"))]
pub(crate) use x86_64::*;
