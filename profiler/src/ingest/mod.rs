//! From the ring's bytes to events.

pub(crate) mod decode;
pub(crate) mod event;
