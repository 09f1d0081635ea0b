//! Interpreters and virtual machines in processes: where they keep the frames of the functions that they execute. The kernel side
//! reads the frames (`profiler-ebpf/src/interpreter.rs`, `hotspot.rs`); this module finds the addresses and offsets.

mod arch;
pub(crate) mod cpython;
pub(crate) mod hotspot;
