//! What to print of missing names.

use super::text::printable;
use crate::model::{NamesFrom, Symbolization, SymbolizationFailure};

/// A line for each module whose names are missing.
pub(super) fn missing_names(symbolization: &Symbolization) -> impl Iterator<Item = String> {
    symbolization.failures.iter().map(|SymbolizationFailure { module, reason, names }| {
        let names = match names {
            NamesFrom::SymbolTable => "from the symbol table alone",
            NamesFrom::Nothing => "missing",
        };
        printable(&format!("names of {module}: {names}: {reason}")).into_owned()
    })
}

/// What the symbolizer is not isolated from.
pub(super) fn missing_isolation(symbolization: &Symbolization) -> Option<String> {
    let missing: Vec<String> = symbolization.isolated(false).map(|part| printable(part).replace('_', " ")).collect();
    (!missing.is_empty())
        .then(|| format!("symbolizer: not isolated ({}): the kernel refused; see `heapbpf doctor`", missing.join(", ")))
}
