//! An interactive flame graph in SVG, drawn by inferno.
//!
//! Owns what is written around the graph, and what is drawn when there is none. Which stacks there are, and how frames
//! are named, is the folded format's business.

use std::io;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};
use quick_xml::Writer;
use quick_xml::events::{BytesText, Event};

use super::folded::Stacks;
use super::{Presentation, Report, ReportError, View, describe, text, window};
use crate::model::Profile;

/// Writes flame graphs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flamegraph;

/// Characters of a title or a line below it: what fits 1200 pixels.
pub(super) const TITLE_CHARS_MAX: usize = 110;
pub(super) const SUBTITLE_CHARS_MAX: usize = 165;

/// Characters of a line that says why there is no graph.
const REASON_CHARS_MAX: usize = 140;

/// Hooks that are named there.
const HOOKS_MAX: usize = 5;

/// Characters of a frame. All lines are in memory at once here, and their names are the target's.
pub(super) const FRAME_CHARS_MAX: usize = 1000;

/// Sums up to here are exact in inferno's and the browser's arithmetic, which is in floats.
pub(super) const SUM_MAX: u128 = 1 << 53;

impl Report for Flamegraph {
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let view = presentation.view;
        let mut stacks = Stacks::merge(profile, presentation);
        if stacks.len() == 0 {
            return Ok(draw_nothing(profile, view, out)?);
        }
        stacks.sort_by_frame();
        let sum: u128 = (0..stacks.len()).map(|i| u128::from(stacks.value(i))).sum();
        let shift = (0..64).find(|&shift| sum >> shift <= SUM_MAX).unwrap_or(0);
        let lines: Vec<String> = (0..stacks.len()).map(|i| line(&stacks, i, shift)).collect();

        let mut options = Options::default();
        options.title = title(profile, view);
        options.subtitle = Some(subtitle(profile, view));
        options.notes = notes(profile, view);
        options.count_name = view.unit().to_owned();
        options.colors = Palette::Basic(BasicPalette::Mem);
        if presentation.icicle {
            options.direction = Direction::Inverted;
        }
        // A long name's beginning says more than its end, which is parameters.
        options.text_truncate_direction = TextTruncateDirection::Right;
        // Colours by name and not by chance: the same profile gives the same bytes.
        options.deterministic = true;
        #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
        {
            options.factor = (1_u64 << shift) as f64;
        }
        // In the order of lines, a frame would be drawn in two pieces where another one's name begins like it. This is
        // inferno's way to take an order as it is, from the last line to the first.
        options.flame_chart = true;
        inferno::flamegraph::from_lines(&mut options, lines.iter().rev().map(String::as_str), out)?;
        Ok(())
    }
}

fn line(stacks: &Stacks, i: usize, shift: u32) -> String {
    let frames: Vec<_> = stacks.frames(i).map(|frame| text::cut(frame, FRAME_CHARS_MAX)).collect();
    format!("{} {}", frames.join(";"), stacks.value(i) >> shift)
}

fn title(profile: &Profile, view: View) -> String {
    let title =
        format!("{} of {}{}", describe::title(profile, view), describe::subject(profile), window::title(profile));
    text::cut(&title, TITLE_CHARS_MAX).into_owned()
}

fn subtitle(profile: &Profile, view: View) -> String {
    let total = view.amount(describe::total(profile, view));
    let amount = if profile.unreachable {
        let count = View::LiveCount.amount(describe::total(profile, View::LiveCount));
        format!("{total} in {count}")
    } else {
        format!("{}{total}{}", describe::about(profile.is_exact()), describe::accuracy(profile, view))
    };
    let is_span = profile.window.as_ref().is_some_and(|window| window.number.is_some());
    let delta = is_span.then(|| format!("live {} in the window", window::delta(profile)));
    let folded = describe::folded(profile, view)
        .map(|amount| format!("not drawn: {amount} of {}", describe::folded_processes(profile)));
    let mut parts = vec![amount];
    parts.extend(describe::observed(profile));
    parts.push(describe::losses(profile));
    parts.extend(delta.into_iter().chain(folded));
    text::cut(&parts.join(" · "), SUBTITLE_CHARS_MAX).into_owned()
}

/// What the file should say of its origin; inferno puts it into a comment.
fn notes(profile: &Profile, view: View) -> String {
    let own = describe::own_intervals(profile).into_iter();
    let own: String = own.map(|(heap, bytes)| format!(", of {} {bytes}", text::printable(heap))).collect();
    let mut notes = format!(
        "heapbpf {}; view {view}; from {} to {}; interval {} bytes{}; {}",
        env!("CARGO_PKG_VERSION"),
        text::moment(profile.started_unix_ns),
        text::moment(profile.ended_unix_ns),
        profile.interval_bytes,
        own,
        describe::losses(profile),
    );
    for target in &profile.targets {
        notes.push_str(&format!("; pid {}: {}", target.pid, text::printable(&target.command)));
    }
    // Two hyphens, or one at the end, would end a comment in the wrong place.
    notes.replace('-', "\u{2010}")
}

/// An image that says in words why there is no graph.
fn draw_nothing(profile: &Profile, view: View, out: &mut dyn io::Write) -> io::Result<()> {
    let mut lines = vec![(title(profile, view), "18"), (subtitle(profile, view), "12")];
    let mut unattached = describe::each_once(profile);
    unattached.retain(|(_, hook)| hook.error.is_some());
    // Those first without which the profile is not whole.
    unattached.sort_by_key(|(_, hook)| !hook.is_missing());
    let reasons = unattached.into_iter().take(HOOKS_MAX).map(|(_, hook)| describe::unattached(hook));
    lines.extend(describe::nothing(profile, view).into_iter().chain(reasons).map(|line| {
        let line = text::cut(&line, REASON_CHARS_MAX);
        (line.into_owned(), "14")
    }));
    draw_words(&lines, &notes(profile, view), out)
}

/// An image of lines of text, each with its size.
pub(super) fn draw_words(lines: &[(String, &str)], notes: &str, out: &mut dyn io::Write) -> io::Result<()> {
    let height = (40 + 28 * lines.len()).to_string();
    let view_box = format!("0 0 1200 {height}");

    let mut svg = Writer::new(out);
    svg.create_element("svg")
        .with_attribute(("version", "1.1"))
        .with_attribute(("width", "1200"))
        .with_attribute(("height", height.as_str()))
        .with_attribute(("viewBox", view_box.as_str()))
        .with_attribute(("xmlns", "http://www.w3.org/2000/svg"))
        .write_inner_content(|svg| {
            svg.write_event(Event::Comment(BytesText::new(&format!(" {notes} "))))?;
            svg.create_element("rect")
                .with_attribute(("width", "100%"))
                .with_attribute(("height", "100%"))
                .with_attribute(("fill", "#eef2ee"))
                .write_empty()?;
            for (i, (line, size)) in lines.iter().enumerate() {
                svg.create_element("text")
                    .with_attribute(("x", "50%"))
                    .with_attribute(("y", (40 + 28 * i).to_string().as_str()))
                    .with_attribute(("text-anchor", "middle"))
                    .with_attribute(("font-family", "monospace"))
                    .with_attribute(("font-size", *size))
                    .write_text_content(BytesText::new(line))?;
            }
            Ok(())
        })?;
    svg.into_inner().write_all(b"\n")
}
