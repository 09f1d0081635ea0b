//! From addresses to names.
//!
//! ```text
//! snapshot ─▶ names ─▶ address space: module + offset ─▶ Resolve (sandbox): functions, lines ─▶ names ─▶ frames
//! ```

mod debug_file;
pub(crate) mod demangle;
pub(crate) mod element;
mod history;
mod names;
pub(crate) mod profile;
mod resolve;
pub(crate) mod resolver;
pub(crate) mod sandbox;
pub(crate) mod trim;
pub(crate) mod types;

pub(crate) use resolve::{Resolve, ResolvedFrame};
