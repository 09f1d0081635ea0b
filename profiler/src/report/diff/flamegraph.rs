//! A differential flame graph: the stacks of one of the profiles, coloured by growth.
//!
//! inferno colours a frame by the change in the frame itself without its callees, so that only leaf frames would have a
//! colour. Here a frame's colour is the growth of the frame including its callees; inferno's image is recoloured.

use std::io::{self, Write};

use inferno::flamegraph::color::BackgroundColor;
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};

use rustc_hash::FxHashMap;

use super::comparison::{Delta, Diff, Side};
use super::{describe as words, folded};
use crate::report::flamegraph::{FRAME_CHARS_MAX, SUBTITLE_CHARS_MAX, SUM_MAX, TITLE_CHARS_MAX, draw_words};
use crate::report::folded::Stacks;
use crate::report::{ReportError, View, describe, text};

/// The profile that determines the widths of a flame graph's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Widths {
    /// The earlier one: freed callsites are visible, new ones are not.
    Before,
    /// The later one: new callsites are visible, freed ones are not.
    #[default]
    After,
}

/// Options of the flame graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawing {
    /// Determines the widths of frames.
    pub widths: Widths,
    /// Outermost frames at the top.
    pub icicle: bool,
}

pub(super) fn write(diff: &Diff<'_>, view: View, drawing: Drawing, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let Drawing { widths, icicle } = drawing;
    let mut stacks = folded::merge(diff, view);
    stacks.stacks.retain(|(_, delta)| width(view, widths, delta) > 0 || !delta.is_zero(view));
    let sum: u128 = (0..stacks.len()).map(|i| u128::from(width(view, widths, &stacks.value(i)))).sum();
    if sum == 0 {
        return Ok(draw_nothing(diff, view, widths, out)?);
    }
    stacks.sort_by_frame();
    let shift = (0..64).find(|&shift| sum >> shift <= SUM_MAX).unwrap_or(0);
    let lines = (0..stacks.len()).filter_map(|i| {
        let width = width(view, widths, &stacks.value(i)) >> shift;
        (width > 0).then(|| format!("{} {width}", line(&stacks, i)))
    });
    let lines: Vec<String> = lines.collect();
    let tree = Tree::new(&stacks, view, |delta| width(view, widths, delta) >> shift);

    let mut options = Options::default();
    options.title = title(diff, view);
    options.subtitle = Some(subtitle(diff, view, widths));
    options.notes = notes(diff, view);
    options.count_name = view.unit().to_owned();
    options.bgcolors = Some(BackgroundColor::Grey);
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.deterministic = true;
    if icicle {
        options.direction = Direction::Inverted;
    }
    // inferno keeps the order of lines, from the last to the first: see the flame graph of one profile.
    options.flame_chart = true;
    let mut image = Vec::new();
    inferno::flamegraph::from_lines(&mut options, lines.iter().rev().map(String::as_str), &mut image)?;
    let image = String::from_utf8(image).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    recolour(&image, &tree, view, icicle, out)?;
    Ok(())
}

/// The number that determines the widths of frames.
fn width(view: View, widths: Widths, delta: &Delta) -> u64 {
    match widths {
        Widths::Before => view.rounded(&delta.before),
        Widths::After => view.rounded(&delta.after),
    }
}

fn line(stacks: &Stacks<Delta>, i: usize) -> String {
    let frames: Vec<_> = stacks.frames(i).map(|frame| text::cut(frame, FRAME_CHARS_MAX)).collect();
    frames.join(";")
}

fn title(diff: &Diff<'_>, view: View) -> String {
    let [before, after] = [diff.before, diff.after].map(words::name);
    let title = format!("growth of {} of {} · {before} → {after}", view.title(), words::subject(diff));
    text::cut(&title, TITLE_CHARS_MAX).into_owned()
}

fn subtitle(diff: &Diff<'_>, view: View, widths: Widths) -> String {
    let total = diff.total();
    let range = words::range(view, &total).map(|range| format!(" (95 %: {range})")).unwrap_or_default();
    let about = describe::about(diff.is_exact());
    let noise = if diff.is_exact() { "" } else { ", grey within the noise" };
    let colours = format!("red grew, blue shrank{noise}");
    let widths = match widths {
        Widths::Before => "widths: before",
        Widths::After => "widths: after",
    };
    let intervals = [diff.before, diff.after].map(|side| describe::interval(side.profile));
    let intervals = match &intervals {
        [before, after] if before == after => before.clone(),
        [before, after] => format!("{before}, then {after}"),
    };
    let mut parts = vec![
        format!("{about}{}{range}", words::signed(view, total.growth(view))),
        colours,
        widths.to_owned(),
        intervals,
    ];
    let incomplete = [("before", diff.before), ("after", diff.after)];
    let incomplete = incomplete.into_iter().filter(|(_, side)| side.profile.incomplete());
    parts.extend(incomplete.map(|(when, _)| format!("{when} is incomplete")));
    text::cut(&parts.join(" · "), SUBTITLE_CHARS_MAX).into_owned()
}

/// The origin of the file; inferno writes it into a comment.
fn notes(diff: &Diff<'_>, view: View) -> String {
    let side = |side: Side<'_>| format!("{}: {}", words::name(side), words::side(side.profile));
    let notes = format!(
        "heapbpf {}; growth; view {view}; before: {}; after: {}",
        env!("CARGO_PKG_VERSION"),
        side(diff.before),
        side(diff.after),
    );
    // Hyphens could end the comment early.
    notes.replace('-', "\u{2010}")
}

/// An image with the reason why there is no graph.
fn draw_nothing(diff: &Diff<'_>, view: View, widths: Widths, out: &mut dyn io::Write) -> io::Result<()> {
    let is_elsewhere = diff.callsites.iter().any(|callsite| !callsite.delta.is_zero(view));
    let (when, other) = match widths {
        Widths::Before => ("before", "after"),
        Widths::After => ("after", "before"),
    };
    let why = if is_elsewhere {
        format!(
            "There are no {} {when}, so there is nothing to draw; `--widths {other}` draws the other profile.",
            view.title()
        )
    } else {
        words::nothing(diff, view)
    };
    let lines = [(title(diff, view), "18"), (subtitle(diff, view, widths), "12"), (why, "14")];
    draw_words(&lines, &notes(diff, view), out)
}

/// Pixels from one row of frames to the next.
const ROW_HEIGHT: i64 = 16;

/// Markup of a frame in inferno's image.
const FRAME: &str = "<g><title>";
const TITLE_END: &str = "</title>";
const FILL: &str = "fill=\"rgb(";

/// The frames with a width, by start and depth.
struct Tree {
    frames: FxHashMap<(u64, usize), Growth>,
    whole: f64,
}

/// Amounts of a frame including its callees.
#[derive(Clone, Copy)]
struct Growth {
    before: f64,
    after: f64,
    growth: f64,
    is_noise: bool,
    width: u64,
}

/// A frame with further stacks to add.
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

/// Writes the image with new colours and titles of frames.
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
