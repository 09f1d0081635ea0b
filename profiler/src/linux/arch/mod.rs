//! What depends on the CPU. Support for another CPU is another file with the same items.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("heapbpf supports x86-64 only");
