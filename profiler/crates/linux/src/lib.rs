//! System calls, procfs, ptrace, and BPF objects, with the rights and time limits that a profiler run by root needs: whose right opens
//! a file, how long a call may take, and what is undone if the process is killed. The only crate of the agent with `unsafe` code.
//!
//! ```
//! use heapbpf_base::ids::Pid;
//! use heapbpf_linux::proc::maps;
//!
//! let regions = maps::regions(Pid(std::process::id()))?;
//! assert!(regions.iter().any(|region| region.executable));
//! # Ok::<(), heapbpf_linux::proc::ProcError>(())
//! ```

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests choose their names, and print to nobody's terminal")
)]
#![expect(missing_docs, reason = "what names and types say is not repeated; only heapbpf uses this crate")]

pub mod arch;
pub mod attempt;
pub mod bpf;
pub mod bpf_feature;
pub mod bpf_map;
pub mod clock;
pub mod companion;
pub mod confinement;
pub mod exec_stop;
pub mod feature;
pub mod file_map;
pub mod file_view;
pub mod files;
pub mod folder;
mod invoker;
pub mod job;
pub mod known;
pub mod listener;
pub mod memory;
pub mod patience;
pub mod pidfd;
pub mod place;
pub mod proc;
pub mod process_memory;
pub mod ptrace;
pub mod rights;
pub mod scheduling;
pub mod signals;
pub mod spawn;
pub mod uprobe;
pub mod walk;
