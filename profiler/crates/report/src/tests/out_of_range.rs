//! Reports read from files can contain invalid indices: formats skip them and do not fail.

use heapbpf_ledger::model::{Change, HeapUsage, MappingProfile, Profile};

use super::{formats, written};
use crate::View;
use crate::testing as profiles;

/// A profile in which every kind of index is invalid somewhere.
pub(super) fn profile() -> Profile {
    let mut profile = profiles::exact();
    let target = &mut profile.targets[0];
    let held = HeapUsage { live_bytes: f64::NAN, live_count: -1.0, alloc_bytes: f64::INFINITY, alloc_count: 1e300 };
    for (callsite, change) in target.callsites.iter_mut().zip([0, 99, 2, 1, 0]) {
        callsite.history.insert(0, Change { instant: change, held });
    }
    let callsite = &mut target.callsites[0];
    (callsite.heap, callsite.thread) = (1, Some(9));
    target.mappings.insert(0, MappingProfile { start: 0, end: u64::MAX, offset: 0, bias: Some(u64::MAX), module: 55 });
    profile.frames[0].address = 0;
    profile.frames[1].inlined = true;
    profile
}

#[test]
fn invalid_indices_are_harmless() {
    for format in formats() {
        for view in View::ALL {
            assert!(!written(format, &profile(), view).is_empty(), "{format}");
        }
    }
}
