//! The modules of a recording on this machine: taken only where they are what they were.

use std::path::Path;
use std::sync::Arc;

use super::entry::ModuleFacts;
use crate::object::ObjectError;
use crate::object::elf::BuildId;
use crate::object::module::{Module, Modules, Recorded};
use crate::object::open::open_regular;

/// Modules as far as there are any.
#[derive(Debug)]
pub struct Found {
    /// All of the recording, in their order; those that are not here have no file.
    pub modules: Modules,
    /// Files that are not here, and why they are not taken.
    pub missing: Vec<(String, &'static str)>,
}

/// The modules of a recording. Files are opened only where they are `needed`.
pub fn find(facts: &[ModuleFacts], needed: bool) -> Found {
    let mut missing = Vec::new();
    let modules = facts.iter().map(|facts| {
        let absent = || Module::recorded(&facts.path, Err(ObjectError::NoFile), told(facts));
        if !needed || !facts.path.starts_with('/') {
            return Arc::new(absent());
        }
        match open(facts) {
            Ok(module) => Arc::new(module),
            Err(why) => {
                missing.push((facts.path.clone(), why));
                Arc::new(absent())
            }
        }
    });
    let modules = modules.collect();
    Found { modules, missing }
}

/// What the recording says of it.
fn told(facts: &ModuleFacts) -> Recorded {
    Recorded { build_id: facts.build_id.as_deref().and_then(BuildId::recorded), code: facts.code.clone() }
}

fn open(facts: &ModuleFacts) -> Result<Module, &'static str> {
    let image = open_regular(Path::new(&facts.path)).map_err(|_| "not found")?;
    let identity = image.identity();
    let module = Module::recorded(&facts.path, Ok(image), told(facts));
    let is_same = match (&facts.build_id, module.build_id()) {
        (Some(recorded), Some(own)) => recorded.as_slice() == own.as_bytes(),
        (None, None) => facts.file == Some((identity.size_bytes, identity.modified.0, identity.modified.1)),
        _ => false,
    };
    if is_same { Ok(module) } else { Err("another build") }
}
