//! Frames of interpreters: of one that is forged, whose every stack is known, and of the CPython of each Debian release.

use std::collections::BTreeMap;

use super::{Check, Feature, LOCKED, Outcome, Transcript, exited, report, unharmed};
use crate::python;

/// Sessions of `frames.py`: Debian's releases, and their versions of CPython.
pub(super) const PYTHONS: [(&str, &str); 3] = [("bullseye", "3.9"), ("bookworm", "3.11"), ("trixie", "3.13")];

pub(super) fn interpreters(transcript: &Transcript, is_locked: bool) -> Vec<Check> {
    let mut checks = vec![
        Check::new(Feature::Interpreters, "interpreted: heapbpf exits with 0", exited(transcript, "interpreted"))
            .instead(is_locked.then_some(LOCKED)),
        Check::new(Feature::Detach, "interpreted: the target is unharmed", unharmed(transcript, "interpreted")),
    ];
    if is_locked {
        return checks;
    }
    let what = "interpreted: all stacks contain all functions";
    checks.push(Check::new(Feature::Interpreters, what, forged(transcript)));
    for (release, version) in PYTHONS {
        let what = format!("python-{release}: stacks are those that CPython {version} describes");
        checks.push(Check::new(Feature::Interpreters, what, described(transcript, release)));
    }
    checks
}

/// Allocations of eight threads, each below 40 functions of an interpreter (`forged_python.c`).
const INTERPRETED: (u64, usize) = (16_000, 40);
/// Stacks without a scratch area have their caller only: see docs/kernel-support.md.
const WITHOUT_SCRATCH_MAX: f64 = 0.02;

#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn forged(transcript: &Transcript) -> Outcome {
    let report = report(transcript, "interpreted")?;
    let (blocks, functions) = INTERPRETED;
    let mut by_functions: BTreeMap<usize, u64> = BTreeMap::new();
    let process = report.targets.first().ok_or("no target")?;
    for callsite in process
        .callsites
        .iter()
        .filter(|callsite| callsite.stack.iter().any(|frame| frame.is("_PyEval_EvalFrameDefault")))
    {
        let named =
            callsite.stack.iter().filter(|frame| frame.kind.as_deref() == Some("interpreted") && frame.is("name"));
        *by_functions.entry(named.count()).or_default() += callsite.totals.alloc_count.as_u64().unwrap_or(0);
    }
    let complete = by_functions.get(&functions).copied().unwrap_or(0);
    let without_scratch = report.health.unwind.get("no_scratch").copied().unwrap_or(0);
    let is_complete = complete + without_scratch >= blocks && by_functions.keys().all(|&count| count == functions);
    let words = format!("{complete} of {blocks} stacks, {without_scratch} without a scratch area: {by_functions:?}");
    if is_complete && without_scratch as f64 <= WITHOUT_SCRATCH_MAX * blocks as f64 { Ok(words) } else { Err(words) }
}

/// Stacks that may have the name of earlier code: a freed module's, at whose addresses another one has the same objects. Emulated, 3.11
/// had one of 96.
const DIFFERING_MAX: usize = 2;

/// Stacks equal CPython's own description, to the function, file and line, with the same bytes.
fn described(transcript: &Transcript, release: &str) -> Outcome {
    let session = format!("python-{release}");
    let described = transcript.text(&format!("{session}.described")).ok_or("the target has described nothing")?;
    let expected = python::described(described, python::STACKS_MIN)?;
    let report = report(transcript, &session)?;
    let recorded = python::recorded(report.targets.first().ok_or("no target")?);
    let [missing, others] = python::differing(&expected, &recorded);
    let blocks: u64 = expected.values().map(|[count, _]| count).sum();
    let words = format!("{} of {} stacks, {blocks} blocks", expected.len() - missing.len(), expected.len());
    if missing.len().max(others.len()) <= DIFFERING_MAX {
        return Ok(words);
    }
    let examples = [missing.first(), others.first()];
    Err(format!("{words}; missing, and not expected: {examples:?}; {:?}", report.health.unwind))
}
