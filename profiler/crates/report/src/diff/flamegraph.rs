//! Differential flame graphs, and stacks folded with two values, before and after, as `difffolded.pl` writes them.
//! inferno would colour a frame by its own change without its callees, which leaves all but leaf frames without a
//! colour; so frames are coloured here, by growth including callees.

use std::io;

use heapbpf_ledger::model::Frame;
use rustc_hash::FxHashMap;

use super::comparison::{Delta, Diff, Stack};
use super::describe as words;
use crate::flamegraph::colour::Colour;
use crate::flamegraph::header::{self, Header, Key};
use crate::flamegraph::image::{Image, Paint};
use crate::flamegraph::nodes::{Node, Position, lines, nodes};
use crate::folded::{Labels, Stacks, label};
use crate::tables::Intern;
use crate::{ReportError, View, describe, tables};

/// The profile that determines the widths of a flame graph's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "snake_case")]
pub enum Widths {
    /// The earlier one: freed callsites are visible, new ones are not.
    Before,
    /// The later one: new callsites are visible, freed ones are not.
    #[default]
    After,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    pub widths: Widths,
    pub icicle: bool,
}

pub(super) fn write(diff: &Diff<'_>, view: View, drawing: Drawing, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let Drawing { widths, icicle } = drawing;
    let width = |delta: &Delta| match widths {
        Widths::Before => view.rounded(&delta.before),
        Widths::After => view.rounded(&delta.after),
    };
    let header = header(diff, view, widths);
    let mut stacks = merge(diff, view);
    let (lines, shift) = lines(&mut stacks, width);
    if lines.is_empty() {
        return Ok(header::draw_words(&header, &[reason(diff, view, widths)], out)?);
    }
    let whole = stacks.stacks.iter().map(|(_, delta)| width(delta) >> shift).sum();
    let mut paints: FxHashMap<Position, Paint> = FxHashMap::default();
    nodes(
        &stacks,
        |delta| width(delta) >> shift,
        |node| {
            paints.insert(node.position, paint(&node, view, whole));
        },
    );
    let legend = legend(diff);
    Ok(Image { header: &header, legend: &legend, paints: &paints, view, icicle }.draw(&lines, shift, out)?)
}

fn legend(diff: &Diff<'_>) -> Vec<Key> {
    let mut legend = vec![
        Key::new(Colour::of_growth(1.0), "grew"),
        Key::new(Colour::of_growth(-1.0), "shrank"),
        Key::new(Colour::unchanged(), "unchanged"),
    ];
    legend.extend((!diff.is_exact()).then(|| Key::new(Colour::noise(), "within the noise")));
    legend
}

fn header(diff: &Diff<'_>, view: View, widths: Widths) -> Header {
    let sides = [diff.before, diff.after];
    let [before, after] = sides.map(words::name);
    let total = diff.total();
    let about = describe::about(diff.is_exact());
    let range = words::range(view, &total).map(|range| format!(" (95 %: {range})")).unwrap_or_default();
    let intervals = match sides.map(|side| describe::interval(side.profile)) {
        [before, after] if before == after => before,
        [before, after] => format!("{before}, then {after}"),
    };
    let mut parts = vec![
        format!("{about}{}{range}", words::signed(view, total.growth(view))),
        format!("widths: {widths}"),
        intervals,
    ];
    let incomplete = [("before", diff.before), ("after", diff.after)];
    let incomplete = incomplete.into_iter().filter(|(_, side)| side.profile.incomplete());
    parts.extend(incomplete.map(|(when, _)| format!("{when} is incomplete")));
    let [before_details, after_details] = sides.map(|side| words::side(side.profile));
    let version = env!("CARGO_PKG_VERSION");
    let title = format!("growth of {} of {} · {before} → {after}", view.title(), words::subject(diff));
    let notes = format!(
        "heapbpf {version}; growth; view {view}; before: {before}: {before_details}; after: {after}: {after_details}"
    );
    Header::new(&title, parts, notes)
}

fn reason(diff: &Diff<'_>, view: View, widths: Widths) -> String {
    let (when, other) = match widths {
        Widths::Before => ("before", "after"),
        Widths::After => ("after", "before"),
    };
    if diff.callsites.iter().all(|callsite| callsite.delta.is_zero(view)) {
        return words::nothing(diff, view);
    }
    let what = view.title();
    format!("There are no {what} {when}, so there is nothing to draw; `--widths {other}` draws the other profile.")
}

/// Colour and words of a frame, by its growth including callees.
#[expect(clippy::cast_precision_loss, reason = "widths are exact up to 2^53")]
fn paint(node: &Node<'_, Delta>, view: View, whole: u64) -> Paint {
    let mut delta = node.stacks[0].1;
    node.stacks[1..].iter().for_each(|(_, part)| delta.add(part));
    let [before, after] = [&delta.before, &delta.after].map(|totals| view.estimate(totals));
    let (growth, is_noise) = (delta.growth(view), delta.is_noise(view));
    let colour = match growth {
        0.0 => Colour::unchanged(),
        _ if is_noise => Colour::noise(),
        growth => Colour::of_growth(growth / before.max(after)),
    };
    let noise = if is_noise && growth != 0.0 { ", within the noise" } else { "" };
    let percent = node.width as f64 / whole as f64 * 100.0;
    let growth = words::signed(view, growth);
    let [before, after] = [before, after].map(|amount| words::unsigned(view, amount));
    Paint { colour, is_hatched: false, words: Some(format!("{growth}{noise}; {before} → {after}; {percent:.2}%")) }
}

pub(super) fn write_folded(diff: &Diff<'_>, view: View, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let text = |delta: &Delta| format!("{} {}", view.rounded(&delta.before), view.rounded(&delta.after));
    Ok(merge(diff, view).write(text, out)?)
}

fn merge(diff: &Diff<'_>, view: View) -> Stacks<Delta> {
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
                frames.extend(tables::end_frame(stack.end, stack.frames).map(|end| labels.intern(end)));
                frames.extend(stack.frames().rev().map(|frame| labels.intern(frame_label(stack, frame))));
                frames.into()
            }
        };
        merged.entry(frames).and_modify(|merged| merged.add(delta)).or_insert(*delta);
    }
    Stacks { labels: labels.into_iter().collect(), stacks: merged.into_iter().collect() }
}

/// An address without a module is meaningless unless both profiles have the process.
fn frame_label(stack: &Stack<'_>, frame: &Frame) -> String {
    if frame.function.is_none() && frame.module.is_none() && !stack.of_same_process {
        return "[no module]".to_owned();
    }
    label(&frame.label())
}
