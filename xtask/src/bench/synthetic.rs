//! `cargo xtask bench formats` and `bench mark`: time and memory for synthetic data of known size.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::figures::{self, Spread, alternate, mib};
use super::{Measured, Page, all_met};
use crate::command::{self, Repository};
use crate::process::run_measured;
use crate::viewers;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Write the table into its page of docs/.
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
pub(super) fn formats(arguments: &Arguments) -> Result<()> {
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

/// Processes of a fleet.
const SERVICE: Shape = Shape { callsites: 1000, frames: 25 };

#[derive(clap::Args)]
pub(super) struct FleetArguments {
    /// Write the table into its page of docs/.
    #[arg(long)]
    write: bool,

    /// Number of machines: a file of each.
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    files: usize,

    /// Number of windows in each file.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    windows: usize,
}

/// The callsite that leaks in the example `fleet`.
const LEAKING: usize = 7;

/// Limit for the writer, whose memory must not depend on the number of windows.
const FLEET_MIB_MAX: f64 = 256.0;

/// Writes the files of a fleet by the example `fleet`, and runs the queries of docs/parquet.md on them in DuckDB.
pub(super) fn fleet(arguments: &FleetArguments) -> Result<()> {
    let repository = Repository::find()?;
    let viewers = viewers::install(&repository)?;
    let folder = tempfile::tempdir()?;
    let (report, files) = (folder.path().join("service.json"), folder.path().join("fleet"));
    write_report(&report, SERVICE)?;
    fs::create_dir(&files)?;
    let mut write = Command::new(repository.example("fleet")?);
    write.arg(&report).arg(&files).args([arguments.files.to_string(), arguments.windows.to_string()]);
    let (status, seconds, resident_mib) = run_measured(write.stdout(Stdio::null()))?;
    ensure!(status.success(), "writing the fleet failed: {status}");
    let bytes = fs::read_dir(&files)?.map(|file| Ok(file?.metadata()?.len())).sum::<std::io::Result<u64>>()?;
    let mut query = Command::new(viewers.join("venv/bin/python"));
    query.arg(repository.root.join("tests/viewers/parquet.py")).arg("queries");
    query.arg(repository.root.join("docs/parquet.md")).arg(&files);
    let seen: Value = serde_json::from_str(&command::output(&mut query)?)?;
    let rows = seen["rows"].as_f64().context("DuckDB printed no number of rows")?;
    check_answers(arguments, &seen)?;
    let Shape { callsites, frames } = SERVICE;
    let mut cells = vec![
        vec!["writing, one thread".to_owned(), format!("{seconds:.0} s, {:.2} µs per row", seconds * 1e6 / rows)],
        vec!["memory of the writer".to_owned(), format!("{resident_mib:.0} MiB")],
        vec![
            "size".to_owned(),
            format!("{:.0} MiB, {:.1} bytes per row", mib(bytes), mib(bytes) * 1024.0 * 1024.0 / rows),
        ],
    ];
    for (name, query) in seen["queries"].as_object().context("DuckDB ran no query")? {
        let seconds = query["seconds"].as_f64().context("a query has no time")?;
        cells.push(vec![format!("query: {name}"), format!("{seconds:.1} s")]);
    }
    let text = format!(
        "A simulated fleet: {} files of {} windows of {callsites} callsites with {frames} frames each, {:.0} million rows.\n\n{}",
        arguments.files,
        arguments.windows,
        rows / 1e6,
        figures::table(&["", "measured"], &cells)
    );
    let exceeds = resident_mib > FLEET_MIB_MAX;
    let missed = exceeds.then(|| format!("{FLEET_MIB_MAX} MiB for the writer")).into_iter().collect();
    let page = Page::new(&repository, "docs/parquet.md", arguments.write);
    all_met(&page.publish("fleet", Measured { text, missed })?)
}

/// Fails unless the queries find what the example simulates: five services, and a callsite that leaks in the newer build.
fn check_answers(arguments: &FleetArguments, seen: &Value) -> Result<()> {
    let rows = (arguments.files * arguments.windows * SERVICE.callsites) as u64;
    ensure!(seen["rows"] == rows, "{} rows instead of {rows}", seen["rows"]);
    let answer = |query: &str| &seen["queries"][query]["rows"];
    for query in ["growing", "regression"] {
        let first = answer(query)[0]["function"].as_str().unwrap_or_default();
        ensure!(first.contains(&format!("<Key{LEAKING}, ")), "`{query}` finds `{first}` first");
    }
    let services = answer("services").as_array().map_or(0, Vec::len);
    ensure!(services == arguments.files.min(5), "{services} services");
    Ok(())
}

/// Minimum rate of marking in GiB/s of each CPU.
const GIB_PER_SECOND_MIN: f64 = 1.0;
/// Limit for 10 million blocks, in GiB: copied memory, blocks, marks and the result of folding.
const RESIDENT_GIB_MAX: f64 = 2.0;

/// A heap, and the arguments of `marking`: MiB, minimum and maximum bytes of a block, percent of words that are pointers, percent
/// of pointers to near blocks, threads, percent of leaked blocks.
const HEAPS: [(&str, [u32; 7]); 9] = [
    ("1 GiB, buffers of 4 to 64 KiB, 1 % pointers", [1024, 4096, 65536, 1, 90, 1, 0]),
    ("1 GiB, blocks of 64 to 256 bytes, 10 % pointers, 90 % of them near", [1024, 64, 256, 10, 90, 1, 0]),
    ("the same, 25 % pointers", [1024, 64, 256, 25, 90, 1, 0]),
    ("the same, 50 % pointers", [1024, 64, 256, 50, 90, 1, 0]),
    ("the same, 25 % pointers, two threads", [1024, 64, 256, 25, 90, 2, 0]),
    ("the same, 25 % pointers, all of them anywhere", [1024, 64, 256, 25, 0, 1, 0]),
    ("10 million blocks of 64 bytes, 25 % pointers", [640, 64, 64, 25, 90, 1, 0]),
    ("the same, half of them leaked", [640, 64, 64, 25, 90, 1, 50]),
    ("the same, all of them leaked", [640, 64, 64, 25, 90, 1, 100]),
];

#[derive(Debug, Deserialize)]
struct Marked {
    blocks: u64,
    footprint_bytes: u64,
    sorted_seconds: f64,
    reached_bytes: u64,
    marked_seconds: f64,
    leaked_count: u64,
    root_count: u64,
    lower_bounds: u64,
    folded_seconds: f64,
    resident_bytes_max: u64,
}

/// Runs the example `marking` of heapbpf, a process for each heap. Times are CPU time.
pub(super) fn mark(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let program = repository.example("marking")?;
    let runs = alternate(arguments.rounds, &HEAPS, |(_, numbers)| {
        let output = command::output(Command::new(&program).args(numbers.iter().map(u32::to_string)))?;
        serde_json::from_str::<Marked>(&output).context("`marking` wrote no JSON")
    })?;
    let (table, missed) = mark_table(&runs);
    let rounds = arguments.rounds.max(1);
    let text = format!("Medians of {rounds} runs, in CPU time.\n\n{table}");
    let page = Page::new(&repository, "docs/leaks.md", arguments.write);
    all_met(&page.publish("mark", Measured { text, missed })?)
}

fn mark_table(runs: &[Vec<Marked>]) -> (String, Vec<String>) {
    type Row<'a> = (&'static str, &'a [Marked]);
    let median = |runs: &[Marked], value: fn(&Marked) -> f64| Spread::of(runs.iter().map(value)).median();
    let rate = |runs: &[Marked]| median(runs, |run| gib(run.reached_bytes) / run.marked_seconds.max(f64::MIN_POSITIVE));
    let resident = |runs: &[Marked]| median(runs, |run| gib(run.resident_bytes_max));
    let seconds = |runs: &[Marked], value| format!("{:.2} s", median(runs, value));
    let leaks = |(_, runs): &Row<'_>| {
        let Marked { leaked_count, root_count, lower_bounds, .. } = runs[0];
        let bounds = if lower_bounds > 0 { format!(", {lower_bounds} of them at least") } else { String::new() };
        format!("{leaked_count} in {root_count}{bounds}")
    };
    let reached = |(_, runs): &Row<'_>| match runs[0].reached_bytes {
        0 => String::new(),
        _ => format!("{:.2} GiB/s", rate(runs)),
    };
    let rows = || HEAPS.iter().zip(runs).map(|((heap, _), runs)| (*heap, runs.as_slice()));
    let is_slow = |runs: &[Marked]| runs[0].reached_bytes > 0 && rate(runs) < GIB_PER_SECOND_MIN;
    let missed = rows().filter(|(_, runs)| is_slow(runs) || resident(runs) > RESIDENT_GIB_MAX);
    let table = figures::columns::<Row<'_>>(
        rows(),
        &[
            ("heap", &|(heap, _)| (*heap).to_owned()),
            ("blocks", &|(_, runs)| runs[0].blocks.to_string()),
            ("bytes a block", &|(_, runs)| {
                format!("{:.1}", median(runs, |run| run.footprint_bytes as f64 / run.blocks as f64))
            }),
            ("sorting", &|(_, runs)| seconds(runs, |run| run.sorted_seconds)),
            ("marking", &|(_, runs)| seconds(runs, |run| run.marked_seconds)),
            ("of reached memory", &reached),
            ("leaked, in root leaks", &leaks),
            ("folding", &|(_, runs)| seconds(runs, |run| run.folded_seconds)),
            ("memory, with the heap", &|(_, runs)| format!("{:.2} GiB", resident(runs))),
        ],
    );
    let limit = format!("{GIB_PER_SECOND_MIN} GiB/s and {RESIDENT_GIB_MAX} GiB");
    (table, missed.map(|(heap, _)| format!("{limit} for {heap}")).collect())
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
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

    #[test]
    fn heaps_that_exceed_a_limit_are_listed() {
        let run = |reached_bytes, resident_bytes_max| Marked {
            blocks: 10,
            footprint_bytes: 200,
            sorted_seconds: 0.1,
            reached_bytes,
            marked_seconds: 1.0,
            leaked_count: 3,
            root_count: 2,
            lower_bounds: 1,
            folded_seconds: 0.1,
            resident_bytes_max,
        };
        let mut runs: Vec<Vec<Marked>> = HEAPS.iter().map(|_| vec![run(2 << 30, 1 << 30)]).collect();
        runs[2] = vec![run(1 << 29, 1 << 30)];
        runs[7] = vec![run(2 << 30, 3 << 30)];
        runs[8] = vec![run(0, 1 << 30)];
        let (text, missed) = mark_table(&runs);
        assert_eq!(missed, [HEAPS[2].0, HEAPS[7].0].map(|heap| format!("1 GiB/s and 2 GiB for {heap}")));
        assert!(text.contains("| 20.0 | 0.10 s | 1.00 s | 2.00 GiB/s | 3 in 2, 1 of them at least |"), "{text}");
    }
}
