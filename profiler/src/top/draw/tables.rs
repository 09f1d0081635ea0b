//! The panes of processes and of callsites.

use heapbpf_ledger::model::MemoryPart;
use heapbpf_report::{describe, function, text};
use ratatui::style::Style;

use super::area::{Area, scrolled};
use crate::top::columns::{CallsiteColumn, Column, Order, TargetColumn, size};
use crate::top::state::{Pane, State};

/// Width of the marker of the selected line.
const MARKER: u16 = 1;
const TREND_WIDTH: u16 = 12;
/// Minimum width of the last column, which has names: other columns are left out before.
const NAME_MIN: u16 = 12;

/// Columns that fit, always with the one by which the table is sorted.
fn fitting<C: Column>(width: u16, order: Order<C>, reserved: u16) -> Vec<C> {
    let needs = |columns: &[C]| columns.iter().map(|column| column.width() + 1).sum::<u16>() + reserved;
    let mut columns = C::ALL.to_vec();
    while needs(&columns) > width && columns.len() > 1 {
        let last = columns.iter().rposition(|column| *column != order.column).unwrap_or(0);
        columns.remove(last);
    }
    columns
}

/// Draws the columns' headings; the one of the order has an arrow. Returns the column behind them.
fn headings<C: Column>(area: &mut Area<'_, '_>, columns: &[C], order: Order<C>, is_active: bool) -> u16 {
    let style = area.theme.heading(is_active);
    area.fill(0, style);
    let mut x = MARKER;
    for column in columns {
        let arrow = match (*column == order.column, order.is_ascending) {
            (false, _) => "",
            (true, false) => "▼",
            (true, true) => "▲",
        };
        let style = if arrow.is_empty() { style } else { style.patch(area.theme.strong()) };
        area.put_right(x, 0, column.width(), &format!("{}{arrow}", column.heading()), style);
        x += column.width() + 1;
    }
    x
}

pub(super) fn targets(area: &mut Area<'_, '_>, state: &mut State) {
    let is_active = state.pane == Pane::Targets;
    let columns = fitting(area.width(), state.target_order, MARKER + NAME_MIN);
    let mut x = headings(area, &columns, state.target_order, is_active);
    let heading = area.theme.heading(is_active);
    let has_trend = area.width() >= x + TREND_WIDTH + 1 + NAME_MIN;
    if has_trend {
        area.put(x, 0, TREND_WIDTH, "TREND", heading);
        x += TREND_WIDTH + 1;
    }
    let room = area.width().saturating_sub(x);
    area.put(x, 0, room, "PROCESS", heading);
    if state.targets.is_empty() {
        return area.line(1, " no process yet", area.theme.weak());
    }
    let selected = state.target_at().unwrap_or(0);
    let height = state.sizes.targets;
    state.sizes.first_target = scrolled(state.sizes.first_target, selected, state.targets.len(), height);
    let first = state.sizes.first_target;
    for (y, (at, row)) in (1..=height).zip(state.targets.iter().enumerate().skip(first)) {
        let is_selected = at == selected;
        let style = begin_row(area, y, is_selected, is_active);
        let mut x = MARKER;
        for column in &columns {
            let grows = *column == TargetColumn::GrowthPerSecond;
            let tint =
                if grows && !(is_selected && is_active) { area.theme.growth(row.growth_per_s) } else { Style::new() };
            area.put_right(x, y, column.width(), &column.text(row), style.patch(tint));
            x += column.width() + 1;
        }
        if has_trend {
            area.put(x, y, TREND_WIDTH, &trend(&row.trend), style);
            x += TREND_WIDTH + 1;
        }
        let facts = &state.model.profile.targets[row.at].facts;
        let name = text::printable(&facts.comm);
        let end = if row.is_running { "" } else { " (exited)" };
        let weak = if row.is_running { Style::new() } else { area.theme.weak() };
        area.put(x, y, room, &format!("{name}{end}  {}", text::printable(&facts.command)), style.patch(weak));
    }
    if area.height() > height + 1 {
        account(area, height + 1, state);
    }
}

/// Trend as block characters, the highest for the maximum of the shown values.
fn trend(values: &[f64]) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &values[values.len().saturating_sub(usize::from(TREND_WIDTH))..];
    let most = shown.iter().copied().fold(0.0, f64::max);
    let least = shown.iter().copied().fold(most, f64::min);
    let span = (most - least).max(most / 100.0).max(1.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 7")]
    let level = |value: &f64| LEVELS[(((value - least) / span * 7.0).round() as usize).min(7)];
    shown.iter().map(level).collect()
}

/// Draws the account of the selected process's resident memory.
fn account(area: &mut Area<'_, '_>, y: u16, state: &State) {
    let Some(row) = state.target_at().map(|at| &state.targets[at]) else { return };
    let Some(rss_bytes) = row.rss_bytes else { return };
    let mut parts: Vec<&MemoryPart> = row.memory.iter().collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    let parts = parts.iter().map(|part| format!("{} {}", text::printable(&part.title()), text::size(part.bytes)));
    let whole = format!(" RSS {} = {}", text::size(rss_bytes), parts.collect::<Vec<_>>().join(" + "));
    area.line(y, &whole, area.theme.weak());
}

pub(super) fn callsites(area: &mut Area<'_, '_>, state: &mut State) {
    let is_active = state.pane == Pane::Body;
    let columns = fitting(area.width(), state.callsite_order, MARKER + NAME_MIN);
    let x = headings(area, &columns, state.callsite_order, is_active);
    let room = area.width().saturating_sub(x);
    area.put(x, 0, room, &title(state), area.theme.heading(is_active));
    if state.callsites.is_empty() {
        return area.line(1, &format!(" {}", nothing(state)), area.theme.weak());
    }
    let selected = state.callsite_at().unwrap_or(0);
    let height = state.sizes.body;
    state.sizes.first_callsite = scrolled(state.sizes.first_callsite, selected, state.callsites.len(), height);
    let found = state.matching(state.search.as_ref());
    let Some(target) = state.selected_target() else { return };
    let rows = state.callsites.iter().enumerate().skip(state.sizes.first_callsite);
    for (y, (at, row)) in (1..=height).zip(rows) {
        let Some(callsite) = target.callsites.get(row.at) else { continue };
        let is_selected = at == selected;
        let style = begin_row(area, y, is_selected, is_active);
        let mut x = MARKER;
        for column in &columns {
            let grows = *column == CallsiteColumn::Growth;
            let tint = if grows && !(is_selected && is_active) { area.theme.growth(row.growth) } else { Style::new() };
            area.put_right(x, y, column.width(), &column.text(row), style.patch(tint));
            x += column.width() + 1;
        }
        let is_found = found.as_ref().is_some_and(|found| callsite.stack.iter().any(|id| found[id.0 as usize]));
        let strong = if is_found { area.theme.strong() } else { Style::new() };
        let name = function::chain(&state.model.profile, &callsite.stack, callsite.end, callsite.inherited);
        area.put(x, y, room, &name, style.patch(strong));
    }
}

fn title(state: &State) -> String {
    let filter = state.filter.as_ref().map(|filter| format!(", filter `{filter}`")).unwrap_or_default();
    let difference = if state.is_difference { ", difference" } else { "" };
    let count = text::count(state.callsites.len() as u64);
    format!("CALLSITE ({count}{difference}{})", text::printable(&filter))
}

pub(super) fn nothing(state: &State) -> String {
    match (&state.filter, state.selected_target()) {
        (_, None) => "no process yet".to_owned(),
        (Some(filter), _) => {
            format!("no stack matches `{}`; k changes the filter", text::printable(&filter.to_string()))
        }
        (None, Some(_)) if state.is_difference => "nothing has changed; d shows everything".to_owned(),
        (None, Some(target)) => {
            let live = size(target.totals.live_bytes().to_f64());
            format!("{}: no sampled allocation yet (live {live})", describe::process(target))
        }
    }
}

/// Marks the row if it is selected. Returns the style of its text.
fn begin_row(area: &mut Area<'_, '_>, y: u16, is_selected: bool, is_active: bool) -> Style {
    if !is_selected {
        return Style::new();
    }
    let style = area.theme.selected(is_active);
    area.fill(y, style);
    area.put(0, y, MARKER, ">", style);
    style
}
