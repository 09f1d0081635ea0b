//! Tests of screens of synthetic profiles.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use heapbpf_ledger::model::Profile;
use heapbpf_report::testing as test_profiles;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::area::scrolled;
use super::*;

fn state(profile: Profile) -> State {
    State::new(Arc::new(profile), Duration::from_secs(2), None)
}

fn drawn(state: &mut State, theme: Theme, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a test backend");
    terminal.draw(|frame| draw(frame, state, theme)).expect("a test backend");
    let buffer = terminal.backend().buffer();
    let line = |y: u16| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>() };
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

/// Presses keys after drawing, since keys act on what is drawn.
fn press(state: &mut State, keys: &str) {
    drawn(state, Theme::Plain, 80, 24);
    for c in keys.chars() {
        let code = if c == '\n' { KeyCode::Enter } else { KeyCode::Char(c) };
        state.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
}

/// Compares the screen with its golden file; `UPDATE_GOLDEN=1` writes the file.
fn check(name: &str, state: &mut State, width: u16, height: u16) {
    drawn(state, Theme::Plain, width, height);
    let screen = drawn(state, Theme::Plain, width, height);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/testdata").join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("ours");
        std::fs::write(&path, &screen).expect("ours");
    }
    let expected = std::fs::read_to_string(&path).expect("run with UPDATE_GOLDEN=1");
    assert_eq!(screen, expected, "{}", path.display());
}

#[test]
fn panes_look_as_expected() {
    check("callsites", &mut state(test_profiles::exact()), 80, 24);
    check("callsites-high", &mut state(test_profiles::exact()), 160, 50);
    check("callsites-wide", &mut state(test_profiles::exact()), 160, 24);
    check("several-processes", &mut state(test_profiles::sampled()), 80, 24);
    check("small", &mut state(test_profiles::sampled()), 40, 10);
    let mut flame = state(test_profiles::exact());
    press(&mut flame, "f/cache\n");
    check("flame", &mut flame, 80, 24);
    press(&mut flame, "r");
    check("flame-reversed", &mut flame, 80, 24);
    let mut health = state(test_profiles::sampled());
    press(&mut health, "H");
    check("health", &mut health, 80, 24);
    press(&mut health, "?");
    check("help", &mut health, 80, 40);
    check("no-process", &mut state(test_profiles::nobody()), 80, 24);
    let mut difference = state(test_profiles::exact());
    press(&mut difference, "md");
    difference.message = None;
    check("difference", &mut difference, 80, 24);
    let mut asking = state(test_profiles::exact());
    asking.source = Some("    entry->value = strdup(value);".to_owned());
    press(&mut asking, "s");
    check("save", &mut asking, 80, 24);
}

#[test]
fn no_size_panics() {
    for profile in test_profiles::all() {
        let mut state = state(profile);
        for view in ["c", "f", "H", "?", "?k"] {
            press(&mut state, view);
            for (width, height) in [(1, 1), (3, 2), (4, 3), (10, 3), (40, 10), (41, 11), (79, 23), (120, 30), (300, 90)]
            {
                drawn(&mut state, Theme::Full, width, height);
            }
            state.prompt = None;
        }
    }
}

/// Names of targets can contain any byte, but no control character may reach the terminal.
#[test]
fn no_control_character_reaches_the_terminal() {
    let mut profile = test_profiles::sampled();
    for target in &mut profile.targets {
        target.facts.comm = "evil\u{1b}[2J\u{7}\u{202e}".to_owned();
        target.facts.command = "\u{9b}2J\r\n/bin/x".to_owned();
    }
    for frame in &mut profile.frames {
        frame.function = Some("f\u{1b}]0;title\u{7}".into());
        frame.file = Some("\u{1b}[31m.c".into());
        frame.module = Some("/lib/\u{8}m.so".into());
    }
    let mut state = state(profile);
    state.source = Some("printed by source.rs".to_owned());
    for view in ["c", "f", "H", "kf\n"] {
        press(&mut state, view);
        let screen = drawn(&mut state, Theme::Full, 120, 40);
        let control = screen.chars().find(|c| c.is_control() && *c != '\n' || *c == '\u{202e}');
        assert_eq!(control, None, "{screen}");
    }
}

#[test]
fn lines_scroll_no_further_than_needed() {
    for (first, at, count, height, expected) in
        [(0, 0, 10, 4, 0), (0, 3, 10, 4, 0), (0, 4, 10, 4, 1), (5, 4, 10, 4, 4), (9, 9, 10, 4, 6), (3, 0, 2, 4, 0)]
    {
        assert_eq!(scrolled(first, at, count, height), expected, "{first} {at}");
    }
}
