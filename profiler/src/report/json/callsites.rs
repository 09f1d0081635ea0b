//! Callsites, their stacks and frames, in the JSON report.

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use super::Context;
use super::details::DetailsFields;
use super::totals::{OlderFields, TotalsFields};
use crate::report::profile::{CallsiteProfile, Frame, HeapProfile, Profile, TargetProfile};

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
                stack: StackFields { profile, callsite },
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

pub(super) struct StackFields<'a> {
    pub(super) profile: &'a Profile,
    pub(super) callsite: &'a CallsiteProfile,
}

impl Serialize for StackFields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut frames = serializer.serialize_seq(Some(self.callsite.stack.len()))?;
        for &id in &self.callsite.stack {
            frames.serialize_element(&FrameFields::new(self.profile.frame(id)))?;
        }
        frames.end()
    }
}

#[derive(Serialize)]
struct FrameFields<'a> {
    function: Option<&'a str>,
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    inlined: bool,
    /// In hexadecimal: 64 bits do not survive readers that hold numbers in floats.
    address: String,
    /// In the module's file; in hexadecimal for the same reason.
    module_offset: Option<String>,
}

impl<'a> FrameFields<'a> {
    fn new(frame: &'a Frame) -> Self {
        Self {
            function: frame.function.as_deref(),
            module: frame.module.as_deref(),
            file: frame.file.as_deref(),
            line: frame.line,
            inlined: frame.inlined,
            address: format!("{:#x}", frame.address),
            module_offset: frame.module_offset.map(|offset| format!("{offset:#x}")),
        }
    }
}
