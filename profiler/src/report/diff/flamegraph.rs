//! A differential flame graph: the stacks of one of the profiles, coloured by what changed between both.
//!
//! Owns what is written around the graph. A frame's colour is its own growth with all that it calls; see `svg`.

use std::io;

use inferno::flamegraph::color::BackgroundColor;
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};

use super::svg::{self, Tree};
use super::{Change, Diff, Drawing, Widths, folded, words};
use crate::report::flamegraph::{FRAME_CHARS_MAX, SUBTITLE_CHARS_MAX, SUM_MAX, TITLE_CHARS_MAX, draw_words};
use crate::report::folded::Stacks;
use crate::report::{ReportError, View, describe, text};

pub(super) fn write(diff: &Diff<'_>, view: View, drawing: Drawing, out: &mut dyn io::Write) -> Result<(), ReportError> {
    let Drawing { widths, icicle } = drawing;
    let mut stacks = folded::merge(diff, view);
    stacks.stacks.retain(|(_, change)| width(view, widths, change) > 0 || !change.is_nothing(view));
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
    let tree = Tree::new(&stacks, view, |change| width(view, widths, change) >> shift);

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
    // An order as it is, from the last line to the first: see the flame graph of one profile.
    options.flame_chart = true;
    let mut image = Vec::new();
    inferno::flamegraph::from_lines(&mut options, lines.iter().rev().map(String::as_str), &mut image)?;
    let image = String::from_utf8(image).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    svg::coloured(&image, &tree, view, icicle, out)?;
    Ok(())
}

/// The whole number that the frames' widths are made of.
fn width(view: View, widths: Widths, change: &Change) -> u64 {
    match widths {
        Widths::Before => view.rounded(&change.before),
        Widths::After => view.rounded(&change.after),
    }
}

fn line(stacks: &Stacks<Change>, i: usize) -> String {
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

/// What the file should say of its origin; inferno puts it into a comment.
fn notes(diff: &Diff<'_>, view: View) -> String {
    let side = |side: super::Side<'_>| format!("{}: {}", words::name(side), words::side(side.profile));
    let notes = format!(
        "heapbpf {}; growth; view {view}; before: {}; after: {}",
        env!("CARGO_PKG_VERSION"),
        side(diff.before),
        side(diff.after),
    );
    // Two hyphens, or one at the end, would end a comment in the wrong place.
    notes.replace('-', "\u{2010}")
}

/// An image that says in words why there is no graph.
fn draw_nothing(diff: &Diff<'_>, view: View, widths: Widths, out: &mut dyn io::Write) -> io::Result<()> {
    let is_elsewhere = diff.callsites.iter().any(|callsite| !callsite.change.is_nothing(view));
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
