//! The name by which reports show the executable of a process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An executable that was started by a link to its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Path of the executable, as in the process's mappings.
    pub path: Arc<str>,
    /// Path of the link that it was started by.
    pub started_as: Arc<str>,
}

/// Returns the path of a module as reports show it: the link that the program was started by in place of its file.
pub fn shown_path<'a>(program: Option<&'a Program>, module: &'a Arc<str>) -> &'a Arc<str> {
    program.filter(|program| program.path == *module).map_or(module, |program| &program.started_as)
}
