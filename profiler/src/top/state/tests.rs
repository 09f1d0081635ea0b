//! Tests of keys, and of the state that they lead to.

use std::sync::Arc;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyModifiers};
use heapbpf_report::testing as test_profiles;

use super::*;

fn state(profile: Profile) -> State {
    let mut state = State::new(Arc::new(profile), Duration::from_secs(2), None);
    state.sizes = Sizes { targets: 3, body: 8, stack: 4, body_width: 80, ..Sizes::default() };
    state
}

/// Presses special keys by name, and others as the character.
fn press(state: &mut State, keys: &[&str]) -> Option<Effect> {
    let mut effect = None;
    for name in keys {
        let code = match *name {
            "Enter" => KeyCode::Enter,
            "Esc" => KeyCode::Esc,
            "Backspace" => KeyCode::Backspace,
            "Tab" => KeyCode::Tab,
            "Up" => KeyCode::Up,
            "Down" => KeyCode::Down,
            "Left" => KeyCode::Left,
            "Right" => KeyCode::Right,
            "End" => KeyCode::End,
            text => {
                for c in text.chars() {
                    effect = state.key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE));
                }
                continue;
            }
        };
        effect = state.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    effect
}

fn selected(state: &State) -> String {
    let frame = state.selected_callsite().and_then(|it| it.stack.first()).map(|&id| state.model.profile.frame(id));
    frame.map(Frame::label).unwrap_or_default()
}

/// Returns the profile of one second later, in which the callsite at this position has allocated this much more.
fn later(profile: &Profile, at: usize, bytes: u64) -> Arc<Profile> {
    let mut later = profile.clone();
    later.ended_unix_ns += 1_000_000_000;
    let target = &mut later.targets[0];
    let time = target.facts.beginning.time;
    for totals in [&mut target.callsites[at].totals, &mut target.totals] {
        totals.allocate(heapbpf_base::units::Amounts::exact(bytes, 1), time);
    }
    Arc::new(later)
}

#[test]
fn rows_are_sorted_by_the_selected_column() {
    let mut state = state(test_profiles::exact());
    assert_eq!(state.pane, Pane::Body, "one process needs no choice");
    let live: Vec<f64> = state.callsites.iter().map(|row| row.live).collect();
    assert!(live.is_sorted_by(|one, other| one >= other), "{live:?}");
    press(&mut state, &[">", ">", ">"]);
    assert_eq!(state.callsite_order.column, CallsiteColumn::Age);
    let ages: Vec<_> = state.callsites.iter().map(|row| row.age_ns).collect();
    assert!(ages.is_sorted_by(|one, other| one >= other), "{ages:?}");
    press(&mut state, &["r"]);
    let reversed: Vec<_> = state.callsites.iter().map(|row| row.age_ns).collect();
    assert_eq!(reversed.into_iter().rev().collect::<Vec<_>>(), ages);
    press(&mut state, &["<", "<", "<", "<"]);
    assert_eq!(state.callsite_order.column, CallsiteColumn::Temporary);
}

#[test]
fn the_first_line_is_selected_until_the_user_selects_one() {
    let profile = test_profiles::exact();
    let mut state = state(profile.clone());
    let first = state.callsite;
    let other = state.callsites[1].at;
    state.update(later(&profile, other, 1 << 30));
    assert_ne!(state.callsite, first, "another one is the largest");
    assert_eq!(state.callsite_at(), Some(0));
    press(&mut state, &["Down", "Up"]);
    let kept = state.callsite;
    let mut last = later(&state.model.profile, state.callsites[1].at, 1 << 31).as_ref().clone();
    last.ended_unix_ns += 1;
    state.update(Arc::new(last));
    assert_eq!((state.callsite, state.callsite_at()), (kept, Some(1)), "it follows its callsite");
}

#[test]
fn growth_and_rates_are_those_since_the_mark_and_the_last_refresh() {
    let profile = test_profiles::exact();
    let mut state = state(profile.clone());
    let at = state.callsites[1].at;
    assert_eq!(press(&mut state, &["m"]), Some(Effect::Mark));
    assert!(state.callsites.iter().all(|row| row.growth.abs() < 1.0));
    state.update(later(&profile, at, 5_000));
    let row = state.callsites.iter().find(|row| row.at == at).expect("it is shown");
    assert_eq!((row.growth.round(), row.allocated_per_s.round()), (5_000.0, 5_000.0));
    let target = &state.targets[0];
    assert_eq!((target.growth.round(), target.growth_per_s.round()), (5_000.0, 5_000.0));
    press(&mut state, &["d"]);
    assert_eq!(state.callsites.iter().map(|row| row.at).collect::<Vec<_>>(), [at], "only what has changed");
    press(&mut state, &["d"]);
    assert!(state.callsites.len() > 1);
}

#[test]
fn the_flame_view_zooms_and_reverses() {
    let mut state = state(test_profiles::exact());
    press(&mut state, &["f", "Down", "Down"]);
    assert_eq!((state.body, state.flame.name(state.framed_node()).label.as_str()), (Body::Flame, "main"));
    press(&mut state, &["Down", "Enter"]);
    assert_eq!(state.flame.name(state.zoomed_node()).label, "handle_request");
    let places = state.flame.layout(state.zoomed_node(), 80);
    assert!(places.iter().filter(|place| place.row <= 3).all(|place| (place.x, place.width) == (0, 80)));
    press(&mut state, &["Backspace"]);
    assert_eq!(state.flame.name(state.zoomed_node()).label, "main");
    press(&mut state, &["r"]);
    assert!(state.is_reversed && state.zoomed.is_empty());
    let top: Vec<&str> =
        state.flame.children(super::super::flame::ROOT).iter().map(|&node| &*state.flame.name(node).label).collect();
    assert!(top.contains(&"cache_insert.part.0") && !top.contains(&"__libc_start_call_main"), "{top:?}");
}

#[test]
fn a_search_selects_matches_in_turn() {
    let mut state = state(test_profiles::exact());
    press(&mut state, &["/CACHE_INSERT", "Enter"]);
    assert!(state.message.is_some(), "upper case matches itself alone");
    press(&mut state, &["/cache_insert", "Enter"]);
    let mut found = vec![selected(&state)];
    for _ in 0..2 {
        press(&mut state, &["n"]);
        found.push(selected(&state));
    }
    found.sort();
    assert_eq!(found, ["cache_insert", "cache_insert.part.0", "strdup"]);
    press(&mut state, &["f", "/handle", "Enter"]);
    assert_eq!(state.flame.name(state.framed_node()).label, "handle_request");
    press(&mut state, &["/nothing_like_it", "Enter"]);
    assert!(state.message.as_ref().is_some_and(|message| message.is_error));
}

#[test]
fn a_filter_restricts_callsites_and_the_flame_view() {
    let mut state = state(test_profiles::exact());
    let all = state.callsites.len();
    press(&mut state, &["kstrdup", "Enter"]);
    assert_eq!(state.callsites.len(), 1);
    press(&mut state, &["f"]);
    let whole = state.flame.value(super::super::flame::ROOT);
    assert_eq!(whole.round(), state.callsites[0].live.round());
    press(&mut state, &["c", "k(", "Enter"]);
    assert!(state.message.as_ref().is_some_and(|message| message.text.contains("not a valid regular expression")));
    press(&mut state, &["Esc"]);
    assert_eq!((state.callsites.len(), state.filter.is_some()), (all, false));
}

#[test]
fn saving_asks_for_a_name_and_before_it_replaces_a_file() {
    let mut state = state(test_profiles::exact());
    press(&mut state, &["s"]);
    assert_eq!(state.prompt, Some(Prompt::Save(Line { text: "heapbpf-cached.html".to_owned() })));
    let effect = press(&mut state, &["Enter"]);
    assert_eq!(effect, Some(Effect::Save { path: "heapbpf-cached.html".into(), replaces: false }));
    state.prompt = Some(Prompt::Replace("a.svg".into()));
    assert_eq!(press(&mut state, &["n"]), None);
    state.prompt = Some(Prompt::Replace("a.svg".into()));
    assert_eq!(press(&mut state, &["y"]), Some(Effect::Save { path: "a.svg".into(), replaces: true }));
}

#[test]
fn the_time_between_refreshes_has_steps() {
    let mut state = state(test_profiles::exact());
    assert_eq!(press(&mut state, &["+"]), Some(Effect::Reschedule));
    assert_eq!(state.period, Duration::from_secs(3));
    press(&mut state, &["-----------"]);
    assert_eq!(state.period, Duration::from_millis(250));
    press(&mut state, &["p"]);
    assert!(state.is_paused);
}

#[test]
fn keys_change_nothing_in_a_profile_without_processes() {
    let mut state = state(test_profiles::nobody());
    let all = "cfH123<>rIn Nkx/ydmdspsp+-bgGh?";
    for key in all.chars() {
        press(&mut state, &[key.to_string().as_str(), "Enter", "Down", "Up", "Left", "Right", "End", "Tab", "Esc"]);
    }
    assert!(state.targets.is_empty() && state.callsites.is_empty());
}
