//! Interactive flame graphs in SVG, drawn by inferno from folded stacks.

use std::io;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};
use quick_xml::Writer;
use quick_xml::events::{BytesText, Event};

use super::caption::Caption;
use super::folded::Stacks;
use super::presentation::{Presentation, View};
use super::{describe, text, window};
use crate::model::Profile;

/// Maximum characters of the title and of the line below it: what fits 1200 pixels.
pub(super) const TITLE_CHARS_MAX: usize = 110;
pub(super) const SUBTITLE_CHARS_MAX: usize = 165;

/// Maximum characters of a line that explains why there is no graph.
const REASON_CHARS_MAX: usize = 140;

/// Maximum number of hooks named there.
const HOOKS_MAX: usize = 5;

/// Maximum characters of a frame: all lines are in memory at once, and the target chooses the names.
pub(super) const FRAME_CHARS_MAX: usize = 1000;

/// Sums up to here are exact in inferno's and the browser's floating-point arithmetic.
pub(super) const SUM_MAX: u128 = 1 << 53;

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let header = Header::new(profile, presentation.view);
    let mut stacks = Stacks::merge(profile, presentation);
    if stacks.len() == 0 {
        return draw_reasons(header, profile, presentation.view, out);
    }
    stacks.sort_by_frame();
    let (lines, shift) = lines(&stacks);

    let mut options = Options::default();
    options.title = header.title;
    options.subtitle = Some(header.subtitle);
    options.notes = header.notes;
    options.count_name = presentation.view.unit().to_owned();
    options.colors = Palette::Basic(BasicPalette::Mem);
    if presentation.icicle {
        options.direction = Direction::Inverted;
    }
    // The start of a long name is more useful than its end, which is parameters.
    options.text_truncate_direction = TextTruncateDirection::Right;
    // Colours depend on names and not on chance, so that the same profile gives the same bytes.
    options.deterministic = true;
    #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
    {
        options.factor = (1_u64 << shift) as f64;
    }
    // If inferno sorted the lines, it would draw a frame in two pieces where another frame's name starts with its name. This
    // option keeps the order of the input, from the last line to the first.
    options.flame_chart = true;
    inferno::flamegraph::from_lines(&mut options, lines.iter().rev().map(String::as_str), out)
}

/// Formats the stacks as lines for inferno. Values are shifted right so that their sum stays exact.
fn lines(stacks: &Stacks) -> (Vec<String>, u32) {
    let sum: u128 = stacks.stacks.iter().map(|&(_, value)| u128::from(value)).sum();
    let shift = (0..64).find(|&shift| sum >> shift <= SUM_MAX).unwrap_or(0);
    let line = |i| {
        let frames: Vec<_> = stacks.frames(i).map(|frame| text::cut(frame, FRAME_CHARS_MAX)).collect();
        format!("{} {}", frames.join(";"), stacks.value(i) >> shift)
    };
    ((0..stacks.len()).map(line).collect(), shift)
}

/// Text around the graph.
struct Header {
    title: String,
    subtitle: String,
    /// The file's origin, which inferno puts into a comment.
    notes: String,
}

impl Header {
    fn new(profile: &Profile, view: View) -> Self {
        let caption = Caption::new(profile, view);
        let title = format!("{} of {}", caption.title, caption.subject);
        let mut notes = format!(
            "heapbpf {}; view {view}; from {} to {}; interval {} bytes",
            env!("CARGO_PKG_VERSION"),
            text::moment(profile.started_unix_ns),
            text::moment(profile.ended_unix_ns),
            profile.interval_bytes,
        );
        for (heap, bytes) in describe::own_intervals(profile) {
            notes += &format!(", of {} {bytes}", text::printable(heap));
        }
        notes += &format!("; {}", caption.losses);
        for target in &profile.targets {
            notes += &format!("; pid {}: {}", target.facts.pid, text::printable(&target.facts.command));
        }
        Self {
            title: text::cut(&title, TITLE_CHARS_MAX).into_owned(),
            subtitle: text::cut(&subtitle(profile, view, caption), SUBTITLE_CHARS_MAX).into_owned(),
            // Two hyphens, or one at the end, would end the comment early.
            notes: notes.replace('-', "\u{2010}"),
        }
    }
}

fn subtitle(profile: &Profile, view: View, caption: Caption) -> String {
    let mut parts = vec![caption.total];
    if profile.unreachable {
        let [total, count] = [view, View::LiveCount].map(|view| view.amount(describe::total(profile, view)));
        parts = vec![format!("{total} in {count}")];
    }
    parts.extend(describe::observed(profile));
    parts.push(caption.losses);
    if profile.window.is_some_and(|window| window.number.is_some()) {
        parts.push(format!("live {} in the window", window::delta(profile)));
    }
    parts.extend(caption.left_out.map(|left_out| format!("not drawn: {left_out}")));
    parts.join(" · ")
}

/// Draws an image that explains why there is no graph.
fn draw_reasons(header: Header, profile: &Profile, view: View, out: &mut dyn io::Write) -> io::Result<()> {
    let mut lines = vec![(header.title, "18"), (header.subtitle, "12")];
    let mut unattached = describe::each_once(profile);
    unattached.retain(|(_, hook)| hook.error.is_some());
    // Required hooks first.
    unattached.sort_by_key(|(_, hook)| !hook.is_missing());
    let reasons = unattached.into_iter().take(HOOKS_MAX).map(|(_, hook)| describe::unattached(hook));
    lines.extend(describe::nothing(profile, view).into_iter().chain(reasons).map(|line| {
        let line = text::cut(&line, REASON_CHARS_MAX);
        (line.into_owned(), "14")
    }));
    draw_words(&lines, &header.notes, out)
}

/// Draws an image of lines of text, each with its font size.
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
