//! Sources of scripts, by their source maps: functions of TypeScript and of minified code have their own names, files and lines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::sandbox::Defect;
use crate::object::interpreted::{CodeLocation, ScriptPlace};
use crate::object::script::{Script, Spot};

/// Scripts whose sources are kept.
const SCRIPTS_MAX: usize = 1 << 14;
/// Places of all scripts whose sources are kept.
const SPOTS_MAX: usize = 1 << 20;
/// Precede names of functions that the source has without them.
const PREFIXES: [&str; 2] = ["get ", "set "];

/// Sources of places in scripts.
#[derive(Default)]
pub(super) struct Translations {
    /// By the addresses of what is kept in the entries.
    scripts: FxHashMap<usize, Translation>,
    spots: usize,
}

struct Translation {
    _script: Arc<Script>,
    /// `None` for a place without a source.
    originals: FxHashMap<Spot, Option<Original>>,
}

pub(super) struct Original {
    pub(super) file: Arc<str>,
    pub(super) line: u32,
    /// The original name of what is at the place.
    pub(super) name: Option<Arc<str>>,
}

/// Places in scripts, by the files and keys of these.
type Wanted = BTreeMap<(Arc<str>, usize), (Arc<Script>, BTreeSet<Spot>)>;

fn key(script: &Arc<Script>) -> usize {
    Arc::as_ptr(script).addr()
}

impl Translations {
    /// Places in scripts whose sources are not known, by script.
    pub(super) fn unknown<'a>(
        &self,
        locations: impl Iterator<Item = &'a CodeLocation>,
    ) -> Vec<(Arc<Script>, Vec<Spot>)> {
        // By file, so that failures have an order.
        let mut wanted = Wanted::new();
        for ScriptPlace { script, at, name } in locations.filter_map(|it| it.in_script.as_ref()) {
            let new = [Some(*at), *name].into_iter().flatten();
            for spot in new.filter(|spot| !self.is_known(script, *spot)) {
                let entry = wanted.entry((Arc::clone(&script.file), key(script)));
                entry.or_insert_with(|| (Arc::clone(script), BTreeSet::new())).1.insert(spot);
            }
        }
        wanted.into_values().map(|(script, spots)| (script, spots.into_iter().collect())).collect()
    }

    fn is_known(&self, script: &Arc<Script>, spot: Spot) -> bool {
        self.scripts.get(&key(script)).is_some_and(|known| known.originals.contains_key(&spot))
    }

    fn original(&self, script: &Arc<Script>, spot: Spot) -> Option<&Original> {
        self.scripts.get(&key(script))?.originals.get(&spot)?.as_ref()
    }

    /// Keeps the sources of places, or of the first ones: the others have none.
    pub(super) fn add(&mut self, script: &Arc<Script>, spots: Vec<Spot>, mut originals: Vec<Option<Original>>) {
        originals.resize_with(spots.len(), || None);
        if self.scripts.len() >= SCRIPTS_MAX || self.spots >= SPOTS_MAX {
            *self = Self::default();
        }
        self.spots += originals.len();
        let empty = || Translation { _script: Arc::clone(script), originals: FxHashMap::default() };
        self.scripts.entry(key(script)).or_insert_with(empty).originals.extend(spots.into_iter().zip(originals));
    }

    /// Replaces the function, file and line of a place in a script.
    pub(super) fn apply(&self, location: &mut CodeLocation) {
        let Some(ScriptPlace { script, at, name }) = &location.in_script else { return };
        let Some(Original { file, line, .. }) = self.original(script, *at) else { return };
        if let Some(own) = name.and_then(|name| self.original(script, name)?.name.as_ref()) {
            let shown = location.function.as_deref().unwrap_or_default();
            let prefix = PREFIXES.into_iter().find(|prefix| shown.starts_with(prefix));
            location.function = Some(prefix.map_or_else(|| Arc::clone(own), |prefix| format!("{prefix}{own}").into()));
        }
        (location.file, location.line) = (Some(Arc::clone(file)), Some(*line));
    }
}

/// Why a source map is not used, or not all of it.
pub(super) fn reason_of(defect: Defect) -> Option<String> {
    match defect {
        Defect::NoSourceMap => Some("it is no source map of version 3".to_owned()),
        Defect::Size => Some("the source map exceeds the limit of 128 MiB".to_owned()),
        Defect::Entries(count) => Some(format!("malformed mappings in its source map: {count}")),
        Defect::Malformed
        | Defect::Unreadable
        | Defect::Compressed
        | Defect::UnknownCompression
        | Defect::Shared
        | Defect::Checksum
        | Defect::MiniDebugInfo => None,
    }
}
