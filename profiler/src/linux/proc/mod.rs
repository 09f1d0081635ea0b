pub(crate) mod maps;
pub(crate) mod process;
pub(crate) mod stat;

pub(crate) use process::ProcError;
