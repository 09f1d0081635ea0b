//! speedscope's format: sums of weights.

use heapbpf_ledger::model::Profile;
use proptest::prelude::*;
use serde_json::Value;

use super::{check_golden, properties, render};
use crate::testing as profiles;
use crate::{Format, Group, Presentation, View};

fn parse(profile: &Profile, view: View) -> Value {
    serde_json::from_str(&render(Format::Speedscope, profile, view)).expect("the file is JSON")
}

#[test]
fn goldens() {
    for (name, profile) in
        [("exact", profiles::exact()), ("sampled", profiles::sampled()), ("empty", profiles::empty())]
    {
        let file = serde_json::to_string_pretty(&parse(&profile, View::LiveBytes)).expect("it was JSON");
        check_golden(&format!("speedscope/{name}.json"), &format!("{file}\n"));
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// The sum of a profile's weights.
fn total(profile: &Value) -> u64 {
    list(&profile["weights"]).iter().map(|weight| weight.as_u64().expect("a whole number")).sum()
}

/// The total of the view over all callsites.
fn shown(profile: &Profile, view: View) -> u64 {
    profile.targets.iter().flat_map(|target| &target.callsites).map(|callsite| view.of_callsite(callsite)).sum()
}

fn check(profile: &Profile, view: View) {
    let file = parse(profile, view);
    let active = file["activeProfileIndex"].as_u64().expect("a number");
    assert_eq!(View::ALL.get(usize::try_from(active).expect("small")), Some(&view));
    let frames = list(&file["shared"]["frames"]).len() as u64;
    let profiles = list(&file["profiles"]);
    for sampled in profiles {
        assert_eq!((&sampled["type"], &sampled["startValue"]), (&"sampled".into(), &0.into()));
        assert_eq!(list(&sampled["samples"]).len(), list(&sampled["weights"]).len());
        assert_eq!(sampled["endValue"].as_u64(), Some(total(sampled)));
        let numbers = list(&sampled["samples"]).iter().flat_map(list);
        assert!(numbers.clone().all(|number| number.as_u64().is_some_and(|number| number < frames)));
    }
    for (sampled, view) in profiles.iter().zip(View::ALL) {
        assert_eq!(total(sampled), shown(profile, view), "{view}");
    }
    if profile.targets.len() > 1 {
        let bytes = |profiles: &[Value]| -> u64 {
            profiles.iter().filter(|profile| profile["unit"] == "bytes").map(total).sum()
        };
        let (all, each) = profiles.split_at(4);
        assert_eq!(bytes(all), bytes(each), "each process's add up to those of all");
    }
}

#[test]
fn weights_add_up_to_the_totals() {
    for profile in profiles::all() {
        View::ALL.into_iter().for_each(|view| check(&profile, view));
    }
}

proptest! {
    #[test]
    fn weights_of_any_profile_add_up(profile in properties::profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        check(&profile, view);
    }
}

/// The names of a sample's frames.
fn names(file: &Value, profile: usize, sample: usize) -> Vec<&str> {
    let stack = list(&file["profiles"][profile]["samples"][sample]);
    let frame =
        |number: &Value| &file["shared"]["frames"][usize::try_from(number.as_u64().expect("a number")).expect("small")];
    stack.iter().map(|number| frame(number)["name"].as_str().expect("a name")).collect()
}

#[test]
fn stacks_start_with_groups_and_the_process() {
    let mut bytes = Vec::new();
    let presentation = Presentation { by: vec![Group::Heap], ..View::AllocBytes.into() };
    Format::Speedscope.write(&profiles::sampled(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let file: Value = serde_json::from_slice(&bytes).expect("the file is JSON");
    assert_eq!(
        names(&file, 2, 2),
        [
            "libc",
            "app (900)",
            "[unwind stopped: more than 1024 frames]",
            "0x555555554080",
            "two\nlines\u{1b}[31m",
            "app+0x1234"
        ]
    );
    let frames = list(&file["shared"]["frames"]);
    let push = frames.iter().find(|frame| frame["name"] == "alloc::vec::Vec<T,A>::push").expect("the frame is there");
    assert_eq!((&push["file"], &push["line"]), (&"/rustc/library/alloc/src/vec/mod.rs".into(), &2000.into()));
}

#[test]
fn the_name_has_the_interval_and_the_verdict() {
    let file = parse(&profiles::sampled(), View::LiveBytes);
    let name = file["name"].as_str().expect("a name");
    for words in ["2 processes", "sampled every 4 KiB", "12,348 events dropped"] {
        assert!(name.contains(words), "{name}");
    }
    let name = file["profiles"][0]["name"].as_str().expect("a name");
    assert!(name.starts_with("live bytes, 2 processes (95 %: "), "{name}");
}
