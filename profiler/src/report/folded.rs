//! Folded stacks: a line per stack, the outermost frame first, `;` between frames, then a space and a whole number.
//!
//! The root frame is the process. Owns what such a line can say, which the flame graph shares; refuses to let a name
//! change the shape of a line, and to pass off a stack as complete that is not.

use std::cmp::Ordering;
use std::io;

use rustc_hash::FxHashMap;

use super::roots::roots;
use super::{Presentation, Report, ReportError, text};
use crate::model::Profile;

/// Writes folded stacks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folded;

impl Report for Folded {
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let mut stacks = Stacks::merge(profile, presentation);
        stacks.sort_by_line();
        for i in 0..stacks.len() {
            for (depth, frame) in stacks.frames(i).enumerate() {
                if depth > 0 {
                    out.write_all(b";")?;
                }
                out.write_all(frame.as_bytes())?;
            }
            writeln!(out, " {}", stacks.value(i))?;
        }
        Ok(())
    }
}

/// The stacks of a profile by their printed frames, each once, with what the view says of them. Frames are kept as
/// numbers: the text of all lines can be far larger than the profile.
pub(super) struct Stacks<V = u64> {
    pub(super) labels: Vec<String>,
    pub(super) stacks: Vec<(Box<[u32]>, V)>,
}

impl Stacks {
    /// Merges what prints the same. Stacks of which nothing is left are left out. Sums stop at the largest number.
    pub(super) fn merge(profile: &Profile, presentation: &Presentation) -> Self {
        let mut labels = Labels::default();
        let frames: Vec<u32> = profile.frames.iter().map(|frame| labels.intern(label(&frame.label()))).collect();
        let mut merged: FxHashMap<Box<[u32]>, u64> = FxHashMap::default();
        for target in &profile.targets {
            for callsite in &target.callsites {
                let value = presentation.view.of_callsite(callsite);
                if value == 0 {
                    continue;
                }
                let roots = roots(target, callsite, presentation);
                let mut stack: Vec<u32> = roots.iter().map(|root| labels.intern(label(root))).collect();
                stack.extend(callsite.stack.iter().rev().filter_map(|id| frames.get(id.0 as usize)));
                let sum = merged.entry(stack.into()).or_default();
                *sum = sum.saturating_add(value);
            }
        }
        Self { labels: labels.labels, stacks: merged.into_iter().collect() }
    }
}

impl<V: Copy> Stacks<V> {
    /// Orders the stacks as their lines would be, byte by byte.
    pub(super) fn sort_by_line(&mut self) {
        let labels = &self.labels;
        self.stacks.sort_unstable_by(|(a, _), (b, _)| {
            let shared = a.iter().zip(b).take_while(|(a, b)| a == b).count();
            line_rest(labels, a, shared).cmp(line_rest(labels, b, shared))
        });
    }

    /// Orders the stacks frame by frame, so that all stacks through a frame are neighbours. Lines do not give that: in
    /// their order `f`, `f::g`, `f;h` the second parts the two stacks through `f`.
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

    /// How many stacks there are.
    pub(super) fn len(&self) -> usize {
        self.stacks.len()
    }

    /// The stack's frames, the outermost first.
    pub(super) fn frames(&self, i: usize) -> impl Iterator<Item = &str> {
        self.stacks[i].0.iter().map(|&label| self.labels[label as usize].as_str())
    }

    /// What is said of the stack.
    pub(super) fn value(&self, i: usize) -> V {
        self.stacks[i].1
    }
}

/// The bytes of a line from a frame on. What follows a line's frames sorts like the space there.
fn line_rest<'a>(labels: &'a [String], stack: &'a [u32], from: usize) -> impl Iterator<Item = u8> + 'a {
    let rest = stack[from..].iter().enumerate().flat_map(move |(i, &label)| {
        let separator = if from + i == 0 { "" } else { ";" };
        separator.bytes().chain(labels[label as usize].bytes())
    });
    rest.chain(std::iter::once(b' '))
}

/// Labels by number, each once.
#[derive(Default)]
pub(super) struct Labels {
    numbers: FxHashMap<String, u32>,
    pub(super) labels: Vec<String>,
}

impl Labels {
    pub(super) fn intern(&mut self, label: String) -> u32 {
        let next = u32::try_from(self.labels.len()).expect("profiles number their frames in 32 bits");
        *self.numbers.entry(label).or_insert_with_key(|label| {
            self.labels.push(label.clone());
            next
        })
    }
}

/// A name as a frame of a line: `;` parts frames, so it becomes `:` (as FlameGraph's collapsers do); a last word that is
/// a number would be read as a value, so it is tied to the one before; a leading `#` would make the line a comment.
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
