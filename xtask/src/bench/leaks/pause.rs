//! A gibibyte of live heap, looked at in both ways, by turns.

use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::hoard::{Heap, Hoard};
use super::look::{Look, look};
use super::{Bar, Bench, METHODS, Measured, told};
use crate::bench::document;
use crate::bench::spread::Spread;

const HEAP_BYTES: u64 = 1 << 30;

/// For how long requests are looked at while nobody looks.
const ALONE: Duration = Duration::from_secs(3);

/// What a pause may take, in each way.
const BARS: [Bar; 2] = [
    Bar { what: "Longest pause by reading", unit: "ms", most: 1000.0 },
    Bar { what: "Longest pause by fork", unit: "ms", most: 50.0 },
];

/// Measures both ways by turns.
pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let mut hoard = Hoard::start(&bench.hoard, Heap::Structures(HEAP_BYTES), 1)?;
    let mut rounds: [Vec<(Look, f64)>; 2] = [Vec::new(), Vec::new()];
    let mut alone = Vec::new();
    for _ in 0..bench.rounds {
        let _ = hoard.latest()?;
        thread::sleep(ALONE);
        alone.push(ms(hoard.latest()?));
        for (method, rounds) in METHODS.iter().zip(&mut rounds) {
            let look = look(bench, &["--pid", &hoard.pid().to_string(), "--snapshot", method].map(str::to_owned))?;
            look.found.check(&hoard.truth)?;
            rounds.push((look, ms(hoard.latest()?)));
        }
    }
    let column = |rounds: &[(Look, f64)], of: fn(&(Look, f64)) -> f64| rounds.iter().map(of).collect::<Vec<f64>>();
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    let mut verdicts = Vec::new();
    for ((method, rounds), bar) in METHODS.iter().zip(&rounds).zip(&BARS) {
        let pauses = column(rounds, |(look, _)| ms(look.found.pause()));
        rows.push(vec![
            format!("`--snapshot {method}`"),
            told(&pauses, 1),
            told(&column(rounds, |(_, latest)| *latest), 1),
            told(&column(rounds, |(look, _)| look.seconds), 1),
            told(&column(rounds, |(look, _)| look.resident_mib), 0),
        ]);
        verdicts.push(bar.judge(Spread::new(pauses).max(), &mut missed));
    }
    rows.push(vec!["nobody looks".to_owned(), String::new(), told(&alone, 1), String::new(), String::new()]);
    let head = ["1 GiB of live heap", "pause, ms", "latest answer, ms", "until reported, s", "heapbpf's memory, MiB"];
    let truth = hoard.truth;
    let text = format!(
        "{} live blocks of 64 to 256 bytes, a third of whose words are pointers; {} further ones have leaked, and are found. Medians of {} \
         rounds, the worst in parentheses. Requests are due each millisecond, and change what they serve from.\n\n{}\n{}\n",
        truth.held_count,
        truth.leaked_count,
        bench.rounds,
        document::table(&head, &rows),
        verdicts.join("\n"),
    );
    Ok(Measured { text, missed })
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
