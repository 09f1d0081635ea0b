//! What modules without names have, and what would help.

use heapbpf_ledger::model::{SymbolSource, UnnamedModule};

use super::lacking::{Lacking, LackingModule, significant};
use super::names::Resolve;
use super::package::debug_package;
use crate::object::module::Modules;

/// Minimum share of the profile's bytes of a module to list.
const UNNAMED_SHARE_MIN: f64 = 0.01;
const UNNAMED_MODULES_MAX: usize = 16;

/// `known` are those of a recording, which this machine may not have.
pub(super) fn unnamed_modules(
    lacking: &Lacking,
    modules: &Modules,
    resolver: &dyn Resolve,
    known: &[UnnamedModule],
) -> Vec<UnnamedModule> {
    let unnamed =
        significant(lacking, |module| module.unnamed_bytes, UNNAMED_SHARE_MIN).filter(|_| resolver.symbolizes());
    let describe = |(lacking, share): (&LackingModule, f64)| {
        let module = modules.get(lacking.module);
        let recorded = known.iter().find(|known| *known.module == **module.path());
        let symbols = resolver.symbols_of(module).or(recorded.map(|it| it.symbols)).unwrap_or(SymbolSource::Unknown);
        let package = || debug_package(module).or_else(|| recorded.and_then(|it| it.package.clone()));
        UnnamedModule {
            module: module.path().to_string(),
            build_id: module.build_id().map(ToString::to_string),
            share,
            symbols,
            package: (symbols != SymbolSource::DebugInformation).then(package).flatten(),
        }
    };
    unnamed.take(UNNAMED_MODULES_MAX).map(describe).collect()
}
