//! The flame view: the root at the top, each frame as wide as its share of the zoomed one.

use heapbpf_report::text;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use super::area::{Area, scrolled};
use super::tables;
use crate::top::columns::size;
use crate::top::flame::{Place, ROOT};
use crate::top::state::{Pane, State};

pub(super) fn flame(area: &mut Area<'_, '_>, state: &mut State) {
    let is_active = state.pane == Pane::Body;
    let what = if state.is_difference { "growth" } else { "live bytes" };
    let order = if state.is_reversed { "allocating functions at the top" } else { "outermost functions at the top" };
    let filter = state.filter.as_ref().map(|filter| format!(" · filter `{filter}`")).unwrap_or_default();
    let title = format!(" FLAME VIEW of {what}, {order}{}", text::printable(&filter));
    if state.flame.is_empty() {
        area.heading(&title, "", is_active);
        let nothing = if state.is_difference {
            "nothing has grown; d shows everything".to_owned()
        } else {
            tables::nothing(state)
        };
        return area.line(1, &format!(" {nothing}"), area.theme.weak());
    }
    let (zoomed, framed) = (state.zoomed_node(), state.framed_node());
    let found = matched(state);
    let right = found
        .map(|(count, bytes)| format!("{} of `{}`: {} ", text::counted(count, "match"), searched(state), size(bytes)));
    area.heading(&title, &right.unwrap_or_default(), is_active);
    let places = state.flame.layout(zoomed, area.width());
    let rows = places.iter().map(|place| usize::from(place.row) + 1).max().unwrap_or(1);
    // The last line describes the selected frame.
    let height = area.height().saturating_sub(2);
    let at = places.iter().find(|place| place.node == framed).map_or(0, |place| usize::from(place.row));
    let first = scrolled(state.sizes.first_row, at, rows, height);
    state.sizes.first_row = first;
    let mut visible: Vec<&Place> =
        places.iter().filter(|place| (first..first + usize::from(height)).contains(&usize::from(place.row))).collect();
    visible.sort_by_key(|place| (place.row, place.x));
    let mut last = (u16::MAX, false);
    for place in visible {
        let is_odd = if last.0 == place.row { !last.1 } else { place.row % 2 == 1 };
        last = (place.row, is_odd);
        let y = u16::try_from(usize::from(place.row) - first).unwrap_or(u16::MAX) + 1;
        let style = style(area, state, place.node, framed, is_odd);
        put(area, place, y, &state.flame.name(place.node).label, style);
    }
    let line = describe(state, framed);
    area.line(height + 1, &line, area.theme.strong());
}

fn style(area: &Area<'_, '_>, state: &State, node: usize, framed: usize, is_odd: bool) -> Style {
    let name = state.flame.name(node);
    let is_found = || state.search.as_ref().is_some_and(|pattern| node != ROOT && state.is_match(pattern, node));
    match node {
        _ if node == framed => area.theme.selected_frame(),
        _ if is_found() => area.theme.found_frame(),
        _ => area.theme.frame(&name.label, &name.module, is_odd),
    }
}

/// Writes a label, unless there is space for one letter only, which would be no name.
fn put(area: &mut Area<'_, '_>, place: &Place, y: u16, label: &str, style: Style) {
    let room = usize::from(place.width);
    let text = match room {
        0..=2 => String::new(),
        _ if label.width() < room => format!(" {label}"),
        _ => format!(" {}", text::cut(label, room - 1)),
    };
    let padding = " ".repeat(room.saturating_sub(text.width()));
    area.put(place.x, y, place.width, &format!("{text}{padding}"), style);
}

/// Number of matching frames, and bytes of the stacks through them; `None` without a search.
fn matched(state: &State) -> Option<(u64, f64)> {
    let pattern = state.search.as_ref()?;
    let (mut count, mut bytes) = (0, 0.0);
    let mut left = vec![(ROOT, false)];
    while let Some((node, is_below)) = left.pop() {
        let is_match = node != ROOT && state.is_match(pattern, node);
        count += u64::from(is_match);
        if is_match && !is_below {
            bytes += state.flame.value(node);
        }
        left.extend(state.flame.children(node).iter().map(|&child| (child, is_below || is_match)));
    }
    Some((count, bytes))
}

fn searched(state: &State) -> String {
    let pattern = state.search.as_ref().map(ToString::to_string).unwrap_or_default();
    text::printable(&pattern).into_owned()
}

fn describe(state: &State, node: usize) -> String {
    let name = state.flame.name(node);
    let (value, whole) = (state.flame.value(node), state.flame.value(ROOT));
    let module = if name.module.is_empty() { String::new() } else { format!(" [{}]", name.module) };
    format!(" {} ({}) {}{module}", size(value), text::share(value, whole), name.label)
}
