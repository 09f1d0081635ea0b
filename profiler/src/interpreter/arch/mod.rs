//! What depends on the CPU. Pure, so both are compiled and tested on every CPU.

#[cfg_attr(
    not(target_arch = "aarch64"),
    allow(dead_code, unused_imports, reason = "for another processor; tested on all")
)]
mod aarch64;
mod thread_local;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for another processor; tested on all"))]
mod x86_64;

pub(super) use self::thread_local::ThreadLocal;
#[cfg(target_arch = "aarch64")]
pub(super) use aarch64::*;
#[cfg(not(target_arch = "aarch64"))]
pub(super) use x86_64::*;
