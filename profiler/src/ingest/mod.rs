//! From ring buffer records to events.

pub(crate) mod decode;
pub(crate) mod event;
