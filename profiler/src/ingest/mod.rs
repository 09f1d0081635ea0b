//! From the ring's bytes to events.

pub mod decode;
pub mod event;
