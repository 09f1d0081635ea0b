//! The pane with the stack of the selected callsite.

use heapbpf_ledger::model::Frame;
use heapbpf_report::tables::gap_frames;
use heapbpf_report::text;
use ratatui::style::Style;

use super::area::{Area, scrolled};
use crate::top::flame;
use crate::top::state::{Pane, State};

pub(super) fn stack(area: &mut Area<'_, '_>, state: &mut State) {
    let is_active = state.pane == Pane::Stack;
    let Some(callsite) = state.selected_callsite() else {
        return area.heading(" STACK", "", is_active);
    };
    let gaps: Vec<String> = gap_frames(callsite).collect();
    let frames: Vec<&Frame> = callsite.stack.iter().map(|&id| state.model.profile.frame(id)).collect();
    let heap = state.selected_target().and_then(|target| target.heaps.get(callsite.heap));
    let heap = heap.map(|heap| format!("heap {} ", text::printable(&heap.name))).unwrap_or_default();
    let title = format!(" STACK ({}), allocating function first", text::counted(frames.len() as u64, "frame"));
    area.heading(&title, &heap, is_active);
    // The last line is for the source.
    let height = area.height().saturating_sub(2);
    let first = scrolled(state.sizes.first_frame, state.stack_at, frames.len(), height);
    for (y, (at, frame)) in (1..=height).zip(frames.iter().enumerate().skip(first)) {
        let is_selected = at == state.stack_at;
        let style = if is_selected { area.theme.selected(is_active) } else { Style::new() };
        if is_selected {
            area.fill(y, style);
            area.put(0, y, 1, ">", style);
        }
        let inlined = if frame.inlined { " (inlined)" } else { "" };
        let x = area.put(1, y, area.width(), &format!("{}{inlined}", flame::label(frame)), style);
        let place = place(frame);
        let room = area.width().saturating_sub(x + 2);
        if room >= 8 {
            let weak = if is_selected && is_active { Style::new() } else { area.theme.weak() };
            area.put(x + 2, y, room, &place, style.patch(weak));
        }
    }
    let shown = u16::try_from(frames.len().saturating_sub(first)).unwrap_or(height).min(height);
    for (y, gap) in (shown + 1..=height).zip(gaps) {
        area.put(1, y, area.width(), &gap, area.theme.warning());
    }
    let source = state.source.as_deref().map(|line| format!(" │ {line}"));
    area.line(height + 1, &source.unwrap_or_default(), area.theme.strong());
    state.sizes.first_frame = first;
}

/// Place of a frame: `file:line`, or the module.
fn place(frame: &Frame) -> String {
    let place = match (&frame.file, frame.line, &frame.module) {
        (Some(file), Some(line), _) => format!("{file}:{line}"),
        (Some(file), None, _) => file.to_string(),
        (None, _, Some(module)) => module.to_string(),
        (None, _, None) => String::new(),
    };
    text::printable(&place).into_owned()
}
