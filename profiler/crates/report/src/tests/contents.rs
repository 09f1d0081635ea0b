//! The table of what formats have, compared with what they write.

use std::fmt::Write as _;

use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Profile, Window, WindowReason};

use super::written;
use crate::contents::{Contents, Place};
use crate::heaptrack::Events;
use crate::testing as profiles;
use crate::{Format, Presentation, View};
use heapbpf_base::testing::check_table;

/// Kept sums, drops, inherited blocks, several heaps, peaks, and a window.
fn everything() -> Profile {
    let mut profile = profiles::sampled();
    profile.others.folded_count = 5;
    profile.others.folded_interval_bytes = Some(4096);
    profile.others.folded_totals = profiles::taken(4096, 1000, 50_000, 300);
    profile.targets[0].callsites[1].inherited = true;
    only_drops(&mut profile);
    for target in &mut profile.targets {
        target.totals.peak_bytes = target.totals.live_bytes();
        // Within the window.
        target.totals.peak_time = Some(MonotonicNanos(profile.started_monotonic_ns + 5_000_000_000));
    }
    let end_unix_ns = profile.ended_unix_ns;
    profile.window = Some(Window {
        number: Some(3),
        reason: WindowReason::Signal,
        start_unix_ns: profile.started_unix_ns + 1_000_000_000,
        since_mark: false,
        end_unix_ns,
        merged_count: 0,
    });
    profile
}

/// Removes everything else that makes the profile incomplete.
fn only_drops(profile: &mut Profile) {
    let health = &mut profile.health;
    health.events = 50_000;
    health.unfound.clear();
    health.inlined_heaps.clear();
    health.interpreters = None;
    health.unwind = vec![("complete".to_owned(), 100)];
    for target in &mut profile.targets {
        target.memory = Default::default();
        target.heaps.iter_mut().flat_map(|heap| &mut heap.hooks).for_each(|hook| hook.error = None);
    }
}

fn without(change: impl Fn(&mut Profile)) -> Profile {
    let mut profile = everything();
    change(&mut profile);
    profile
}

/// The name of an entry of the table, the entry, and a profile that lacks it.
type Thing = (&'static str, fn(&Contents) -> Place, Profile);

fn things() -> [Thing; 6] {
    let sums =
        without(|profile| profile.others = heapbpf_ledger::model::Others { folded_count: 0, ..Default::default() });
    let heaps = |profile: &mut Profile| "another".clone_into(&mut profile.targets[0].heaps[1].name);
    let window = |profile: &mut Profile| {
        let window = profile.window.as_mut().expect("it is one");
        (window.number, window.start_unix_ns) = (Some(4), window.start_unix_ns + 2_000_000_000);
    };
    let peaks = |profile: &mut Profile| {
        for target in &mut profile.targets {
            let of_callsites = target.callsites.iter_mut().map(|callsite| &mut callsite.totals);
            for totals in of_callsites.chain([&mut target.totals]) {
                (totals.peak_bytes, totals.peak_count) = Default::default();
                totals.at_peak = Default::default();
            }
        }
    };
    [
        ("kept sums", |it| it.sums, sums),
        ("drops", |it| it.drops, without(|profile| profile.health.lost.clear())),
        ("inherited", |it| it.inherited, without(|profile| profile.targets[0].callsites[1].inherited = false)),
        ("heaps", |it| it.heaps, without(heaps)),
        ("peaks", |it| it.peaks, without(peaks)),
        ("window", |it| it.windows, without(window)),
    ]
}

/// Like `written`, with a header and an event of each callsite in heaptrack's format.
fn of_format(format: Format, profile: &Profile) -> Vec<u8> {
    if format == Format::Massif {
        // Of several processes, it has the peak of the sum over time.
        let targets = vec![profile.targets[0].clone()];
        return written(format, &Profile { targets, ..profile.clone() }, View::LiveBytes);
    }
    if format != Format::Heaptrack {
        return written(format, profile, View::LiveBytes);
    }
    let presentation = Presentation::default();
    let mut events = Events::new(Vec::new(), profile, &presentation).expect("a vector takes all bytes");
    for (at, target) in profile.targets.iter().enumerate() {
        for callsite in 0..target.callsites.len() {
            events.allocate(at, callsite, 1).expect("a vector takes all bytes");
        }
    }
    events.finish(0).expect("a vector takes all bytes")
}

#[test]
fn formats_have_what_the_table_states_and_nothing_else() {
    let whole = everything();
    let mut wrong = Vec::new();
    for (name, place, lacking) in things() {
        for format in Format::ALL {
            let place = place(&format.contents());
            let differs = of_format(format, &whole) != of_format(format, &lacking);
            if differs != (place != Place::Nowhere) {
                wrong.push(format!(
                    "{format}: {name} is in {place:?}, and {}",
                    if differs { "changes it" } else { "does not" }
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Rows of tables and lines of stacks add up to the totals of all processes.
#[test]
fn kept_sums_are_in_tables_and_folded_stacks() {
    let profile = everything();
    let expected = View::ALL.map(|view| {
        let targets = profile.callsites().map(|(_, callsite)| view.of_callsite(callsite)).sum::<u64>();
        targets + view.of_folded(&profile)
    });
    let text = |format| String::from_utf8(written(format, &profile, View::LiveBytes)).expect("text");
    for (format, prefix) in [(Format::Csv, ""), (Format::CsvFunctions, "self_")] {
        let table = text(format);
        let (header, rows) = table.split_once('\n').expect("a header");
        for (view, expected) in View::ALL.into_iter().zip(expected) {
            let name = format!("{prefix}{}", view.name().replace('-', "_"));
            let at = header.split(',').position(|column| column == name).expect("a column");
            // Names with commas are quoted.
            let cells = |row: &str| -> Vec<String> {
                let parts = row
                    .split('"')
                    .enumerate()
                    .map(|(i, part)| if i % 2 == 1 { part.replace(',', ";") } else { part.into() });
                parts.collect::<String>().split(',').map(str::to_owned).collect()
            };
            let sum: u64 = rows.lines().map(|row| cells(row)[at].parse::<u64>().expect("a number")).sum();
            assert_eq!(sum, expected, "{format} {name}");
        }
    }
    let lines = text(Format::Folded);
    let sum: u64 =
        lines.lines().map(|line| line.rsplit_once(' ').expect("a value").1.parse::<u64>().expect("a number")).sum();
    assert_eq!(sum, expected[0]);
    assert!(
        lines.contains("[processes that exited: only totals kept] ")
            || lines.contains("[processes that exited, only totals kept] ")
    );
}

#[test]
fn what_a_file_lacks_is_stated_when_it_is_written() {
    let profile = everything();
    let dhat = Format::Dhat.lacks(&profile);
    assert!(dhat.starts_with(", left out: ") && dhat.ends_with("of 5 processes that exited"), "{dhat}");
    let csv = Format::Csv.lacks(&profile);
    assert!(csv.starts_with(", without the verdict: ") && csv.contains("events dropped"), "{csv}");
    assert_eq!(Format::Json.lacks(&profile), "");
    for format in Format::ALL {
        assert_eq!(format.lacks(&profiles::exact()), "", "{format}");
    }
}

#[test]
fn the_table_is_documented() {
    let mut table =
        "| format | kept sums | drops | inherited blocks | heaps | peaks | window |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
    for format in Format::ALL {
        let Contents { sums, drops, inherited, heaps, peaks, windows } = format.contents();
        let cells = [sums, drops, inherited, heaps, peaks, windows].map(<&str>::from).join(" | ");
        writeln!(table, "| `.{}` | {cells} |", format.spec().extension).expect("strings grow");
    }
    check_table("formats.md", "contents", &table);
}

/// 3,000 callsites with one block each, of which some are sampled: each weight is rounded up, so their sum was a quarter too large.
#[test]
fn sums_of_many_small_callsites_are_those_of_the_estimates() {
    let mut profile = profiles::sampled();
    let callsite = profile.targets[1].callsites[0].clone();
    for (blocks, bytes) in [(1, 4000), (1, 3000), (3, 2500)] {
        let totals = profiles::taken(4096, blocks, bytes, blocks / 2);
        let more = std::iter::repeat_n(heapbpf_ledger::model::CallsiteProfile { totals, ..callsite.clone() }, 600);
        profile.targets[1].callsites.extend(more);
    }
    profile.round_sums();
    for view in [View::LiveCount, View::AllocCount] {
        let whole: u64 = profile.callsites().map(|(_, callsite)| view.of_callsite(callsite)).sum();
        let estimate: f64 = profile.callsites().map(|(_, callsite)| view.estimate(&callsite.totals)).sum();
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let off = whole as f64 - estimate;
        assert!(off.abs() <= 2.0, "{view}: {whole} for {estimate}");
    }
    for (_, callsite) in profile.callsites() {
        let [live, allocated] = [View::LiveCount, View::AllocCount].map(|view| view.of_callsite(callsite));
        assert!(live <= allocated, "{:?}", callsite.totals);
    }
}
