//! Synthetic modules for tests.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;

use crate::object::symbols::{DefinedFunction, SymbolSource};
use crate::process::definitions::Candidate;
use crate::process::link_map::LinkPosition;

/// Returns a library that exports these functions.
pub(crate) fn candidate(module: u32, path: &str, functions: &[(&str, u64)]) -> Candidate {
    let mut functions: Vec<DefinedFunction> = functions.iter().map(|&(name, offset)| function(name, offset)).collect();
    functions.sort_unstable();
    Candidate {
        module: ModuleId(module),
        path: path.into(),
        is_executable: false,
        is_static: false,
        is_go: false,
        imports_operator_new: false,
        link: None,
        functions: functions.into(),
    }
}

/// Returns an executable that exports these functions.
pub(crate) fn executable(path: &str, functions: &[(&str, u64)]) -> Candidate {
    Candidate { is_executable: true, ..candidate(1000, path, functions) }
}

/// Returns the module at this position of the linker's order.
pub(crate) fn linked(candidate: Candidate, index: u16) -> Candidate {
    Candidate { link: Some(LinkPosition { namespace: 0, index }), ..candidate }
}

/// Returns the module with local functions only.
pub(crate) fn local(candidate: Candidate) -> Candidate {
    let local = |function: &DefinedFunction| DefinedFunction {
        global: false,
        source: SymbolSource::Static,
        ..function.clone()
    };
    Candidate { functions: candidate.functions.iter().map(local).collect(), ..candidate }
}

fn function(name: &str, offset: u64) -> DefinedFunction {
    DefinedFunction {
        name: name.to_owned(),
        offset: FileOffset(offset),
        size_bytes: 1,
        source: SymbolSource::Dynamic,
        indirect: false,
        global: true,
    }
}
