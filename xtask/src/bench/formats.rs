//! `cargo xtask bench formats`: what writing a large profile costs in each format, in time and in memory of heapbpf.
//!
//! A made-up JSON report is converted to each format. Reading it takes time too, which is measured by a conversion to nothing
//! and subtracted; memory is the largest resident size of the whole run, reading included.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use heapbpf::internals::report::Format;
use serde_json::{Value, json};

use super::recording::Heapbpf;
use super::spread::Spread;
use super::{document, machine};
use crate::command;
use crate::repository::Repository;

/// Where `--write` writes.
const PAGE: &str = "docs/formats.md";

/// The profile.
const CALLSITES: usize = 10_000;
const FRAMES: usize = 40;
/// Callsites have half as many frames in common so many times from the leaf to the root: 2^14 is more than there are.
const HALVINGS: usize = 14;

/// What writing may take.
const SECONDS_MAX: f64 = 2.0;
const MIB_MAX: f64 = 500.0;

/// How often memory is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(2);

/// Measures what each format takes for 10,000 callsites of 40 frames each.
#[derive(clap::Parser)]
pub(crate) struct Arguments {
    /// Put the table into docs/formats.md.
    #[arg(long)]
    write: bool,

    /// Conversions to each format.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,
}

/// Runs the subject.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let heapbpf = Heapbpf::find(&repository)?;
    let folder = tempfile::tempdir()?;
    let report = folder.path().join("large.json");
    write_report(&report)?;

    let formats = Format::ALL.into_iter().filter(|format| !format.needs_recording());
    let extensions = formats.map(|format| Some(format.extension()));
    let mut runs: Vec<(Option<&str>, Vec<Run>)> =
        std::iter::once(None).chain(extensions).map(|extension| (extension, Vec::new())).collect();
    for _ in 0..arguments.rounds.max(1) {
        for (extension, of_format) in &mut runs {
            let output = extension.map(|extension| folder.path().join(format!("large.{extension}")));
            of_format.push(convert(heapbpf.binary(), &report, output.as_deref())?);
        }
    }
    let (text, above) = told(&runs, fs::metadata(&report)?.len());
    println!("{text}");
    if arguments.write {
        document::write(&repository.root.join(PAGE), "formats", &text)?;
    }
    if !above.is_empty() {
        bail!("above {SECONDS_MAX} s or {MIB_MAX} MiB: {}", above.join(", "));
    }
    Ok(())
}

/// One conversion.
struct Run {
    seconds: f64,
    resident_mib_max: f64,
    written_mib: f64,
}

fn convert(binary: &Path, report: &Path, output: Option<&Path>) -> Result<Run> {
    let mut convert = Command::new(binary);
    convert.args(["convert", "--quiet"]).arg(report).stdin(Stdio::null());
    if let Some(output) = output {
        convert.arg("-o").arg(output);
    }
    let began = Instant::now();
    let mut child = convert.spawn().with_context(|| format!("could not start `{}`", command::line(&convert)))?;
    let status = format!("/proc/{}/status", child.id());
    let mut resident_kib = 0.0;
    let ended = loop {
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        // It can end before it is looked at.
        resident_kib = fs::read_to_string(&status).ok().and_then(|status| highest_kib(&status)).unwrap_or(resident_kib);
        thread::sleep(LOOK_PERIOD);
    };
    let seconds = began.elapsed().as_secs_f64();
    if !ended.success() {
        bail!("`{}` failed: {ended}", command::line(&convert));
    }
    let written = output.map(fs::metadata).transpose()?.map_or(0, |file| file.len());
    Ok(Run { seconds, resident_mib_max: resident_kib / 1024.0, written_mib: mib(written) })
}

#[expect(clippy::cast_precision_loss, reason = "sizes of files")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The largest resident size so far, from `/proc/PID/status`.
pub(crate) fn highest_kib(status: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// The table, and the formats that take more than they may.
fn told(runs: &[(Option<&str>, Vec<Run>)], report_bytes: u64) -> (String, Vec<String>) {
    let of = |runs: &[Run], what: fn(&Run) -> f64| Spread::new(runs.iter().map(what).collect()).median();
    let reading =
        runs.iter().find(|(extension, _)| extension.is_none()).map_or(0.0, |(_, runs)| of(runs, |run| run.seconds));
    let (mut rows, mut above) = (Vec::new(), Vec::new());
    for (extension, runs) in runs {
        let (seconds, resident, written) =
            (of(runs, |run| run.seconds), of(runs, |run| run.resident_mib_max), of(runs, |run| run.written_mib));
        let Some(extension) = extension else {
            rows.push(vec![
                "reading alone".to_owned(),
                format!("{seconds:.2} s"),
                format!("{resident:.0} MiB"),
                String::new(),
            ]);
            continue;
        };
        let seconds = (seconds - reading).max(0.0);
        if seconds > SECONDS_MAX || resident > MIB_MAX {
            above.push(format!("`.{extension}`"));
        }
        rows.push(vec![
            format!("`.{extension}`"),
            format!("{seconds:.2} s"),
            format!("{resident:.0} MiB"),
            format!("{written:.1} MiB"),
        ]);
    }
    let mut text = String::new();
    let _ = writeln!(
        text,
        "Medians of {} conversions of a JSON report of {CALLSITES} callsites with {FRAMES} frames each ({:.0} MiB); {}.\n",
        runs.first().map_or(0, |(_, runs)| runs.len()),
        mib(report_bytes),
        machine::describe(),
    );
    text.push_str(&document::table(&["format", "writing", "memory, with reading", "file"], &rows));
    (text, above)
}

/// Writes a report such as heapbpf writes itself.
fn write_report(path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("could not create `{}`", path.display()))?;
    let mut out = BufWriter::new(file);
    let nothing = totals(0);
    let beginning =
        json!({ "origin": "running", "parent": null, "unix_ns": 1, "delay_ns": null, "from_first_call": false });
    let mut heap = totals((0..CALLSITES).map(bytes).sum());
    heap["name"] = "libc".into();
    heap["interval_bytes"] = 1.into();
    heap["hooks"] = json!([]);
    write!(
        out,
        r#"{{"version":1,"interval_bytes":1,"started_unix_ns":1,"ended_unix_ns":60000000001,"window":null,"others":{},"health":{},"#,
        json!({ "skipped": [], "skipped_count": 0, "short_lived_count": 0, "not_inherited_count": 0, "folded_count": 0,
                "folded_interval_bytes": null, "folded_totals": nothing }),
        json!({ "events": 1, "lost": {}, "unwind": { "complete": CALLSITES }, "frame_pointer_modules": [], "unfound": [],
                "resyncs": 0, "agent_cpu_ns": 1, "agent_rss_bytes_max": 1, "interval_changes": [],
                "guardrails": { "reached": [] } }),
    )?;
    write!(
        out,
        r#""modules":[{{"path":"/usr/bin/large","build_id":"0123456789abcdef"}}],"targets":[{{"pid":1,"command":"large","comm":"large","beginning":{beginning},"exited":false,"exit_code":null,"replaced":false,"detached_unix_ns":null,"overhead":null,"totals":{heap},"heaps":[{heap}],"mappings":[{{"start":"0x400000","end":"0x40000000","offset":"0x0","bias":"0x400000","module":0}}],"threads":[],"leak_candidates":null,"callsites":["#
    )?;
    for callsite in 0..CALLSITES {
        let mut json = totals(bytes(callsite));
        json["stack"] = (0..FRAMES).rev().map(|depth| frame(callsite, depth)).collect();
        json["end"] = "complete".into();
        json["heap"] = "libc".into();
        json["inherited"] = false.into();
        write!(out, "{}{json}", if callsite == 0 { "" } else { "," })?;
    }
    writeln!(out, "]}}]}}")?;
    Ok(out.flush()?)
}

/// What a callsite holds: many a little, few a lot.
fn bytes(callsite: usize) -> u64 {
    let spread = callsite as u64 * 7919 % CALLSITES as u64 + 1;
    50_000_000 / spread
}

/// Totals of two blocks, of which one is live.
fn totals(bytes: u64) -> Value {
    json!({
        "inherited_count": 0, "inherited_bytes": 0, "alloc_count": 2, "alloc_bytes": 2 * bytes, "free_count": 1,
        "free_bytes": bytes, "live_count": 1, "live_bytes": bytes, "alloc_samples": 2, "live_samples": 1,
        "peak_bytes": bytes, "peak_unix_ns": 2, "at_peak_count": 1, "at_peak_bytes": bytes, "age_ns_oldest": 5_000_000,
        "age_ns_median": 5_000_000, "age_histogram": [[4_096_000, 1]], "lifetime_histogram": [[64_000, 1]],
        "size_histogram": [[16, 2]], "temporary_count": 0
    })
}

/// A frame of a callsite, `depth` from the root: a function that it has in common with its neighbours, the fewer the deeper.
fn frame(callsite: usize, depth: usize) -> Value {
    let of = callsite >> ((FRAMES - 1 - depth) * HALVINGS / (FRAMES - 1));
    let function = depth * CALLSITES + of;
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
    fn neighbours_have_their_callers_in_common() {
        assert_eq!(frame(0, 0), frame(CALLSITES - 1, 0));
        assert_ne!(frame(0, FRAMES - 1), frame(1, FRAMES - 1));
        assert_eq!(frame(0, FRAMES - 4), frame(1, FRAMES - 4));
    }

    #[test]
    fn memory_is_read() {
        assert_eq!(highest_kib("Name:\tx\nVmHWM:\t  123 kB\nVmRSS:\t 5 kB\n"), Some(123.0));
        assert_eq!(highest_kib("State:\tZ (zombie)\n"), None);
    }
}
