//! Tests of the queue on disk, of requests of windows, and of connections to servers that misbehave.

mod payload;
mod queue;
mod sending;
