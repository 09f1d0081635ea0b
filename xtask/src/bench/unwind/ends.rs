//! Where stacks end early: for whoever looks for the cause.

use std::collections::BTreeMap;

use crate::bench::recording::{Callsite, Frame, Report};

/// Kinds of ends that are listed.
const KINDS_MAX: usize = 12;

/// Frames that are shown of each.
const FRAMES_MAX: usize = 6;

/// The most frequent early ends, with the outermost frames that were reached.
pub(super) fn explain(report: &Report) -> String {
    let mut kinds: BTreeMap<(String, String), (f64, &Callsite)> = BTreeMap::new();
    let callsites = report.targets.iter().flat_map(|target| &target.callsites);
    for callsite in callsites {
        let end = callsite.end.as_deref().unwrap_or("frames lost");
        if end == "complete" {
            continue;
        }
        let last = callsite.stack.last().map(name).unwrap_or_default();
        let kind = kinds.entry((end.to_owned(), last)).or_insert((0.0, callsite));
        kind.0 += callsite.alloc_count;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|(_, (a, _)), (_, (b, _))| b.total_cmp(a));
    let mut text = String::new();
    for ((end, _), (count, callsite)) in kinds.into_iter().take(KINDS_MAX) {
        text.push_str(&format!("  {count:.0} blocks: {end}, {} frames, outermost last\n", callsite.stack.len()));
        let skipped = callsite.stack.len().saturating_sub(FRAMES_MAX);
        for frame in &callsite.stack[skipped..] {
            text.push_str(&format!("      {}\n", line(frame)));
        }
    }
    if text.is_empty() {
        text.push_str("  none\n");
    }
    text
}

/// What frames at one place of one module share.
fn name(frame: &Frame) -> String {
    let module = frame.module.as_deref().unwrap_or("?");
    format!("{module} {}", frame.function.as_deref().unwrap_or(&frame.address))
}

fn line(frame: &Frame) -> String {
    let inlined = if frame.inlined { " (inlined)" } else { "" };
    format!("{} {}{inlined}", frame.address, name(frame))
}
