//! Callsites that grow, as they stand in a report.

use serde::Deserialize;

use super::Interner;
use super::amounts::Amount;
use super::fields::FrameFields;
use crate::model::leaks::{LeakCandidate, Leaks};
use crate::model::{CallsiteProfile, HeapProfile};

#[derive(Deserialize)]
pub(super) struct LeaksFields<'a> {
    span_ns: u64,
    too_short: bool,
    growing_count: usize,
    suppressed_count: u64,
    suppressed_bytes: Amount,
    #[serde(borrow)]
    candidates: Vec<CandidateFields<'a>>,
}

#[derive(Deserialize)]
struct CandidateFields<'a> {
    callsite: Option<usize>,
    #[serde(borrow)]
    stack: Vec<FrameFields<'a>>,
    heap: Option<String>,
    bytes_per_second: f64,
    bytes_per_second_margin_95: f64,
    old_share: f64,
    survival: Option<f64>,
    score: f64,
}

impl LeaksFields<'_> {
    /// A candidate is the callsite that it names, which has its stack and heap; the first of those where it names none.
    pub(super) fn into_leaks(
        self,
        heaps: &[HeapProfile],
        callsites: &[CallsiteProfile],
        interner: &mut Interner,
    ) -> Result<Leaks, String> {
        let candidate = |fields: CandidateFields<'_>| {
            let stack = fields.stack.into_iter().map(|frame| frame.into_id(interner)).collect::<Result<Vec<_>, _>>()?;
            let is_it = |callsite: &CallsiteProfile| {
                let heap = heaps.get(callsite.heap).map(|heap| heap.name.as_str());
                callsite.stack == stack && heap == fields.heap.as_deref()
            };
            let callsite = match fields.callsite {
                Some(at) => callsites.get(at).is_some_and(is_it).then_some(at),
                None => callsites.iter().position(is_it),
            };
            Ok(LeakCandidate {
                callsite: callsite.ok_or_else(|| "a growing callsite is none of the callsites".to_owned())?,
                bytes_per_second: fields.bytes_per_second,
                margin: fields.bytes_per_second_margin_95,
                old_share: fields.old_share,
                survival: fields.survival,
                score: fields.score,
            })
        };
        Ok(Leaks {
            span_ns: self.span_ns,
            too_short: self.too_short,
            candidates: self.candidates.into_iter().map(candidate).collect::<Result<_, String>>()?,
            count: self.growing_count,
            suppressed_count: self.suppressed_count,
            suppressed_bytes: self.suppressed_bytes.bytes()?,
        })
    }
}
