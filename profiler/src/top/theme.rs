//! Colours of the screen, by what the terminal can show. Without colours, bold, underlined and reversed text is enough.

use heapbpf_report::ModuleColour;
use heapbpf_report::Rgb;
use ratatui::style::{Color, Modifier, Style};

/// Number of colours of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Theme {
    /// No colours: monochrome, or as the user prefers.
    Plain,
    /// 8 colours.
    Basic,
    /// 256 colours.
    Indexed,
    /// 16 million colours.
    Full,
}

impl Theme {
    /// Selects the theme by `NO_COLOR`, `TERM` and `COLORTERM`.
    pub(crate) fn of_terminal(no_color: bool, term: &str, colorterm: &str) -> Self {
        if no_color
            || term.is_empty()
            || ["dumb", "vt", "ansi-m"].iter().any(|plain| term.starts_with(plain))
            || term.ends_with("-m")
        {
            Self::Plain
        } else if ["truecolor", "24bit"].contains(&colorterm) || term.ends_with("-direct") {
            Self::Full
        } else if term.contains("256color") {
            Self::Indexed
        } else {
            Self::Basic
        }
    }

    fn has_colours(self) -> bool {
        self != Self::Plain
    }

    fn coloured(self, colour: Color) -> Style {
        if self.has_colours() { Style::new().fg(colour) } else { Style::new() }
    }

    /// Style of the first line of a pane.
    pub(crate) fn heading(self, is_active: bool) -> Style {
        match (self.has_colours(), is_active) {
            (false, false) => Style::new().add_modifier(Modifier::UNDERLINED),
            (false, true) => Style::new().add_modifier(Modifier::UNDERLINED | Modifier::BOLD),
            (true, false) => Style::new().fg(Color::Black).bg(Color::Gray),
            (true, true) => Style::new().fg(Color::Black).bg(Color::Green),
        }
    }

    /// Style of the selected line of a pane.
    pub(crate) fn selected(self, is_active: bool) -> Style {
        match (self.has_colours(), is_active) {
            (_, false) => self.strong(),
            (false, true) => Style::new().add_modifier(Modifier::REVERSED),
            (true, true) => Style::new().fg(Color::Black).bg(Color::Cyan),
        }
    }

    pub(crate) fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn weak(self) -> Style {
        self.coloured(Color::DarkGray)
    }

    pub(crate) fn warning(self) -> Style {
        self.coloured(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn error(self) -> Style {
        self.coloured(Color::LightRed).add_modifier(Modifier::BOLD)
    }

    /// Style of amounts that have grown or shrunk.
    pub(crate) fn growth(self, bytes: f64) -> Style {
        match bytes {
            _ if bytes >= 1.0 => self.coloured(Color::LightRed),
            _ if bytes <= -1.0 => self.coloured(Color::LightBlue),
            _ => Style::new(),
        }
    }

    /// Style of a frame of the flame view. `is_odd` distinguishes neighbours where there are no colours.
    pub(crate) fn frame(self, label: &str, module: &str, is_odd: bool) -> Style {
        let colour = if module.is_empty() { ModuleColour::grey() } else { ModuleColour::of_module(module, label) };
        let Rgb([red, green, blue]) = colour.dark;
        match self {
            Self::Plain if is_odd => Style::new().add_modifier(Modifier::REVERSED),
            Self::Plain => Style::new().add_modifier(Modifier::UNDERLINED),
            Self::Basic => Style::new().fg(Color::Black).bg(basic([red, green, blue], is_odd)),
            Self::Indexed => Style::new().fg(Color::Indexed(231)).bg(Color::Indexed(indexed([red, green, blue]))),
            Self::Full => Style::new().fg(Color::Rgb(255, 255, 255)).bg(Color::Rgb(red, green, blue)),
        }
    }

    /// Style of the selected frame of the flame view.
    pub(crate) fn selected_frame(self) -> Style {
        match self {
            Self::Plain => Style::new().add_modifier(Modifier::BOLD | Modifier::REVERSED | Modifier::UNDERLINED),
            _ => Style::new().fg(Color::Black).bg(Color::Cyan).add_modifier(Modifier::BOLD),
        }
    }

    /// Style of a frame of the flame view that matches the search.
    pub(crate) fn found_frame(self) -> Style {
        match self {
            Self::Plain => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            _ => Style::new().fg(Color::Black).bg(Color::LightMagenta),
        }
    }
}

/// Number of the nearest colour of the cube of 6 × 6 × 6.
fn indexed(channels: [u8; 3]) -> u8 {
    const LEVELS: [u8; 6] = [0, 95, 135, 175, 215, 255];
    let [red, green, blue] = channels.map(|channel| {
        let distance = |level: &u8| level.abs_diff(channel);
        (0..6_u8).zip(LEVELS).min_by_key(|(_, level)| distance(level)).map_or(0, |(index, _)| index)
    });
    16 + 36 * red + 6 * green + blue
}

/// The colour of the nearest hue. Neighbours of one hue are distinguished by their intensity.
fn basic([red, green, blue]: [u8; 3], is_odd: bool) -> Color {
    let most = red.max(green).max(blue);
    let least = red.min(green).min(blue);
    let is_on = |channel: u8| u16::from(channel) * 2 > u16::from(most) + u16::from(least);
    let (light, normal) = match (is_on(red), is_on(green), is_on(blue)) {
        (true, false, false) => (Color::LightRed, Color::Red),
        (true, true, false) => (Color::LightYellow, Color::Yellow),
        (false, true, false) => (Color::LightGreen, Color::Green),
        (false, true, true) => (Color::LightCyan, Color::Cyan),
        (false, false, true) => (Color::LightBlue, Color::Blue),
        (true, false, true) => (Color::LightMagenta, Color::Magenta),
        (true, true, true) | (false, false, false) => (Color::White, Color::Gray),
    };
    if is_odd { light } else { normal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_terminal() {
        for (no_color, term, colorterm, expected) in [
            (false, "xterm-256color", "truecolor", Theme::Full),
            (false, "tmux-256color", "", Theme::Indexed),
            (false, "linux", "", Theme::Basic),
            (false, "vt100", "", Theme::Plain),
            (false, "", "", Theme::Plain),
            (true, "xterm-256color", "truecolor", Theme::Plain),
        ] {
            assert_eq!(Theme::of_terminal(no_color, term, colorterm), expected, "{term}");
        }
    }

    #[test]
    fn plain_styles_have_no_colours() {
        let theme = Theme::Plain;
        let all = [
            theme.heading(true),
            theme.selected(true),
            theme.growth(5.0),
            theme.frame("main", "server", false),
            theme.frame("main", "server", true),
            theme.selected_frame(),
            theme.found_frame(),
            theme.error(),
            theme.warning(),
            theme.weak(),
        ];
        assert!(all.iter().all(|style| style.fg.is_none() && style.bg.is_none()));
    }

    #[test]
    fn approximations_are_near() {
        assert_eq!((indexed([0, 0, 0]), indexed([255, 255, 255]), indexed([95, 0, 135])), (16, 231, 54));
        assert_eq!(basic([120, 30, 20], false), Color::Red);
        assert_eq!(basic([65, 67, 73], false), Color::Blue);
    }
}
