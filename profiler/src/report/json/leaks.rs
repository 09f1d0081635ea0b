//! Callsites that grow, in the JSON report.

use serde::Serialize;

use super::stack::StackFields;
use crate::model::leaks::LeakCandidate;
use crate::model::{CallsiteProfile, Profile, TargetProfile};

#[derive(Serialize)]
pub(super) struct LeaksFields<'a> {
    span_ns: u64,
    too_short: bool,
    growing_count: usize,
    suppressed_count: u64,
    suppressed_bytes: f64,
    candidates: Vec<CandidateFields<'a>>,
}

impl<'a> LeaksFields<'a> {
    /// `order` has the places of the target's callsites as the report lists them. `None` where nobody has looked.
    pub(super) fn new(profile: &'a Profile, target: &'a TargetProfile, order: &[usize]) -> Option<Self> {
        let leaks = target.leaks.as_ref()?;
        let listed = |callsite: usize| order.iter().position(|&at| at == callsite);
        let candidate = |candidate: &'a LeakCandidate| {
            let callsite = target.callsites.get(candidate.callsite)?;
            let fields = CandidateFields::new(profile, target, callsite, candidate);
            Some(CandidateFields { callsite: listed(candidate.callsite)?, ..fields })
        };
        Some(Self {
            span_ns: leaks.span_ns,
            too_short: leaks.too_short,
            growing_count: leaks.count,
            suppressed_count: leaks.suppressed_count,
            suppressed_bytes: leaks.suppressed_bytes.to_f64(),
            candidates: leaks.candidates.iter().filter_map(candidate).collect(),
        })
    }
}

#[derive(Serialize)]
struct CandidateFields<'a> {
    /// Its place in the list of callsites, of which several can look alike.
    callsite: usize,
    stack: StackFields<'a>,
    heap: Option<&'a str>,
    bytes_per_second: f64,
    /// How far off that may be.
    bytes_per_second_margin_95: f64,
    live_bytes: f64,
    live_count: f64,
    age_ns_oldest: Option<u64>,
    old_share: f64,
    survival: Option<f64>,
    score: f64,
}

impl<'a> CandidateFields<'a> {
    fn new(
        profile: &'a Profile,
        target: &'a TargetProfile,
        callsite: &'a CallsiteProfile,
        candidate: &LeakCandidate,
    ) -> Self {
        Self {
            callsite: candidate.callsite,
            stack: StackFields { profile, stack: &callsite.stack },
            heap: target.heaps.get(callsite.heap).map(|heap| heap.name.as_str()),
            bytes_per_second: candidate.bytes_per_second,
            bytes_per_second_margin_95: candidate.margin,
            live_bytes: callsite.totals.live_bytes().to_f64(),
            live_count: callsite.totals.live_count().to_f64(),
            age_ns_oldest: callsite.details.ages.oldest_ns,
            old_share: candidate.old_share,
            survival: candidate.survival,
            score: candidate.score,
        }
    }
}
