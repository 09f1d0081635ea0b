//! `/proc`, reduced to what heapbpf needs. Opening mapped files is the task of [`object`](crate::object).

pub(crate) mod maps;
pub(crate) mod process;
pub(crate) mod stat;

pub(crate) use process::ProcError;
