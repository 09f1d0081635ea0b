//! What the operating system allows and tells. The only folder of the agent with `unsafe`.

pub mod bpf;
pub mod buffer;
pub mod calibration;
pub mod capability;
pub mod channel;
pub mod clock;
pub mod companion;
pub mod deferral;
pub mod feature;
pub mod grace_period;
pub mod inherited;
pub mod input;
pub mod limits;
pub mod map_batch;
pub mod map_memory;
pub mod memory;
pub mod page_scan;
pub mod pid;
pub mod pidfd;
pub mod process_memory;
pub mod program_info;
pub mod ptrace;
pub mod readiness;
pub mod replacement;
pub mod signals;
pub mod spawn;
