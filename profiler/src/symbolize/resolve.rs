//! The interface of symbolization.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::model::Symbolization;
use crate::object::module::Module;

/// A function that was active at an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResolvedFrame {
    /// Demangled, if known.
    pub function: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
    pub line: Option<u32>,
    /// Its call was inlined into the next function.
    pub inlined: bool,
}

/// Symbolizes locations in modules.
pub trait Resolve {
    /// Returns for each offset, in order, the functions active there, innermost first; none if unknown. Offsets lie
    /// inside instructions: return addresses must be adjusted.
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>>;

    fn symbolization(&self) -> Symbolization {
        Symbolization::default()
    }
}
