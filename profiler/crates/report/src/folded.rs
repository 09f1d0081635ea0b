//! Folded stacks, the outermost frame, which is the process, first. Incomplete stacks have a frame with the reason.

use std::cmp::Ordering;
use std::io;

use heapbpf_ledger::model::Profile;
use rustc_hash::FxHashMap;

use super::presentation::Presentation;
use super::tables::{Intern, Interner, index, synthetic_frames};
use super::{describe, text};

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut stacks = Stacks::merge(profile, presentation);
    let folded = presentation.view.of_folded(profile);
    if folded > 0 {
        let label = index(stacks.labels.len());
        stacks.labels.push(self::label(describe::FOLDED));
        stacks.stacks.push(([label].into(), folded));
    }
    stacks.write(u64::to_string, out)
}

/// Distinct stacks by the labels of their frames, as indices: the text of all lines can be far larger than the profile.
pub(super) struct Stacks<V = u64> {
    pub(super) labels: Vec<String>,
    pub(super) stacks: Vec<(Box<[u32]>, V)>,
}

impl Stacks {
    /// Merges callsites whose stacks have the same labels, and drops stacks whose value is 0. Sums saturate.
    pub(super) fn merge(profile: &Profile, presentation: &Presentation) -> Self {
        let mut labels = Labels::default();
        let frames: Vec<u32> = profile.frames.iter().map(|frame| labels.intern(label(&frame.label()))).collect();
        let mut merged: FxHashMap<Box<[u32]>, u64> = FxHashMap::default();
        for (target, callsite) in profile.callsites() {
            let value = presentation.view.of_callsite(callsite);
            if value > 0 {
                let synthetic = synthetic_frames(target, callsite, presentation);
                let mut stack: Vec<u32> = synthetic.iter().map(|name| labels.intern(label(name))).collect();
                stack.extend(callsite.stack.iter().rev().filter_map(|id| frames.get(id.0 as usize)));
                let sum = merged.entry(stack.into()).or_default();
                *sum = sum.saturating_add(value);
            }
        }
        // The flame graph's caption names them: its frames are of processes.
        Self { labels: labels.into_iter().collect(), stacks: merged.into_iter().collect() }
    }
}

impl<V: Copy> Stacks<V> {
    /// Writes a line for each stack, the outermost frame first, sorted by line.
    pub(super) fn write(mut self, text: impl Fn(&V) -> String, out: &mut dyn io::Write) -> io::Result<()> {
        let labels = &self.labels;
        self.stacks.sort_unstable_by(|(a, _), (b, _)| {
            let shared = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            line_rest(labels, a, shared).cmp(line_rest(labels, b, shared))
        });
        for (stack, value) in &self.stacks {
            let frames: Vec<&str> = stack.iter().map(|&label| labels[label as usize].as_str()).collect();
            writeln!(out, "{} {}", frames.join(";"), text(value))?;
        }
        Ok(())
    }

    /// Makes all stacks through a frame adjacent. Sorting by line does not: see `f`, `f::g`, `f;h`.
    pub(super) fn sort_by_frame(&mut self) {
        let labels = &self.labels;
        self.stacks.sort_unstable_by(|(a, _), (b, _)| {
            a.iter()
                .zip(b)
                .find(|(a, b)| a != b)
                .map_or(Ordering::Equal, |(&a, &b)| labels[a as usize].cmp(&labels[b as usize]))
                .then(a.len().cmp(&b.len()))
        });
    }
}

/// The bytes of a line from a frame on. The space after a line's frames takes part in the order.
fn line_rest<'a>(labels: &'a [String], stack: &'a [u32], from: usize) -> impl Iterator<Item = u8> + 'a {
    let rest = stack[from..].iter().enumerate().flat_map(move |(i, &label)| {
        let separator = if from + i == 0 { "" } else { ";" };
        separator.bytes().chain(labels[label as usize].bytes())
    });
    rest.chain(std::iter::once(b' '))
}

pub(super) type Labels = Interner<String>;

/// Makes a name safe for a line: `;` separates frames, so it becomes `:` (as in FlameGraph's collapsers); a trailing
/// number would be the value, so `_` joins it to the word before; a leading `#` would start a comment.
pub(super) fn label(name: &str) -> String {
    let mut label = text::printable(name).replace(';', ":");
    if label.is_empty() {
        return "[no name]".to_owned();
    }
    if let Some(space) = label.rfind(' ')
        && label[space + 1..].bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        label.replace_range(space..=space, "_");
    }
    if label.starts_with('#') {
        label.replace_range(..1, "_");
    }
    label
}
