//! Callsites in the JSON report.

use serde::{Serialize, Serializer};

use super::Context;
use super::details::DetailsFields;
use super::stack::StackFields;
use super::totals::{OlderFields, TotalsFields};
use crate::model::{HeapProfile, Profile, TargetProfile};

/// A target's callsites, the largest first; equal ones stay in the profile's order.
pub(super) struct Callsites<'a> {
    profile: &'a Profile,
    target: &'a TargetProfile,
    /// Their places in the profile.
    pub(super) order: Vec<usize>,
}

impl<'a> Callsites<'a> {
    pub(super) fn new(Context { profile, view }: Context<'a>, target: &'a TargetProfile) -> Self {
        let mut order: Vec<usize> = (0..target.callsites.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(view.of_callsite(&target.callsites[at])));
        Self { profile, target, order }
    }
}

impl Serialize for Callsites<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let profile = self.profile;
        let callsites = self.order.iter().map(|&at| &self.target.callsites[at]);
        let is_exact = profile.is_exact_of(self.target);
        serializer.collect_seq(callsites.map(|callsite| {
            let heap = self.target.heaps.get(callsite.heap);
            let is_exact = heap.map_or(is_exact, HeapProfile::is_exact);
            CallsiteFields {
                stack: StackFields { profile, stack: &callsite.stack },
                end: callsite.end.map(|end| end.counter().name()),
                heap: heap.map(|heap| heap.name.as_str()),
                thread: callsite.thread.filter(|&thread| thread < self.target.threads.len()),
                inherited: callsite.inherited,
                totals: TotalsFields::new(profile, &callsite.totals, is_exact),
                details: DetailsFields::new(&callsite.details, is_exact),
                older: callsite.older.map(|older| OlderFields::new(&older, is_exact)),
            }
        }))
    }
}

#[derive(Serialize)]
struct CallsiteFields<'a> {
    stack: StackFields<'a>,
    /// How the stack ends (`complete`, …); null when its frames were lost.
    end: Option<&'static str>,
    heap: Option<&'a str>,
    /// Place in the target's threads; null where threads are not told apart.
    thread: Option<usize>,
    /// Its blocks were made before the fork that made this process.
    inherited: bool,
    #[serde(flatten)]
    totals: TotalsFields,
    #[serde(flatten)]
    details: DetailsFields,
    #[serde(flatten)]
    older: Option<OlderFields>,
}
