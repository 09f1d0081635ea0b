//! Folded stacks with two values, before and after, as `difffolded.pl` and `inferno-diff-folded` write them.

use std::io;

use rustc_hash::FxHashMap;

use super::comparison::{Delta, Diff, Stack};
use super::describe as words;
use crate::model::Frame;
use crate::report::folded::{Labels, Stacks, label};
use crate::report::frames;
use crate::report::{ReportError, View, describe};

pub(super) fn write(diff: &Diff<'_>, view: View, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let mut stacks = merge(diff, view);
    stacks.sort_by_line();
    for i in 0..stacks.len() {
        for (depth, frame) in stacks.frames(i).enumerate() {
            if depth > 0 {
                out.write_all(b";")?;
            }
            out.write_all(frame.as_bytes())?;
        }
        let delta = stacks.value(i);
        writeln!(out, " {} {}", view.rounded(&delta.before), view.rounded(&delta.after))?;
    }
    Ok(())
}

/// The stacks of both profiles by their printed frames, without duplicates and without amounts of 0 in the view.
pub(super) fn merge(diff: &Diff<'_>, view: View) -> Stacks<Delta> {
    let mut labels = Labels::default();
    let programs: Vec<u32> = diff.programs.iter().map(|program| labels.intern(label(&program.name()))).collect();
    let mut merged: FxHashMap<Box<[u32]>, Delta> = FxHashMap::default();
    for callsite in &diff.callsites {
        let delta = &callsite.delta;
        if view.rounded(&delta.before) == 0 && view.rounded(&delta.after) == 0 {
            continue;
        }
        let frames: Box<[u32]> = match &callsite.stack {
            None => [labels.intern(words::FOLDED.to_owned())].into(),
            Some(stack) => {
                let mut frames = vec![programs[stack.program]];
                frames.extend(stack.inherited.then(|| labels.intern(describe::INHERITED.to_owned())));
                frames.extend(frames::end_frame(stack.end, stack.frames).map(|end| labels.intern(end)));
                frames.extend(stack.frames().rev().map(|frame| labels.intern(frame_label(stack, frame))));
                frames.into()
            }
        };
        merged.entry(frames).and_modify(|merged| merged.add(delta)).or_insert(*delta);
    }
    Stacks { labels: labels.values.into_iter().collect(), stacks: merged.into_iter().collect() }
}

/// An address without a module is meaningless unless both profiles have the process.
fn frame_label(stack: &Stack<'_>, frame: &Frame) -> String {
    if frame.function.is_none() && frame.module.is_none() && !stack.of_same_process {
        return "[no module]".to_owned();
    }
    label(&frame.label())
}
