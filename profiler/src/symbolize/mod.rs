//! snapshot ─▶ `names` ─▶ address space: module + offset ─▶ `Resolve` (sandbox) ─▶ functions, lines ─▶ frames

mod advice;
pub(crate) mod demangle;
pub(crate) mod element;
pub(crate) mod generated;
mod lacking;
pub(crate) mod later;
mod names;
mod package;
pub(crate) mod profile;
pub(crate) mod resolver;
pub(crate) mod sandbox;
pub(crate) mod sources;
mod translate;
pub(crate) mod trim;
pub(crate) mod types;

pub(crate) use names::{Resolve, ResolvedFrame};
