//! From addresses to names.
//!
//! ```text
//! snapshot ─▶ names ─▶ address space: module + offset ─▶ Resolve (sandbox): functions, lines ─▶ names ─▶ frames
//! ```

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::model::Symbolization;
use crate::object::module::Module;

pub(crate) mod code;
pub(crate) mod debug_file;
pub(crate) mod demangle;
pub(crate) mod element;
mod history;
mod inflate;
pub(crate) mod names;
pub(crate) mod profile;
pub(crate) mod qualified;
pub(crate) mod resolver;
pub(crate) mod sandbox;
mod threads;
pub(crate) mod trim;
pub(crate) mod types;
mod vtable;

/// One function that was active at an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResolvedFrame {
    /// Demangled name, if it has one.
    pub function: Option<Arc<str>>,
    /// Source file, if that is known.
    pub file: Option<Arc<str>>,
    /// Line in it.
    pub line: Option<u32>,
    /// Its call was inlined into the next function.
    pub inlined: bool,
}

/// Gives names to places in modules.
pub trait Resolve {
    /// The functions active at each of these offsets, the innermost first; none where nothing is known. One result per
    /// offset, in their order. Offsets lie inside instructions: a return address must have been put inside its call.
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>>;

    /// How it went so far.
    fn symbolization(&self) -> Symbolization {
        Symbolization::default()
    }
}
