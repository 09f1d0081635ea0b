//! The walkers of the kernel side, compiled for this machine: the same files, which read a copied process instead of the current one.
//!
//! What they need of the kernel is in the modules of this folder: maps, helpers, instructions and globals. Each has as much of the
//! original as the walkers use.

#![allow(missing_docs, reason = "for tests")]
#![allow(dead_code, reason = "of parts that the kernel side uses elsewhere")]
#![allow(
    clippy::implicit_saturating_sub,
    clippy::manual_range_contains,
    reason = "the verifier wants the comparisons of the walkers"
)]

mod asm;
#[path = "../../src/code.rs"]
mod code;
mod config;
#[path = "../../src/cpython.rs"]
mod cpython;
#[path = "../../src/frames.rs"]
mod frames;
mod helpers;
#[path = "../../src/hotspot.rs"]
mod hotspot;
#[path = "../../src/interpreter.rs"]
mod interpreter;
#[path = "../../src/layout.rs"]
mod layout;
#[path = "../../src/machine.rs"]
mod machine;
mod maps;
mod memory;
#[path = "../../src/php.rs"]
mod php;
mod process;
mod random;
mod returns;
#[path = "../../src/ruby.rs"]
mod ruby;
#[path = "../../src/seen.rs"]
mod seen;
#[cfg(test)]
mod tests;
#[path = "../../src/v8.rs"]
mod v8;
#[path = "../../src/walk.rs"]
mod walk;
#[path = "../../src/window.rs"]
mod window;

pub use memory::{Memory, Page};
pub use process::{Process, Runtimes, Thread, Walked};
pub use random::Random;
