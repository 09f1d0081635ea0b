//! A part of the screen, and writing in it.

use heapbpf_report::text::plain;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use unicode_width::UnicodeWidthStr;

use crate::top::theme::Theme;

pub(super) struct Canvas<'a, 'frame> {
    pub(super) frame: &'a mut Frame<'frame>,
    pub(super) theme: Theme,
}

/// A part of the screen, which cannot be drawn beyond.
pub(super) struct Area<'a, 'frame> {
    pub(super) frame: &'a mut Frame<'frame>,
    pub(super) theme: Theme,
    pub(super) area: Rect,
}

impl<'frame> Canvas<'_, 'frame> {
    pub(super) fn within(&mut self, area: Rect) -> Area<'_, 'frame> {
        let area = area.intersection(self.frame.area());
        Area { frame: self.frame, theme: self.theme, area }
    }
}

impl Area<'_, '_> {
    pub(super) fn width(&self) -> u16 {
        self.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.area.height
    }

    /// Writes at a place of the area, cut at `width` columns, without control characters: names of others may be in the text.
    /// Returns the column behind the text.
    pub(super) fn put(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) -> u16 {
        let (text, width) = (&*plain(text), width.min(self.width().saturating_sub(x)));
        if width == 0 || y >= self.height() {
            return x;
        }
        let (at_x, at_y) = (self.area.x + x, self.area.y + y);
        let buffer = self.frame.buffer_mut();
        let (end, _) = buffer.set_stringn(at_x, at_y, text, usize::from(width), style);
        // As everywhere in heapbpf, an ellipsis marks what is cut.
        if text.width() > usize::from(width) {
            buffer.set_stringn(at_x + width - 1, at_y, "…", 1, style);
        }
        end - self.area.x
    }

    pub(super) fn put_right(&mut self, x: u16, y: u16, width: u16, text: &str, style: Style) {
        let free = width.saturating_sub(u16::try_from(text.width()).unwrap_or(width));
        self.put(x + free, y, width - free, text, style);
    }

    pub(super) fn line(&mut self, y: u16, text: &str, style: Style) {
        self.put(0, y, self.width(), text, style);
    }

    /// Gives a line a style to its end.
    pub(super) fn fill(&mut self, y: u16, style: Style) {
        if y < self.height() {
            let line = Rect { y: self.area.y + y, height: 1, ..self.area };
            self.frame.buffer_mut().set_style(line, style);
        }
    }

    /// Writes the first line: a title on the left, and as much as fits on the right.
    pub(super) fn heading(&mut self, title: &str, right: &str, is_active: bool) {
        let style = self.theme.heading(is_active);
        self.fill(0, style);
        let end = self.put(0, 0, self.width(), title, style);
        let width = u16::try_from(right.width()).unwrap_or(u16::MAX);
        if width.saturating_add(end).saturating_add(1) <= self.width() {
            self.put(self.width() - width, 0, width, right, style);
        }
    }
}

/// First line to show, so that `at` is within `height` lines and moves as little as possible.
pub(super) fn scrolled(first: usize, at: usize, count: usize, height: u16) -> usize {
    let height = usize::from(height).max(1);
    let first = first.min(count.saturating_sub(height));
    first.clamp((at + 1).saturating_sub(height), at)
}
