//! Profiles of old blocks only: formats mention it, and do not show the accuracy of all blocks.

use heapbpf_ledger::model::Profile;

use super::written;
use crate::testing as profiles;
use crate::{Format, View};

/// Formats with text about the recording.
const WORDY: [Format; 7] = [
    Format::Dhat,
    Format::Massif,
    Format::Perfetto,
    Format::MemoryInfra,
    Format::Speedscope,
    Format::Firefox,
    Format::Otlp,
];

fn old() -> Profile {
    let mut profile = profiles::sampled();
    profile.older_than_ns = Some(5_000_000_000);
    profile
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn reports_mention_that_young_blocks_are_excluded() {
    for format in WORDY {
        let words = if format == Format::Otlp { "heapbpf.older_than_ns" } else { "older than 5s" };
        assert!(contains(&written(format, &old(), View::LiveBytes), words), "{format}");
        assert!(!contains(&written(format, &profiles::sampled(), View::LiveBytes), words), "{format}");
    }
}

#[test]
fn accuracy_of_all_blocks_is_not_shown_for_old_ones() {
    let all = written(Format::MemoryInfra, &profiles::sampled(), View::LiveBytes);
    assert!(contains(&all, "(95 %: "), "it is shown for all blocks");
    assert!(!contains(&written(Format::MemoryInfra, &old(), View::LiveBytes), "(95 %: "));
    let speedscope = |profile| {
        let file: serde_json::Value =
            serde_json::from_slice(&written(Format::Speedscope, profile, View::LiveBytes)).expect("it is JSON");
        let names = file["profiles"].as_array().expect("a list").iter().map(|own| own["name"].to_string());
        names.filter(|name| name.contains("(95 %: ")).count()
    };
    assert_eq!((speedscope(&profiles::sampled()), speedscope(&old())), (4, 2), "allocations are of all");
}
