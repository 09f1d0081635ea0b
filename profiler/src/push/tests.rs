//! The queue on disk, requests of windows, and connections to servers that misbehave.

mod payload;
mod queue;
mod sending;
