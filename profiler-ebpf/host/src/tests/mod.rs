//! Walks through memory that is written here.

mod cpython;
mod hostile;
mod hotspot;
