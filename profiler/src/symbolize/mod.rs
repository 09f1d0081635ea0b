//! snapshot ─▶ `names` ─▶ address space: module + offset ─▶ `Resolve` (sandbox) ─▶ functions, lines ─▶ frames

pub(crate) mod demangle;
pub(crate) mod element;
mod names;
pub(crate) mod profile;
pub(crate) mod resolver;
pub(crate) mod sandbox;
pub(crate) mod trim;
pub(crate) mod types;

pub(crate) use names::{Resolve, ResolvedFrame};
