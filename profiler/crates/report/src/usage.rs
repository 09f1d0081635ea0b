//! Memory by function and by module. What a function allocates itself includes what allocators and language runtimes
//! allocate for it, as in the table of callsites.

use std::cmp::Reverse;

use heapbpf_ledger::model::{CallsiteProfile, Frame, Profile, base_name};
use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashSet};

use super::function::is_plumbing;
use super::presentation::View;
use super::tables;

/// What the rows of the table of memory are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum TopBy {
    Function,
    Module,
    #[default]
    Callsite,
}

impl TopBy {
    pub const ALL: [Self; 3] = [Self::Function, Self::Module, Self::Callsite];

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Amounts in the order of [`View::ALL`].
pub(super) type Views = [u64; View::ALL.len()];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Allocated by it, directly or through an allocator or a runtime.
    pub(super) own: Views,
    /// Also what its callees allocated.
    pub(super) total: Views,
}

/// Function and module; the function is empty in the table of modules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) function: String,
    pub(super) module: String,
}

pub(super) const NO_MODULE: &str = "[no module]";

/// Functions or modules, the largest in the view first: by their own amounts, then by those with their callees.
pub(super) fn usage(profile: &Profile, view: View, by_function: bool) -> Vec<(Key, Usage)> {
    let mut all: IndexMap<Key, Usage, FxBuildHasher> = IndexMap::default();
    let keys: Vec<Key> = profile.frames.iter().map(|frame| key(frame, by_function)).collect();
    for (_, callsite) in profile.callsites() {
        let amounts = View::ALL.map(|view| view.of_callsite(callsite));
        let frames = callsite.stack.iter().filter_map(|id| keys.get(id.0 as usize));
        let mut seen = FxHashSet::default();
        for key in frames.filter(|key| seen.insert(*key)) {
            add(&mut entry(&mut all, key).total, amounts);
        }
        if let Some(key) = own_frame(profile, callsite).and_then(|at| keys.get(callsite.stack[at].0 as usize)) {
            add(&mut entry(&mut all, key).own, amounts);
        }
    }
    let mut rows: Vec<_> = all.into_iter().collect();
    let index = View::ALL.iter().position(|other| *other == view).unwrap_or_default();
    rows.sort_by_key(|(_, usage)| Reverse((usage.own[index], usage.total[index])));
    rows
}

fn entry<'a>(all: &'a mut IndexMap<Key, Usage, FxBuildHasher>, key: &Key) -> &'a mut Usage {
    if !all.contains_key(key) {
        all.insert(key.clone(), Usage::default());
    }
    &mut all[key]
}

fn add(sum: &mut Views, amounts: Views) {
    sum.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum = sum.saturating_add(amount));
}

fn key(frame: &Frame, by_function: bool) -> Key {
    let module = frame.module.as_deref().map_or(NO_MODULE, base_name).to_owned();
    Key { function: if by_function { frame.label() } else { String::new() }, module }
}

/// Index of the innermost frame that belongs to no allocator or runtime; the leaf where all do.
pub(super) fn own_frame(profile: &Profile, callsite: &CallsiteProfile) -> Option<usize> {
    let frames = callsite.stack.iter().map(|&id| tables::frame(profile, id));
    let own = frames.enumerate().find(|(_, frame)| frame.is_some_and(|frame| !is_plumbing(frame)));
    own.map(|(at, _)| at).or_else(|| (!callsite.stack.is_empty()).then_some(0))
}
