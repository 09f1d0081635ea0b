//! Interactive flame graphs in SVG, drawn by inferno from folded stacks.

use std::io;

use inferno::flamegraph::color::{BasicPalette, Palette};
use inferno::flamegraph::{Direction, Options, TextTruncateDirection};
use quick_xml::escape::escape;

use super::describe::Caption;
use super::folded::Stacks;
use super::presentation::{Presentation, View};
use super::{describe, text};
use crate::model::Profile;

/// What fits 1200 pixels.
const TITLE_CHARS_MAX: usize = 110;
const SUBTITLE_CHARS_MAX: usize = 165;
const REASON_CHARS_MAX: usize = 140;
const HOOKS_MAX: usize = 5;

/// Maximum characters of a frame: all lines are in memory at once, and the target chooses the names.
const FRAME_CHARS_MAX: usize = 1000;

/// Sums up to here are exact in inferno's and the browser's floating-point arithmetic.
const SUM_MAX: u128 = 1 << 53;

pub(super) struct Header {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) notes: String,
}

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let Presentation { view, icicle, .. } = *presentation;
    let mut stacks = Stacks::merge(profile, presentation);
    let caption = Caption::new(profile, view);

    let mut parts = if profile.unreachable {
        let totals = describe::totals(profile);
        let [total, count] = [view, View::LiveCount].map(|view| view.amount(view.rounded(&totals)));
        vec![format!("{total} in {count}"), describe::checked_at(profile).unwrap_or_default()]
    } else {
        let recorded = format!("recorded for {}", text::duration(describe::duration_ns(profile)));
        vec![caption.total, caption.interval, recorded]
    };
    parts.push(caption.verdict.clone());
    if profile.window.is_some_and(|window| window.number.is_some()) {
        parts.push(format!("live {} in the window", describe::delta(profile)));
    }
    parts.extend(caption.left_out.map(|left_out| format!("not drawn: {left_out}")));

    let [started, ended] = [profile.started_unix_ns, profile.ended_unix_ns].map(text::moment);
    let version = env!("CARGO_PKG_VERSION");
    let interval_bytes = profile.interval_bytes;
    let mut notes =
        format!("heapbpf {version}; view {view}; from {started} to {ended}; interval {interval_bytes} bytes");
    for (heap, bytes) in describe::own_intervals(profile) {
        notes += &format!(", of {} {bytes}", text::printable(heap));
    }
    notes += &format!("; {}", caption.verdict);
    for target in &profile.targets {
        notes += &format!("; pid {}: {}", target.facts.pid, text::printable(&target.facts.command));
    }

    let title = format!("{} of {}", caption.title, caption.subject);
    let header = Header { title, subtitle: parts.join(" · "), notes };
    let (lines, shift) = lines(&mut stacks, |&value| value);
    if lines.is_empty() {
        return draw_words(&header, &reasons(profile, view), out);
    }
    let style = |options: &mut Options<'_>| {
        options.colors = Palette::Basic(BasicPalette::Mem);
        #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
        {
            options.factor = (1_u64 << shift) as f64;
        }
    };
    draw(header, view, icicle, &lines, style, out)
}

/// Leaves out stacks without a width. Widths are shifted right so that their sum stays exact.
pub(super) fn lines<V: Copy>(stacks: &mut Stacks<V>, width: impl Fn(&V) -> u64) -> (Vec<String>, u32) {
    stacks.sort_by_frame();
    let sum: u128 = stacks.stacks.iter().map(|(_, value)| u128::from(width(value))).sum();
    let shift = (0..64).find(|&shift| sum >> shift <= SUM_MAX).unwrap_or(0);
    let lines = stacks.stacks.iter().filter_map(|(frames, value)| {
        let width = width(value) >> shift;
        let frames = frames.iter().map(|&label| text::cut(&stacks.labels[label as usize], FRAME_CHARS_MAX));
        (width > 0).then(|| format!("{} {width}", frames.collect::<Vec<_>>().join(";")))
    });
    (lines.collect(), shift)
}

/// `lines` are sorted by frame.
pub(super) fn draw(
    header: Header,
    view: View,
    icicle: bool,
    lines: &[String],
    style: impl FnOnce(&mut Options<'_>),
    out: impl io::Write,
) -> io::Result<()> {
    let mut options = Options::default();
    options.title = text::cut(&header.title, TITLE_CHARS_MAX).into_owned();
    options.subtitle = Some(text::cut(&header.subtitle, SUBTITLE_CHARS_MAX).into_owned());
    options.notes = comment(&header.notes);
    options.count_name = view.unit().to_owned();
    if icicle {
        options.direction = Direction::Inverted;
    }
    // The start of a long name is more useful than its end, which is parameters.
    options.text_truncate_direction = TextTruncateDirection::Right;
    // Colours depend on names and not on chance, so that the same profile gives the same bytes.
    options.deterministic = true;
    // If inferno sorted the lines, it would draw a frame in two pieces where another frame's name starts with its
    // name. This option draws the lines from the last to the first.
    options.flame_chart = true;
    style(&mut options);
    inferno::flamegraph::from_lines(&mut options, lines.iter().rev().map(String::as_str), out)
}

/// Two hyphens, or one at the end, would end the comment early.
fn comment(notes: &str) -> String {
    notes.replace('-', "\u{2010}")
}

fn reasons(profile: &Profile, view: View) -> Vec<String> {
    let mut unattached = describe::each_once(profile);
    unattached.retain(|(_, hook)| hook.error.is_some());
    unattached.sort_by_key(|(_, hook)| !hook.is_missing());
    let unattached = unattached.into_iter().take(HOOKS_MAX).map(|(_, hook)| describe::unattached(hook));
    describe::nothing(profile, view).into_iter().chain(unattached).collect()
}

pub(super) fn draw_words(header: &Header, words: &[String], out: &mut dyn io::Write) -> io::Result<()> {
    let title = (text::cut(&header.title, TITLE_CHARS_MAX), "18");
    let subtitle = (text::cut(&header.subtitle, SUBTITLE_CHARS_MAX), "12");
    let words = words.iter().map(|line| (text::cut(line, REASON_CHARS_MAX), "14"));
    let lines: Vec<_> = [title, subtitle].into_iter().chain(words).collect();
    let height = 40 + 28 * lines.len();
    let texts = lines.iter().enumerate().map(|(i, (line, size))| {
        let (y, line) = (40 + 28 * i, escape(&**line));
        format!(
            "<text x=\"50%\" y=\"{y}\" text-anchor=\"middle\" font-family=\"monospace\" font-size=\"{size}\">{line}</text>"
        )
    });
    writeln!(
        out,
        "<svg version=\"1.1\" width=\"1200\" height=\"{height}\" viewBox=\"0 0 1200 {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\"><!-- {} --><rect width=\"100%\" height=\"100%\" fill=\"#eef2ee\"/>{}</svg>",
        escape(comment(&header.notes)),
        texts.collect::<String>(),
    )
}
