//! Keys of the screen: their actions, and the help that lists them.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    Help,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    First,
    Last,
    NextPane,
    PreviousPane,
    Enter,
    Back,
    ShowCallsites,
    ShowFlame,
    ShowHealth,
    SortPrevious,
    SortNext,
    Reverse,
    Search,
    FindNext,
    FindPrevious,
    Filter,
    Mark,
    Difference,
    Save,
    Pause,
    Slower,
    Faster,
    Redraw,
    Suspend,
}

/// A line of the help: keys, description, and actions.
pub(crate) struct Binding {
    pub(crate) keys: &'static str,
    pub(crate) text: &'static str,
    actions: &'static [(KeyCode, Action)],
}

const fn binding(keys: &'static str, text: &'static str, actions: &'static [(KeyCode, Action)]) -> Binding {
    Binding { keys, text, actions }
}

use KeyCode::Char;

/// Bindings by group, in the order of the help.
pub(crate) const BINDINGS: &[(&str, &[Binding])] = &[
    (
        "Move",
        &[
            binding("↑ ↓", "previous, next line", &[(KeyCode::Up, Action::Up), (KeyCode::Down, Action::Down)]),
            binding(
                "PgUp PgDn",
                "a page; also b, Space",
                &[
                    (KeyCode::PageUp, Action::PageUp),
                    (KeyCode::PageDown, Action::PageDown),
                    (Char('b'), Action::PageUp),
                    (Char(' '), Action::PageDown),
                ],
            ),
            binding(
                "Home End",
                "first, last line; also g, G",
                &[
                    (KeyCode::Home, Action::First),
                    (KeyCode::End, Action::Last),
                    (Char('g'), Action::First),
                    (Char('G'), Action::Last),
                ],
            ),
            binding(
                "Tab",
                "next pane; Shift-Tab previous",
                &[(KeyCode::Tab, Action::NextPane), (KeyCode::BackTab, Action::PreviousPane)],
            ),
            binding("Enter", "select; in the flame view: zoom", &[(KeyCode::Enter, Action::Enter)]),
            binding(
                "Backspace",
                "back; in the flame view: zoom out",
                &[(KeyCode::Backspace, Action::Back), (KeyCode::Esc, Action::Back)],
            ),
            binding(
                "← →",
                "flame view: neighbouring frames",
                &[(KeyCode::Left, Action::Left), (KeyCode::Right, Action::Right)],
            ),
        ],
    ),
    (
        "Show",
        &[
            binding(
                "c",
                "callsites; also 1",
                &[(Char('c'), Action::ShowCallsites), (Char('1'), Action::ShowCallsites)],
            ),
            binding("f", "flame view; also 2", &[(Char('f'), Action::ShowFlame), (Char('2'), Action::ShowFlame)]),
            binding("H", "health; also 3", &[(Char('H'), Action::ShowHealth), (Char('3'), Action::ShowHealth)]),
            binding(
                "< >",
                "sort by the previous, next column; also F6",
                &[
                    (Char('<'), Action::SortPrevious),
                    (Char('>'), Action::SortNext),
                    (Char(','), Action::SortPrevious),
                    (Char('.'), Action::SortNext),
                    (KeyCode::F(6), Action::SortNext),
                ],
            ),
            binding(
                "r",
                "reverse the order, or the stacks; also I",
                &[(Char('r'), Action::Reverse), (Char('I'), Action::Reverse)],
            ),
            binding(
                "/",
                "search a regular expression; n next, N previous",
                &[
                    (Char('/'), Action::Search),
                    (KeyCode::F(3), Action::Search),
                    (Char('n'), Action::FindNext),
                    (Char('N'), Action::FindPrevious),
                ],
            ),
            binding(
                "k",
                "show only stacks that match; also F4",
                &[(Char('k'), Action::Filter), (KeyCode::F(4), Action::Filter)],
            ),
        ],
    ),
    (
        "Record",
        &[
            binding("m", "set a mark: growth counts from now", &[(Char('m'), Action::Mark)]),
            binding("d", "show only the difference since the mark", &[(Char('d'), Action::Difference)]),
            binding("s", "save a report", &[(Char('s'), Action::Save)]),
            binding("p", "pause and continue the screen", &[(Char('p'), Action::Pause)]),
            binding(
                "+ -",
                "longer, shorter time between refreshes",
                &[(Char('+'), Action::Slower), (Char('='), Action::Slower), (Char('-'), Action::Faster)],
            ),
            binding(
                "?",
                "this help; also h, F1",
                &[(Char('?'), Action::Help), (Char('h'), Action::Help), (KeyCode::F(1), Action::Help)],
            ),
            binding("q", "quit; also F10, Ctrl-C", &[(Char('q'), Action::Quit), (KeyCode::F(10), Action::Quit)]),
        ],
    ),
];

const CONTROLS: [(char, Action); 3] = [('c', Action::Quit), ('l', Action::Redraw), ('z', Action::Suspend)];

/// Action of a key; `None` for a key without one.
pub(crate) fn action(key: KeyEvent) -> Option<Action> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return CONTROLS.iter().find(|(name, _)| key.code == Char(*name)).map(|(_, action)| *action);
    }
    let mut actions = BINDINGS.iter().flat_map(|(_, bindings)| *bindings).flat_map(|binding| binding.actions);
    actions.find(|(code, _)| *code == key.code).map(|(_, action)| *action)
}

/// A line of text that is being entered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) text: String,
}

/// What a key did to a [`Line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Changed,
    Done,
    Cancelled,
}

impl Line {
    const CHARS_MAX: usize = 400;

    /// Edits the line by a key. Keys work as in a shell: Ctrl-U deletes all, Ctrl-W the last word.
    pub(crate) fn edit(&mut self, key: KeyEvent) -> Edit {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Enter => return Edit::Done,
            KeyCode::Esc => return Edit::Cancelled,
            Char('c' | 'g') if is_control => return Edit::Cancelled,
            Char('u') if is_control => self.text.clear(),
            Char('w') if is_control => {
                let rest = self.text.trim_end();
                self.text.truncate(rest.rfind(' ').map_or(0, |at| at + 1));
            }
            Char('h') if is_control => drop(self.text.pop()),
            KeyCode::Backspace => drop(self.text.pop()),
            Char(c) if !is_control && !c.is_control() && self.text.chars().count() < Self::CHARS_MAX => {
                self.text.push(c);
            }
            _ => {}
        }
        Edit::Changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    #[test]
    fn each_key_has_one_action() {
        let all: Vec<KeyCode> = BINDINGS
            .iter()
            .flat_map(|(_, bindings)| *bindings)
            .flat_map(|binding| binding.actions)
            .map(|(code, _)| *code)
            .collect();
        for (at, code) in all.iter().enumerate() {
            assert!(!all[..at].contains(code), "{code:?} is bound twice");
        }
        assert_eq!(action(key(Char('q'))), Some(Action::Quit));
        assert_eq!(action(KeyEvent::new(Char('c'), KeyModifiers::CONTROL)), Some(Action::Quit));
        assert_eq!(action(key(Char('c'))), Some(Action::ShowCallsites));
        assert_eq!(action(key(Char('G'))), Some(Action::Last));
        assert_eq!(action(key(Char('Z'))), None);
    }

    #[test]
    fn lines_are_edited_as_in_a_shell() {
        let mut line = Line::default();
        for c in "heap one.svg".chars() {
            assert_eq!(line.edit(key(Char(c))), Edit::Changed);
        }
        line.edit(KeyEvent::new(Char('w'), KeyModifiers::CONTROL));
        assert_eq!(line.text, "heap ");
        line.edit(key(KeyCode::Backspace));
        assert_eq!((line.edit(key(KeyCode::Enter)), line.text.as_str()), (Edit::Done, "heap"));
        line.edit(KeyEvent::new(Char('u'), KeyModifiers::CONTROL));
        assert_eq!((line.edit(key(KeyCode::Esc)), line.text.as_str()), (Edit::Cancelled, ""));
    }
}
