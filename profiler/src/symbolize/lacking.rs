//! Modules whose code lacks names, by the bytes that are affected.

use heapbpf_base::ids::ModuleId;
use rustc_hash::FxHashMap;

use crate::object::module::{Module, Modules};

/// Modules whose code lacks names or lines in some stacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lacking {
    /// Bytes of all callsites.
    pub total_bytes: u64,
    /// By falling bytes.
    pub modules: Vec<LackingModule>,
}

/// Bytes of callsites are those allocated, or live if that is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LackingModule {
    pub module: ModuleId,
    /// Of callsites through code of the module without a name.
    pub unnamed_bytes: u64,
    /// As above, without a name or without a line.
    pub unlined_bytes: u64,
}

impl Lacking {
    /// `by_module` are the bytes of callsites through code without a name, and of those through code without a name or a line.
    pub(super) fn new(total_bytes: u64, by_module: FxHashMap<ModuleId, [u64; 2]>) -> Self {
        let module = |(module, [unnamed_bytes, unlined_bytes]): (ModuleId, [u64; 2])| LackingModule {
            module,
            unnamed_bytes,
            unlined_bytes,
        };
        let mut modules: Vec<LackingModule> =
            by_module.into_iter().map(module).filter(|it| it.unlined_bytes > 0).collect();
        modules.sort_unstable_by_key(|it| (std::cmp::Reverse((it.unnamed_bytes, it.unlined_bytes)), it.module));
        Self { total_bytes, modules }
    }

    /// Modules that are worth a download.
    pub(super) fn wanted<'a>(&self, modules: &'a Modules) -> Vec<(ModuleId, &'a Module)> {
        let wanted = significant(self, |module| module.unlined_bytes, LINES_SHARE_MIN);
        wanted.map(|(it, _)| (it.module, &**modules.get(it.module))).collect()
    }
}

/// Minimum share of the profile's bytes of a module whose debug information is downloaded.
const LINES_SHARE_MIN: f64 = 0.001;

/// Modules with at least this share of the bytes, and their shares.
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub(super) fn significant(
    lacking: &Lacking,
    bytes: impl Fn(&LackingModule) -> u64,
    share_min: f64,
) -> impl Iterator<Item = (&LackingModule, f64)> {
    let total = lacking.total_bytes.max(1) as f64;
    let shares = lacking.modules.iter().map(move |module| (module, bytes(module) as f64 / total));
    shares.filter(move |(_, share)| *share >= share_min)
}
