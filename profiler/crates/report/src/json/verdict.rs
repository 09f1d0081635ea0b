//! The verdict on a profile in JSON reports.

use heapbpf_ledger::model::{self, Defect, Profile};
#[cfg(test)]
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use super::health::Health;
use crate::cuts::{Cut, cuts};
use crate::describe;

/// Whether the profile is complete, what is missing, and the cost of profiling.
#[derive(Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub(crate) struct HealthAndVerdict {
    /// Whether the profile is complete; missing in reports of earlier versions of heapbpf.
    #[serde(default, deserialize_with = "ignored", skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
    /// Stacks that end before the thread's first frame, by reason and module, the most frequent first.
    #[serde(default, deserialize_with = "ignored_list")]
    cut_stacks: Vec<CutStacks>,
    #[serde(flatten, with = "Health")]
    pub(super) health: model::Health,
}

/// Whether the profile is complete (see docs/exit-codes.md).
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Verdict {
    /// No share exceeds its maximum. Otherwise, the exit code is 3.
    complete: bool,
    /// The maximums are those of `--strict`.
    strict: bool,
    /// The verdict in words, as in the summary.
    statement: String,
    /// One of each kind.
    findings: Vec<Finding>,
}

/// How much of one kind is missing.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct Finding {
    /// What is missing.
    kind: Defect,
    /// Events, stacks, hooks, processes, limits; bytes of growth.
    count: u64,
    /// Share that is missing, from 0 to 1.
    share: f64,
    /// A larger share makes the profile incomplete.
    share_max: f64,
    /// The share is larger.
    exceeded: bool,
}

/// Readers derive it from the profile.
fn ignored<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Verdict>, D::Error> {
    IgnoredAny::deserialize(from).map(|_| None)
}

fn ignored_list<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<CutStacks>, D::Error> {
    IgnoredAny::deserialize(from).map(|_| Vec::new())
}

/// Stacks that end in one module for one reason.
#[derive(Serialize)]
#[cfg_attr(test, derive(JsonSchema))]
struct CutStacks {
    /// Why they end, as in `unwind`.
    end: &'static str,
    /// Path of the module of the outermost known frame; null for generated code.
    module: Option<String>,
    /// Number of sampled allocations with such a stack.
    count: u64,
    /// Share of all sampled allocations, from 0 to 1.
    share: f64,
    /// What helps, or why nothing does.
    advice: Option<String>,
}

impl HealthAndVerdict {
    pub(super) fn of(profile: &Profile) -> Self {
        let verdict = profile.verdict();
        let finding = |finding: &model::Finding| {
            let model::Finding { defect: kind, count, share, share_max } = *finding;
            Finding { kind, count, share, share_max, exceeded: finding.is_exceeded() }
        };
        let fields = Verdict {
            complete: verdict.is_complete(),
            strict: verdict.strict,
            statement: describe::verdict(profile),
            findings: verdict.findings.iter().map(finding).collect(),
        };
        let cut = |cut: &Cut<'_>| CutStacks {
            end: cut.end.counter().name(),
            module: cut.module.map(str::to_owned),
            count: cut.count,
            share: cut.share,
            advice: cut.advice.as_deref().map(str::to_owned),
        };
        let cut_stacks = cuts(profile).iter().map(cut).collect();
        Self { verdict: Some(fields), cut_stacks, health: profile.health.clone() }
    }
}
