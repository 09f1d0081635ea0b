//! Exited processes of which only totals are kept: they are in totals, and not in rows.

use heapbpf_ledger::model::Profile;

use super::render;
use crate::summary::summary;
use crate::testing::{self as profiles, taken};
use crate::{Format, View};

/// A profile with a third of its live bytes in exited processes of which only totals are kept.
fn folded(mut profile: Profile) -> Profile {
    profile.others.folded_count = 5;
    profile.others.folded_interval_bytes = Some(profile.interval_bytes);
    profile.others.folded_totals = taken(1, 100, 11_092, 0);
    profile
}

#[test]
fn totals_are_of_all_processes_and_name_the_part_without_stacks() {
    let profile = folded(profiles::exact());
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    for line in [
        "8.1 MiB  4.9 MiB  3.2 MiB           all together",
        "2.0 MiB       2    3.0 MiB  63.0%       20.9s  cached (4711)  cache_insert.part.0 (cache.c:61) ← handle_request ← main",
        "33.3% belongs to 5 processes that exited, of which only totals are kept",
    ] {
        assert!(lines.contains(&line), "no `{line}` in\n{text}");
    }
    let image = render(Format::Flamegraph, &profile, View::LiveBytes);
    assert!(image.contains(">3.2 MiB · every allocation · "), "{image}");
    assert!(image.contains(" · complete · not drawn: 1.1 MiB of 5 processes that exited<"), "{image}");
}

#[test]
fn samples_are_those_of_all_processes() {
    let mut profile = folded(profiles::sampled());
    profile.others.folded_totals = taken(4096, 100, 100, 0);
    let text = summary(&profile, View::LiveCount, 10, None, false);
    assert!(text.contains(", 154 samples)"), "{text}");
}

#[test]
fn a_profile_of_exited_processes_only_has_an_explanation() {
    for profile in [profiles::freed(), profiles::empty()] {
        let profile = folded(profile);
        let about = if profile.interval_bytes > 1 { "≈ " } else { "" };
        let line = format!(
            "There are no stacks of live bytes: of 5 processes that exited, only totals are kept ({about}1.1 MiB)."
        );
        let text = summary(&profile, View::LiveBytes, 10, None, false);
        assert!(text.lines().any(|actual| actual == line), "no `{line}` in\n{text}");
        assert!(!text.contains("Nothing was recorded") && !text.contains("all of it freed"), "{text}");
        assert!(!text.contains("callsites by"), "{text}");
        assert!(text.contains("all together"), "{text}");
        let image = render(Format::Flamegraph, &profile, View::LiveBytes);
        assert!(image.contains(&line), "{image}");
    }
}
