//! Differential flame graphs, and stacks folded with two values, before and after, as `difffolded.pl` writes them.
//! inferno colours a frame by its own change without its callees, which leaves all but leaf frames without a colour.
//! Its image is recoloured here by growth including callees.

use std::io::{self, Write};

use inferno::flamegraph::Options;
use inferno::flamegraph::color::BackgroundColor;
use rustc_hash::FxHashMap;

use super::comparison::{Delta, Diff, Stack};
use super::describe as words;
use crate::model::Frame;
use crate::report::flamegraph::{self, Header};
use crate::report::folded::{Labels, Stacks, label};
use crate::report::tables::Intern;
use crate::report::{ReportError, View, describe, tables};

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
    let (lines, shift) = flamegraph::lines(&mut stacks, width);
    if lines.is_empty() {
        return Ok(flamegraph::draw_words(&header, &[reason(diff, view, widths)], out)?);
    }
    let tree = Tree::new(&stacks, view, |delta| width(delta) >> shift);
    let mut image = Vec::new();
    let style = |options: &mut Options<'_>| options.bgcolors = Some(BackgroundColor::Grey);
    flamegraph::draw(header, view, icicle, &lines, style, &mut image)?;
    let image = String::from_utf8(image).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(recolour(&image, &tree, view, icicle, out)?)
}

fn header(diff: &Diff<'_>, view: View, widths: Widths) -> Header {
    let sides = [diff.before, diff.after];
    let [before, after] = sides.map(words::name);
    let total = diff.total();
    let about = describe::about(diff.is_exact());
    let range = words::range(view, &total).map(|range| format!(" (95 %: {range})")).unwrap_or_default();
    let noise = if diff.is_exact() { "" } else { ", grey within the noise" };
    let intervals = match sides.map(|side| describe::interval(side.profile)) {
        [before, after] if before == after => before,
        [before, after] => format!("{before}, then {after}"),
    };
    let mut parts = vec![
        format!("{about}{}{range}", words::signed(view, total.growth(view))),
        format!("red grew, blue shrank{noise}"),
        format!("widths: {widths}"),
        intervals,
    ];
    let incomplete = [("before", diff.before), ("after", diff.after)];
    let incomplete = incomplete.into_iter().filter(|(_, side)| side.profile.incomplete());
    parts.extend(incomplete.map(|(when, _)| format!("{when} is incomplete")));
    let [before_details, after_details] = sides.map(|side| words::side(side.profile));
    let version = env!("CARGO_PKG_VERSION");
    Header {
        title: format!("growth of {} of {} · {before} → {after}", view.title(), words::subject(diff)),
        subtitle: parts.join(" · "),
        notes: format!(
            "heapbpf {version}; growth; view {view}; before: {before}: {before_details}; after: {after}: {after_details}"
        ),
    }
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

/// Pixels from one row of frames to the next.
const ROW_HEIGHT: i64 = 16;
const FRAME: &str = "<g><title>";
const TITLE_END: &str = "</title>";
const FILL: &str = "fill=\"rgb(";

struct Tree {
    frames: FxHashMap<(u64, usize), Growth>,
    whole: f64,
}

#[derive(Clone, Copy)]
struct Growth {
    before: f64,
    after: f64,
    growth: f64,
    is_noise: bool,
    width: u64,
}

struct Open {
    start: u64,
    delta: Delta,
}

impl Tree {
    /// `stacks` are sorted by frame.
    fn new(stacks: &Stacks<Delta>, view: View, width: impl Fn(&Delta) -> u64) -> Self {
        let mut tree = Self { frames: FxHashMap::default(), whole: 0.0 };
        let mut open: Vec<Open> = Vec::new();
        let mut last: &[u32] = &[];
        let mut at = 0_u64;
        for (stack, delta) in &stacks.stacks {
            let shared =
                if open.is_empty() { 0 } else { 1 + stack.iter().zip(last).take_while(|(a, b)| a == b).count() };
            tree.close(&mut open, shared, at, view);
            open.iter_mut().for_each(|open| open.delta.add(delta));
            // The common root is not in the stacks.
            open.extend((open.len()..=stack.len()).map(|_| Open { start: at, delta: *delta }));
            at += width(delta);
            last = stack;
        }
        tree.close(&mut open, 0, at, view);
        tree
    }

    fn close(&mut self, open: &mut Vec<Open>, depth: usize, at: u64, view: View) {
        while open.len() > depth {
            let Some(Open { start, delta }) = open.pop() else { return };
            if at > start {
                let growth = Growth {
                    before: view.estimate(&delta.before),
                    after: view.estimate(&delta.after),
                    growth: delta.growth(view),
                    is_noise: delta.is_noise(view),
                    width: at - start,
                };
                self.frames.insert((start, open.len()), growth);
                self.whole = if open.is_empty() { (at - start) as f64 } else { self.whole };
            }
        }
    }
}

impl Growth {
    /// White without a change, grey for an insignificant one, else red or blue with a saturation by relative growth.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 255")]
    fn colour(&self) -> String {
        if self.growth == 0.0 {
            return "250,250,250".to_owned();
        }
        if self.is_noise {
            return "205,205,205".to_owned();
        }
        let part = (self.growth.abs() / self.before.max(self.after)).clamp(0.0, 1.0);
        // From a tint distinguishable from white to the full colour.
        let pale = (215.0 - 105.0 * part) as u8;
        if self.growth > 0.0 { format!("255,{pale},{pale}") } else { format!("{pale},{pale},255") }
    }

    /// `+1.0 MiB, 95 %: … to …; 2.0 MiB → 3.0 MiB; 12.34% of the width`, without parentheses, which the image's script removes.
    fn words(&self, view: View, whole: f64) -> String {
        let [before, after] = [self.before, self.after].map(|amount| words::unsigned(view, amount));
        let noise = if self.is_noise && self.growth != 0.0 { ", within the noise" } else { "" };
        let percent = self.width as f64 / whole * 100.0;
        format!("{}{noise}; {before} → {after}; {percent:.2}%", words::signed(view, self.growth))
    }
}

fn recolour(image: &str, tree: &Tree, view: View, icicle: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut pieces = image.split(FRAME);
    out.write_all(pieces.next().unwrap_or_default().as_bytes())?;
    let pieces: Vec<&str> = pieces.collect();
    // The root is the bottom row, or the top one of an icicle graph.
    let rows = pieces.iter().filter_map(|piece| number(piece, " y=\""));
    let root_y = if icicle { rows.min() } else { rows.max() }.unwrap_or_default();
    for piece in pieces {
        out.write_all(FRAME.as_bytes())?;
        match frame(piece, tree, root_y).and_then(|growth| redrawn(piece, &growth, view, tree.whole)) {
            Some(piece) => out.write_all(piece.as_bytes())?,
            None => out.write_all(piece.as_bytes())?,
        }
    }
    writeln!(out)
}

fn frame(piece: &str, tree: &Tree, root_y: i64) -> Option<Growth> {
    let depth = usize::try_from((root_y - number(piece, " y=\"")?).abs() / ROW_HEIGHT).ok()?;
    let start = u64::try_from(number(piece, "fg:x=\"")?).ok()?;
    tree.frames.get(&(start, depth)).copied()
}

/// The number after a mark in the rectangle. Names precede it and are escaped.
fn number(piece: &str, mark: &str) -> Option<i64> {
    let rectangle = &piece[piece.find(TITLE_END)?..];
    let digits = &rectangle[rectangle.find(mark)? + mark.len()..];
    digits[..digits.find('"')?].parse().ok()
}

fn redrawn(piece: &str, growth: &Growth, view: View, whole: f64) -> Option<String> {
    let (title, rest) = piece.split_once(TITLE_END)?;
    let name = &title[..title.rfind(" (")?];
    let (before, rest) = rest.split_once(FILL)?;
    let (_, rest) = rest.split_once(')')?;
    let words = growth.words(view, whole);
    Some(format!("{name} ({words}){TITLE_END}{before}{FILL}{}){rest}", growth.colour()))
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
