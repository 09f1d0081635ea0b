//! Draws the screen. Works at any size; at 80 × 24, all panes are shown.

mod area;
mod flame;
mod stack;
mod tables;
mod text;

use area::{Area, Canvas};
use heapbpf_report::text as format;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use super::columns;
use super::state::{Body, Pane, Prompt, State};
use super::theme::Theme;

/// Minimum width and maximum height at which the stack is beside the callsites.
const WIDE: u16 = 120;
const HIGH: u16 = 36;

/// Areas of the panes; empty where there is no space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Panes {
    header: Rect,
    targets: Rect,
    body: Rect,
    stack: Rect,
    footer: Rect,
}

impl Panes {
    fn of(area: Rect, targets: usize, body: Body) -> Self {
        let line = |y: u16| Rect { y: area.y + y, height: 1, ..area };
        let inner = area.height.saturating_sub(2);
        let most = (inner / 4).max(1);
        let rows = u16::try_from(targets.max(1)).unwrap_or(u16::MAX).min(most);
        // The height includes the pane's heading, and the account of the selected process.
        let top = (rows + 1 + u16::from(inner >= 14)).min(inner);
        let left = inner - top;
        let shows_stack = body == Body::Callsites && left >= 7;
        let (body, stack) = match shows_stack {
            false => ([0, 0, area.width, left], [0; 4]),
            true if area.width >= WIDE && area.height < HIGH => {
                let width = area.width * 11 / 20;
                ([0, 0, width, left], [width + 1, 0, area.width - width - 1, left])
            }
            true => {
                let height = (left * 2 / 5).max(3);
                ([0, 0, area.width, left - height], [0, left - height, area.width, height])
            }
        };
        let below = |[x, y, width, height]: [u16; 4]| Rect::new(area.x + x, area.y + 1 + top + y, width, height);
        Self {
            header: line(0),
            targets: Rect { y: area.y + 1, height: top, ..area },
            body: below(body),
            stack: below(stack),
            footer: line(area.height.saturating_sub(1)),
        }
    }
}

pub(crate) fn draw(frame: &mut Frame<'_>, state: &mut State, theme: Theme) {
    let area = frame.area();
    if area.width < 4 || area.height < 3 {
        return;
    }
    let panes = Panes::of(area, state.targets.len(), state.body);
    let lines = |area: Rect| area.height.saturating_sub(1);
    state.sizes.targets = lines(panes.targets) - u16::from(area.height >= 16).min(lines(panes.targets));
    (state.sizes.body, state.sizes.body_width) = (lines(panes.body), panes.body.width);
    state.sizes.stack = lines(panes.stack).saturating_sub(1);
    let mut canvas = Canvas { frame, theme };
    header(&mut canvas.within(panes.header), state);
    tables::targets(&mut canvas.within(panes.targets), state);
    if state.shows_help {
        state.sizes.body = lines(panes.body) + panes.stack.height;
        let whole = Rect { width: area.width, height: panes.footer.y - panes.body.y, ..panes.body };
        text::help(&mut canvas.within(whole), state);
    } else {
        match state.body {
            Body::Callsites => tables::callsites(&mut canvas.within(panes.body), state),
            Body::Flame => flame::flame(&mut canvas.within(panes.body), state),
            Body::Health => text::health(&mut canvas.within(panes.body), state),
        }
        if panes.stack.height > 0 {
            stack::stack(&mut canvas.within(panes.stack), state);
        }
    }
    footer(&mut canvas.within(panes.footer), state);
}

fn header(area: &mut Area<'_, '_>, state: &State) {
    let theme = area.theme;
    let sum = |value: fn(&super::model::TargetRow) -> f64| {
        state.targets.iter().filter(|row| row.is_running).map(value).sum::<f64>()
    };
    let status = state.status;
    let since = match state.model.since_mark_ns() {
        Some(nanos) => format!(" since the mark {}", format::duration(whole_seconds(nanos))),
        None => String::new(),
    };
    let plain = Style::new();
    let time = format::duration(whole_seconds(state.model.elapsed_ns()));
    let (live, growth) = (columns::size(sum(|row| row.live)), columns::change(sum(|row| row.growth)));
    let mut parts = vec![(format!("heapbpf top {time}"), theme.strong())];
    if state.is_paused {
        parts.push(("PAUSED".to_owned(), theme.warning()));
    }
    let dropped = state.model.profile.health.lost_total();
    if dropped > 0 {
        parts.push((format!("{} DROPPED", format::count(dropped)), theme.error()));
    }
    parts.push((format!("live {live} ({growth}{since})"), plain));
    if dropped == 0 {
        parts.push(("no drops".to_owned(), plain));
    }
    parts.push((format!("alloc {}/s", columns::size(sum(|row| row.allocated_per_s))), plain));
    if let Some(percent) = status.overhead_percent {
        parts.push((format!("overhead {:.1}%", percent.min(100.0)), plain));
    }
    parts.push((every(state), if status.limited_to.is_some() { theme.warning() } else { plain }));
    let mut x = 0;
    for (text, style) in parts {
        let gap = u16::from(x > 0) * 3;
        if x > 0 && usize::from(x + gap) + text.width() > usize::from(area.width()) {
            continue;
        }
        if x > 0 {
            area.put(x, 0, gap, " · ", theme.weak());
        }
        x = area.put(x + gap, 0, area.width(), &text, style);
    }
}

fn every(state: &State) -> String {
    let nanos = |period: std::time::Duration| u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
    match state.status.limited_to {
        Some(period) => format!("every {} (CPU limit)", format::duration(nanos(period))),
        None => format!("every {}", format::duration(nanos(state.period))),
    }
}

fn whole_seconds(nanos: u64) -> u64 {
    nanos / 1_000_000_000 * 1_000_000_000
}

/// Draws the question, the message, or the most important keys.
fn footer(area: &mut Area<'_, '_>, state: &State) {
    let theme = area.theme;
    if let Some(prompt) = &state.prompt {
        let (question, text) = match prompt {
            Prompt::Search(line) => ("search (regular expression): ", line.text.as_str()),
            Prompt::Filter(line) => ("show only stacks with (regular expression; empty: all): ", line.text.as_str()),
            Prompt::Save(line) => ("save to (the extension selects the format): ", line.text.as_str()),
            Prompt::Replace(_) => ("the file exists; replace it? (y/n) ", ""),
        };
        let width = usize::from(area.width());
        // The end of a long text is shown, because it is edited there.
        let question = if question.width() + 12 > width { ": " } else { question };
        let room = width.saturating_sub(question.width() + 1);
        let hidden = text.chars().count().saturating_sub(room);
        let shown: String = text.chars().skip(hidden).collect();
        let x = area.put(0, 0, area.width(), question, theme.strong());
        let x = area.put(x, 0, area.width(), &format::printable(&shown), Style::new());
        area.put(x, 0, 1, "█", Style::new());
        return;
    }
    if let Some(message) = &state.message {
        let style = if message.is_error { theme.error() } else { theme.strong() };
        return area.line(0, &format::printable(&message.text), style);
    }
    let keys: &[(&str, &str)] = match (state.pane, state.body) {
        (Pane::Body, Body::Flame) if !state.shows_help => &[
            ("?", "help"),
            ("q", "quit"),
            ("Enter", "zoom"),
            ("Bksp", "out"),
            ("r", "reverse"),
            ("/", "search"),
            ("c", "callsites"),
            ("Tab", "pane"),
            ("d", "difference"),
            ("s", "save"),
        ],
        _ => &[
            ("?", "help"),
            ("q", "quit"),
            ("Tab", "pane"),
            ("<>", "sort"),
            ("f", "flame"),
            ("/", "search"),
            ("k", "filter"),
            ("m", "mark"),
            ("d", "diff"),
            ("s", "save"),
            ("p", "pause"),
            ("H", "health"),
        ],
    };
    let mut x = 0;
    for (key, text) in keys {
        if usize::from(x) + key.width() + text.width() + 2 > usize::from(area.width()) {
            break;
        }
        x = area.put(x, 0, area.width(), key, theme.heading(false));
        x = area.put(x, 0, area.width(), &format!("{text} "), Style::new());
    }
}

#[cfg(test)]
mod tests;
