//! The summary after a run.

use heapbpf_ledger::model::End;
use heapbpf_ledger::totals::Totals;

use super::check_golden;
use crate::View;
use crate::summary::{Top, summary};
use crate::testing as profiles;
use crate::usage::TopBy;

#[test]
fn goldens() {
    for (name, profile, view, width) in [
        ("exact", profiles::exact(), View::LiveBytes, None),
        ("exact.alloc-bytes", profiles::exact(), View::AllocBytes, Some(80)),
        ("sampled", profiles::sampled(), View::LiveBytes, Some(100)),
        ("mixed", profiles::mixed(), View::LiveBytes, Some(100)),
        ("nameless", profiles::nameless(), View::LiveBytes, Some(80)),
        ("empty", profiles::empty(), View::LiveBytes, Some(80)),
        ("unhooked", profiles::unhooked(), View::LiveBytes, Some(80)),
        ("freed", profiles::freed(), View::LiveBytes, Some(80)),
        ("nobody", profiles::nobody(), View::LiveBytes, Some(80)),
    ] {
        check_golden(&format!("summary/{name}.txt"), &summary(&profile, view, 10, width, false));
    }
}

/// It would be taken for a message of heapbpf's.
#[test]
fn no_line_begins_with_a_name() {
    const NAME: &str = "heapbpf: error: cannot write the report";
    for mut profile in profiles::all() {
        for target in &mut profile.targets {
            (target.facts.comm, target.facts.command) = (NAME.to_owned(), NAME.to_owned());
            target.heaps.iter_mut().for_each(|heap| NAME.clone_into(&mut heap.name));
        }
        for frame in &mut profile.frames {
            (frame.function, frame.module) = (Some(NAME.into()), Some(NAME.into()));
        }
        for by in [TopBy::Callsite, TopBy::Function, TopBy::Module] {
            for width in [None, Some(80)] {
                let text = summary(&profile, View::LiveBytes, Top { rows: 10, by }, width, false);
                assert!(!text.lines().any(|line| line.starts_with("heapbpf: ")), "{text}");
                assert!(width.is_some() || profile.targets.is_empty() || text.contains(NAME), "{text}");
            }
        }
    }
}

#[test]
fn a_long_command_is_shortened() {
    let mut profile = profiles::exact();
    profile.targets[0].facts.command = "x".repeat(1 << 17);
    profile.targets[0].facts.end = Some(End::Exited { code: None });
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    let line = text.lines().find(|line| line.starts_with("command: xxx")).expect("it is listed");
    assert!(line.len() < 400 && line.contains("x…"), "{line}");
}

#[test]
fn a_process_without_samples_has_each_heaps_interval() {
    let mut profile = profiles::mixed();
    for target in &mut profile.targets {
        target.totals = Totals::default();
        target.callsites.clear();
    }
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    assert!(text.contains("or too little to be sampled"), "{text}");
    let line = "One block per 4 KiB of heap libc is sampled on average; `--heap-interval libc=1` records every one.";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("--interval 1"), "{text}");
}

#[test]
fn tables_fit_the_terminal() {
    for width in [80, 100, 200] {
        let text = summary(&profiles::sampled(), View::LiveBytes, 10, Some(width), false);
        let tables: Vec<&str> = text.lines().take_while(|line| !line.starts_with("health")).collect();
        assert!(tables.iter().any(|line| line.contains('…')) || width == 200, "{text}");
        for line in tables {
            let columns = line.chars().count();
            assert!(columns <= width, "{columns} columns in {width}: {line}");
        }
    }
}

#[test]
fn escapes_are_optional() {
    let profile = profiles::sampled();
    let plain = summary(&profile, View::LiveBytes, 10, None, false);
    assert!(!plain.contains('\u{1b}'), "{plain}");
    let coloured = summary(&profile, View::LiveBytes, 10, None, true);
    assert!(coloured.contains("\u{1b}[1m2 processes"), "{coloured}");
    let mut stripped = coloured;
    for escape in ["\u{1b}[1m", "\u{1b}[33m", "\u{1b}[0m"] {
        stripped = stripped.replace(escape, "");
    }
    assert_eq!(stripped, plain);
}

#[test]
fn callsites_that_look_the_same_are_one_row() {
    let mut profile = profiles::exact();
    let mut again = profile.targets[0].callsites[2].clone();
    // The same functions at another address.
    profile.frames.push(profile.frames[3].clone());
    profile.frames[6].address += 0x40;
    again.stack[0] = heapbpf_ledger::model::FrameId(6);
    profile.targets[0].callsites.push(again);
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("cache_insert.part.0")).collect();
    assert_eq!(rows.len(), 1, "{text}");
    assert!(rows[0].trim_start().starts_with("4.0 MiB"), "{text}");
}

#[test]
fn every_loss_has_a_remedy() {
    let text = summary(&profiles::sampled(), View::LiveBytes, 10, None, false);
    for line in [
        "health: incomplete: 1 hook not attached, 1 hook not found, 12,348 events dropped (1.0%), 24.6% of stacks are cut (generated code: more than 1024 frames), 90.0% of a growth in memory is unexplained",
        "  12,345 lost, ring_full: the agent did not read events fast enough",
        "    raise `--interval` or `--ring-size`",
        "  2 lost, brand_new",
        "  hooks: 4 of 5 functions of 2 heaps (libc, jemalloc)",
        "    libc: `memalign` in `/usr/lib/x86_64-linux-gnu/libc.so.6` is not attached: the entry is patched; run `heapbpf doctor --pid 900`",
        "    pool: no function `pool_get` in any module `libpool.so*` of 2 processes",
        "    cuda: none of its functions is in any module of 2 processes",
        "  stacks: 75.4% complete, 18.5% truncated (deeper than 1024 frames), 4.6% broken_chain (code without frame pointers), 1.5% no_scratch (interrupted; only the caller is known)",
        "  agent: 4.2s of CPU time (13.8% of one CPU), 61.0 MiB of memory, 1,234,567 events",
    ] {
        assert!(text.lines().any(|actual| actual == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn raised_intervals_are_listed() {
    let mut profile = profiles::exact();
    profile.health.interval_changes = profiles::sampled().health.interval_changes;
    profile.health.interval_changes[0].from_bytes = 1;
    profile.targets[0].heaps[0].interval_bytes_max = 65_536;
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    assert!(text.contains("every allocation, at times every 64 KiB"), "{text}");
    let line = "heap libc was sampled every 64 KiB at most instead of every block: the ring buffer was \
                full (after 3s); every 32 KiB at the end (2 changes)";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("≈"), "they are estimates:\n{text}");
}

#[test]
fn the_number_of_rows_is_limited() {
    let rows = |top| {
        let text = summary(&profiles::sampled(), View::LiveBytes, top, None, false);
        let table: Vec<String> =
            text.lines().skip_while(|line| !line.contains("callsites by")).map(str::to_owned).collect();
        table.split(|line| line.is_empty()).next().map_or(vec![], <[String]>::to_vec)
    };
    assert_eq!(rows(2)[0], "largest 2 of 7 callsites by live bytes (estimates)");
    assert_eq!(rows(2).len(), 2 + 2);
    assert_eq!(rows(7)[0], "7 callsites by live bytes (estimates)");
    assert_eq!(rows(7).len(), 2 + 7);
    assert!(rows(0).is_empty(), "{:?}", rows(0));
}

#[test]
fn a_process_without_an_allocator_is_reported() {
    let mut profile = profiles::empty();
    profile.targets[0].heaps.clear();
    let text = summary(&profile, View::LiveBytes, 10, None, false);
    assert!(text.contains("no allocator function could be hooked"), "{text}");
    assert!(text.contains("hooks: none, because no allocator was found"), "{text}");
}
