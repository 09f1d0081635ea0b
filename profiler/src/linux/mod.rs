//! System calls and procfs. The only folder of the agent with `unsafe`.

pub(crate) mod arch;
pub(crate) mod attempt;
pub(crate) mod bpf;
pub(crate) mod bpf_feature;
pub(crate) mod bpf_map;
pub(crate) mod clock;
pub(crate) mod companion;
pub(crate) mod confinement;
pub(crate) mod feature;
pub(crate) mod files;
pub(crate) mod folder;
mod invoker;
pub(crate) mod known;
pub(crate) mod listener;
pub(crate) mod memory;
pub(crate) mod patience;
pub(crate) mod pidfd;
pub(crate) mod place;
pub(crate) mod proc;
pub(crate) mod process_memory;
pub(crate) mod ptrace;
pub(crate) mod rights;
pub(crate) mod scheduling;
pub(crate) mod signals;
pub(crate) mod spawn;
pub(crate) mod walk;
