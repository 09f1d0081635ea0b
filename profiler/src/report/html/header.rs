//! What the page says first: what was profiled, how, and how much there is.

use serde::Serialize;

use super::column::{Number, float};
use crate::ledger::totals::Totals;
use crate::model::Profile;
use crate::report::{View, describe, text, window};

#[derive(Serialize)]
pub(super) struct HeaderFields {
    subject: String,
    /// T, in words.
    interval: String,
    exact: bool,
    incomplete: bool,
    losses: String,
    started: String,
    /// Milliseconds from the beginning to the end of the recording.
    span: Number,
    /// How long was watched, in words.
    duration: String,
    /// When it was, of an inspection for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    looked: Option<String>,
    /// What came of the window that the profile is about, where it is about one.
    window: Option<String>,
    /// How old live blocks must be, in words.
    older_than: Option<String>,
    /// Live blocks are those alone that nothing reached.
    #[serde(skip_serializing_if = "is_false")]
    unreachable: bool,
    /// What there is to say about since when processes were watched and which were not.
    beginnings: Vec<String>,
    /// Over all processes.
    estimates: EstimateFields,
    freed_bytes: Number,
    freed_count: Number,
    /// What of it is of processes that are kept as sums alone, and how many those are, in words.
    folded: Option<FoldedFields>,
    /// By view: why there is nothing to see.
    nothing: Vec<NothingFields>,
}

#[derive(Serialize)]
struct FoldedFields {
    processes: String,
    estimates: EstimateFields,
}

#[derive(Serialize)]
struct NothingFields {
    view: &'static str,
    lines: Vec<String>,
}

impl HeaderFields {
    pub(super) fn new(profile: &Profile) -> Self {
        let totals = describe::totals(profile);
        let without = View::ALL.into_iter().filter(|&view| !describe::has_stacks(profile, view));
        Self {
            subject: describe::subject(profile),
            interval: describe::interval(profile),
            exact: profile.is_exact(),
            incomplete: profile.incomplete(),
            losses: describe::losses(profile),
            started: text::moment(profile.started_unix_ns),
            span: Number(float(profile.ended_unix_ns.saturating_sub(profile.started_unix_ns)) / 1e6),
            duration: text::duration(describe::duration_ns(profile)),
            looked: describe::looked(profile),
            window: profile.window.is_some().then(|| window::outcome(profile)),
            older_than: profile.older_than_ns.map(text::duration),
            unreachable: profile.unreachable,
            beginnings: describe::beginnings(profile),
            estimates: EstimateFields::new(&totals, profile.is_exact()),
            freed_bytes: Number(totals.free_bytes.to_f64()),
            freed_count: Number(totals.free_count.to_f64()),
            folded: (profile.others.folded_count > 0).then(|| FoldedFields {
                processes: describe::folded_processes(profile),
                estimates: EstimateFields::new(&profile.others.folded_totals, profile.is_exact_of_folded()),
            }),
            nothing: without
                .map(|view| NothingFields { view: view.name(), lines: describe::nothing(profile, view) })
                .collect(),
        }
    }
}

/// Amounts of all views with what is known of how far off they may be.
#[derive(Serialize)]
pub(super) struct EstimateFields {
    live_bytes: Estimate,
    live_count: Estimate,
    alloc_bytes: Estimate,
    alloc_count: Estimate,
}

/// The amount; then, where it is an estimate, the ends of its 95 % interval and the samples that it is made from.
#[derive(Serialize)]
struct Estimate(Vec<Number>);

impl EstimateFields {
    pub(super) fn new(totals: &Totals, exact: bool) -> Self {
        let estimate = |view: View| {
            let mut numbers = vec![Number(view.estimate(totals))];
            if !exact {
                let [low, high] = view.confidence(totals);
                numbers.extend([low, high, float(view.samples(totals))].map(Number));
            }
            Estimate(numbers)
        };
        Self {
            live_bytes: estimate(View::LiveBytes),
            live_count: estimate(View::LiveCount),
            alloc_bytes: estimate(View::AllocBytes),
            alloc_count: estimate(View::AllocCount),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
