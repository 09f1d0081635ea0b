//! The health view and the help.

use heapbpf_report::View;
use heapbpf_report::summary::health_lines;
use ratatui::style::Style;

use super::area::Area;
use crate::top::input::BINDINGS;
use crate::top::state::{Pane, State};

pub(super) fn health(area: &mut Area<'_, '_>, state: &mut State) {
    let is_active = state.pane == Pane::Body;
    area.heading(" HEALTH of the recording: what is missing, and what it costs", "", is_active);
    let width = usize::from(area.width()).max(8);
    let wrap = |line: &String| -> Vec<String> {
        let indent = " ".repeat(line.len() - line.trim_start().len());
        let later = format!("{indent}  ");
        let options = textwrap::Options::new(width).initial_indent(&indent).subsequent_indent(&later);
        textwrap::wrap(line.trim_start(), options).into_iter().map(|line| line.into_owned()).collect()
    };
    let lines: Vec<String> = health_lines(&state.model.profile, View::LiveBytes).iter().flat_map(wrap).collect();
    let lines: Vec<(String, Style)> = lines.into_iter().map(|line| (line, Style::new())).collect();
    scrolling(area, state, &lines);
}

pub(super) fn help(area: &mut Area<'_, '_>, state: &mut State) {
    area.heading(" HELP", "any other key closes the help ", true);
    let strong = area.theme.strong();
    let mut columns: Vec<Vec<(String, Style)>> = Vec::new();
    for (title, bindings) in BINDINGS {
        let mut lines = vec![((*title).to_owned(), strong)];
        lines.extend(bindings.iter().map(|it| (format!("  {:<9} {}", it.keys, it.text), Style::new())));
        lines.push((String::new(), Style::new()));
        columns.push(lines);
    }
    let lines: Vec<(String, Style)> = columns.into_iter().flatten().chain(meanings(strong)).collect();
    scrolling(area, state, &lines);
}

fn meanings(strong: Style) -> Vec<(String, Style)> {
    const MEANINGS: [(&str, &str); 6] = [
        ("LIVE", "bytes allocated and not freed"),
        ("GROWTH", "of live bytes since the mark, or since the recording started"),
        ("ALLOC/s", "bytes allocated per second since the last refresh, freed or not"),
        ("AGE", "median age of the live blocks"),
        ("TEMP", "share of blocks freed before the next allocation; needs --interval 1"),
        ("TREND", "live bytes at the last refreshes"),
    ];
    let lines = MEANINGS.map(|(name, text)| (format!("  {name:<9} {text}"), Style::new()));
    std::iter::once(("Columns".to_owned(), strong)).chain(lines).collect()
}

fn scrolling(area: &mut Area<'_, '_>, state: &mut State, lines: &[(String, Style)]) {
    let height = usize::from(area.height().saturating_sub(1));
    state.scroll = state.scroll.min(lines.len().saturating_sub(height));
    let shown = lines.iter().skip(state.scroll);
    for (y, (line, style)) in (1..=area.height().saturating_sub(1)).zip(shown) {
        area.line(y, line, *style);
    }
}
