//! Measures the size of a recording, and the time to write, read and replay it: `cargo run --release --example recording --
//! x.heapbpf`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use heapbpf::internals::{Entry, Names, Replay, Writer, read_recording};

#[expect(clippy::print_stdout, reason = "prints measurements")]
fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).context("usage: recording FILE")?;
    let path = Path::new(&path);
    let began = Instant::now();
    let entries: Vec<Entry> = read_recording(path)?.collect();
    let reading = began.elapsed();
    let events = entries.iter().filter(|entry| matches!(entry, Entry::Event(_))).count();
    let bytes = std::fs::metadata(path)?.len();

    let copy = tempfile::NamedTempFile::new()?;
    let began = Instant::now();
    let mut writer = Writer::create(copy.path(), None)?;
    let mut end = None;
    for entry in &entries {
        match entry {
            Entry::End(time) => end = Some(*time),
            entry => writer.add(entry)?,
        }
    }
    let written = writer.finish(&Names::default(), end.unwrap_or_default())?;
    let writing = began.elapsed();

    let began = Instant::now();
    let mut replay = Replay::default();
    entries.into_iter().for_each(|entry| replay.enter(entry));
    let replaying = began.elapsed();

    let rate = |time: std::time::Duration| per(events, time.as_secs_f64()) / 1e6;
    println!("{events} events, {bytes} bytes: {:.2} bytes per event", per_event(bytes, events));
    println!("  {:.2} bytes per event without names", per_event(written.size_bytes, events));
    println!(
        "  written {:.1} M events/s, read {:.1} M/s, replayed {:.1} M/s",
        rate(writing),
        rate(reading),
        rate(replaying)
    );
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn per(events: usize, seconds: f64) -> f64 {
    events as f64 / seconds
}

#[expect(clippy::cast_precision_loss, reason = "for display")]
fn per_event(bytes: u64, events: usize) -> f64 {
    bytes as f64 / events as f64
}
