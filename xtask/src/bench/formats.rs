//! `cargo xtask bench formats`: time and memory of writing a synthetic report of known size.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::figures::{self, Spread, alternate, mib};
use super::{Measured, Page, all_met};
use crate::command::{self, Repository};
use crate::process::run_measured;

/// Measures writing 10,000 callsites of 40 frames each, in each format. The page is docs/formats.md.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Write the table into docs/formats.md.
    #[arg(long)]
    write: bool,

    /// Number of runs of each variant.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,
}

/// Callsites and frames of each.
#[derive(Clone, Copy)]
struct Shape {
    callsites: usize,
    frames: usize,
}

const LARGE: Shape = Shape { callsites: 10_000, frames: 40 };
/// From the leaf to the root, the number of distinct functions is halved so many times: 2^14 exceeds the number of callsites.
const HALVINGS: usize = 14;
const WRITING_SECONDS_MAX: f64 = 2.0;
const WRITING_MIB_MAX: f64 = 500.0;

/// The time of reading, which a conversion without output takes, is subtracted; memory is that of the whole run.
pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let heapbpf = repository.heapbpf()?;
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("large.json");
    write_report(&report, LARGE)?;
    let formats = command::output(&mut Command::new(repository.example("formats")?))?;
    let extensions: Vec<_> = std::iter::once(None).chain(formats.lines().map(Some)).collect();
    let runs = alternate(arguments.rounds, &extensions, |extension| {
        let output = extension.map(|extension| folder.path().join(format!("large.{extension}")));
        convert(&heapbpf, &report, output.as_deref())
    })?;
    let (table, missed) = format_table(&extensions, &runs);
    let rounds = arguments.rounds.max(1);
    let size = mib(fs::metadata(&report)?.len());
    let text = format!(
        "Medians of {rounds} conversions of a JSON report of {} callsites with {} frames each ({size:.0} \
         MiB).\n\n{table}",
        LARGE.callsites, LARGE.frames
    );
    let page = Page::new(&repository, "docs/formats.md", arguments.write);
    all_met(&page.publish("formats", Measured { text, missed })?)
}

struct Conversion {
    seconds: f64,
    resident_mib: f64,
    written_mib: f64,
}

fn convert(heapbpf: &Path, report: &Path, output: Option<&Path>) -> Result<Conversion> {
    let mut convert = Command::new(heapbpf);
    convert.args(["convert", "--quiet"]).arg(report).stdin(Stdio::null());
    if let Some(output) = output {
        convert.arg("-o").arg(output);
    }
    let (status, seconds, resident_mib) = run_measured(&mut convert)?;
    ensure!(status.success(), "converting to {output:?} failed: {status}");
    let written = output.map(fs::metadata).transpose()?.map_or(0, |file| file.len());
    Ok(Conversion { seconds, resident_mib, written_mib: mib(written) })
}

/// The table, and the formats that exceed a limit. The first run has no output.
fn format_table(extensions: &[Option<&str>], runs: &[Vec<Conversion>]) -> (String, Vec<String>) {
    let median = |runs: &[Conversion], of: fn(&Conversion) -> f64| Spread::of(runs.iter().map(of)).median();
    let reading = median(&runs[0], |run| run.seconds);
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for (extension, runs) in extensions.iter().zip(runs) {
        let (seconds, resident) = (median(runs, |run| run.seconds), median(runs, |run| run.resident_mib));
        let (name, seconds, file) = match extension {
            None => ("reading alone".to_owned(), seconds, String::new()),
            Some(extension) => {
                let written = median(runs, |run| run.written_mib);
                (format!("`.{extension}`"), (seconds - reading).max(0.0), format!("{written:.1} MiB"))
            }
        };
        if extension.is_some() && (seconds > WRITING_SECONDS_MAX || resident > WRITING_MIB_MAX) {
            missed.push(format!("{WRITING_SECONDS_MAX} s and {WRITING_MIB_MAX} MiB for {name}"));
        }
        rows.push(vec![name, format!("{seconds:.2} s"), format!("{resident:.0} MiB"), file]);
    }
    (figures::table(&["format", "writing", "memory, with reading", "file"], &rows), missed)
}

fn write_report(path: &Path, shape: Shape) -> Result<()> {
    let file = File::create(path).with_context(|| format!("could not create `{}`", path.display()))?;
    let mut out = BufWriter::new(file);
    let nothing = totals(0);
    let beginning =
        json!({ "origin": "running", "parent": null, "unix_ns": 1, "delay_ns": null, "from_first_call": false });
    let mut heap = totals((0..shape.callsites).map(|callsite| bytes(callsite, shape)).sum());
    heap["name"] = "libc".into();
    heap["interval_bytes"] = 1.into();
    heap["hooks"] = json!([]);
    write!(
        out,
        r#"{{"version":1,"interval_bytes":1,"started_unix_ns":1,"ended_unix_ns":60000000001,"window":null,"others":{},"health":{},"#,
        json!({ "skipped": [], "skipped_count": 0, "short_lived_count": 0, "not_inherited_count": 0, "folded_count": 0,
                "folded_interval_bytes": null, "folded_totals": nothing }),
        json!({ "events": 1, "lost": {}, "unwind": { "complete": shape.callsites }, "frame_pointer_modules": [], "unfound": [],
                "resyncs": 0, "agent_cpu_ns": 1, "agent_rss_bytes_max": 1, "interval_changes": [],
                "guardrails": { "reached": [] } }),
    )?;
    write!(
        out,
        r#""modules":[{{"path":"/usr/bin/large","build_id":"0123456789abcdef"}}],"targets":[{{"pid":1,"command":"large","comm":"large","beginning":{beginning},"exited":false,"exit_code":null,"replaced":false,"detached_unix_ns":null,"overhead":null,"totals":{heap},"heaps":[{heap}],"mappings":[{{"start":"0x400000","end":"0x40000000","offset":"0x0","bias":"0x400000","module":0}}],"threads":[],"leak_candidates":null,"callsites":["#
    )?;
    for callsite in 0..shape.callsites {
        let mut json = totals(bytes(callsite, shape));
        json["stack"] = (0..shape.frames).rev().map(|depth| frame(callsite, depth, shape)).collect();
        json["end"] = "complete".into();
        json["heap"] = "libc".into();
        json["inherited"] = false.into();
        write!(out, "{}{json}", if callsite == 0 { "" } else { "," })?;
    }
    writeln!(out, "]}}]}}")?;
    Ok(out.flush()?)
}

/// Live bytes of a callsite: few callsites have most of them.
fn bytes(callsite: usize, shape: Shape) -> u64 {
    let spread = callsite as u64 * 7919 % shape.callsites as u64 + 1;
    50_000_000 / spread
}

/// Totals of two blocks, one of which is live.
fn totals(bytes: u64) -> Value {
    json!({
        "inherited_count": 0, "inherited_bytes": 0, "alloc_count": 2, "alloc_bytes": 2 * bytes, "free_count": 1,
        "free_bytes": bytes, "live_count": 1, "live_bytes": bytes, "alloc_samples": 2, "live_samples": 1,
        "peak_bytes": bytes, "peak_unix_ns": 2, "at_peak_count": 1, "at_peak_bytes": bytes, "age_ns_oldest": 5_000_000,
        "age_ns_median": 5_000_000, "age_histogram": [[4_096_000, 1]], "lifetime_histogram": [[64_000, 1]],
        "size_histogram": [[16, 2]], "temporary_count": 0
    })
}

/// A frame of a callsite, `depth` from the root. Fewer callsites share a function the deeper it is.
fn frame(callsite: usize, depth: usize, shape: Shape) -> Value {
    let of = callsite >> ((shape.frames - 1 - depth) * HALVINGS / (shape.frames - 1));
    let function = depth * shape.callsites + of;
    let address = 0x40_0000 + 0x40 * function;
    json!({
        "function": format!("large::Stage{depth}<std::pair<Key{of}, Value>, std::allocator<Key{of}> >::enter(int, char const*)"),
        "module": "/usr/bin/large",
        "file": format!("/usr/src/large/stage{depth}.cc"),
        "line": of % 1000 + 1,
        "inlined": false,
        "address": format!("{address:#x}"),
        "module_offset": format!("{:#x}", address - 0x40_0000),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_share_callers() {
        assert_eq!(frame(0, 0, LARGE), frame(LARGE.callsites - 1, 0, LARGE));
        assert_ne!(frame(0, LARGE.frames - 1, LARGE), frame(1, LARGE.frames - 1, LARGE));
        assert_eq!(frame(0, LARGE.frames - 4, LARGE), frame(1, LARGE.frames - 4, LARGE));
    }
}
