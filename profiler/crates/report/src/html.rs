//! The HTML report: one interactive page that needs no network. The profile's data is compressed and in base64, so
//! that no name of a target is part of the page's markup.

use std::borrow::Cow;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use columns::{
    CallsiteColumns, Frames, Functions, HistoryColumns, Names, Nodes, Number, SourceColumns, Stacks, float, millis,
};
use flate2::{Compression, GzBuilder};
use heapbpf_ledger::model::{
    HeapProfile, HookStatus, Leaks, MemoryAccount, ObjectType, ObjectTypes, Profile, TargetProfile,
};
use heapbpf_ledger::totals::Totals;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use strum::EnumMessage as _;

use super::beginnings::beginnings;
use super::cuts::{Cut, cuts};
use super::json::schema::Origin;
use super::presentation::{Presentation, View};
use super::summary::health::{describe_reached, explain_stack_end, missing_isolation, missing_names, unnamed_modules};
use super::{describe, memory, plain_json, text};

mod columns;

const PAGE: &str = include_str!("html/page.html");

/// Bundled from `page/` by `cargo xtask build-page`, and committed.
const STYLE: &str = include_str!("html/dist/page.css");
const SCRIPT: &str = include_str!("html/dist/page.js");
const LICENCES: &str = include_str!("html/dist/LICENCES");

/// Where the page gets its data from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// Its own markup.
    Embedded(&'a Profile, &'a Presentation),
    /// The server that it is loaded from.
    Live,
}

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn Write) -> io::Result<()> {
    write_page(Source::Embedded(profile, presentation), out)
}

/// Writes the page that a server sends: it fetches its documents from `api/document` when `api/events` announces them.
pub fn write_live(out: &mut dyn Write) -> io::Result<()> {
    write_page(Source::Live, out)
}

/// Writes a document for the live page: the JSON that pages in files embed.
pub fn write_document(profile: &Profile, presentation: &Presentation, out: &mut dyn Write) -> io::Result<()> {
    plain_json::write(&Document::new(profile, presentation), out)
}

fn write_page(source: Source<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = PAGE;
    while let Some((before, (part, after))) =
        rest.split_once("{{").and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
    {
        out.write_all(before.as_bytes())?;
        match (part, source) {
            ("policy", source) => out.write_all(policy(source).as_bytes())?,
            ("style", _) => out.write_all(STYLE.as_bytes())?,
            ("licences", _) => out.write_all(LICENCES.as_bytes())?,
            ("script", _) => out.write_all(SCRIPT.as_bytes())?,
            ("live", Source::Live) => out.write_all(b" data-live")?,
            ("profile", Source::Embedded(profile, presentation)) => write_data(profile, presentation, out)?,
            ("live" | "profile", _) => {}
            _ => return Err(io::Error::other(format!("unknown placeholder `{part}` in the page"))),
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Allows the page's own script and style by their hashes. Only a live page may load anything, from its own server.
fn policy(source: Source<'_>) -> String {
    let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())));
    format!(
        "default-src 'none'; script-src {}; style-src {};{} base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE),
        match source {
            Source::Embedded(..) => "",
            Source::Live => " connect-src 'self';",
        },
    )
}

/// Writes the profile's data: JSON, compressed with gzip, in base64. The output is reproducible: it has no timestamp.
fn write_data(profile: &Profile, presentation: &Presentation, out: &mut dyn Write) -> io::Result<()> {
    let encoder = EncoderWriter::new(out, &STANDARD);
    let mut packer = io::BufWriter::with_capacity(1 << 16, GzBuilder::new().write(encoder, Compression::new(7)));
    serde_json::to_writer(&mut packer, &Document::new(profile, presentation))?;
    let mut encoder = packer.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
    encoder.finish()?;
    Ok(())
}

const HOOKS_MAX: usize = 500;

/// The page's data, in the form that its scripts read. Columnar, unlike the JSON report, to keep pages small.
#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    view: &'static str,
    by: Vec<&'static str>,
    header: Value,
    strings: Vec<Cow<'a, str>>,
    functions: Functions,
    frames: Frames,
    nodes: Nodes,
    gaps: Vec<Vec<String>>,
    targets: Vec<TargetFields>,
    health: Value,
    #[serde(skip_serializing_if = "SourceColumns::is_empty")]
    sources: SourceColumns<'a>,
}

impl<'a> Document<'a> {
    fn new(profile: &'a Profile, presentation: &Presentation) -> Self {
        let mut names = Names::new(profile);
        let mut stacks = Stacks::default();
        let mut gaps = Vec::new();
        let targets = profile.targets.iter().map(|target| TargetFields {
            facts: facts(profile, target),
            callsites: CallsiteColumns::new(target, &mut names, &mut stacks, &mut gaps),
            history: HistoryColumns::new(profile, target),
        });
        let targets = targets.collect();
        let sources = SourceColumns::new(&profile.sources, &mut names);
        let (strings, functions, frames) = names.into_tables();
        Self {
            version: 1,
            view: presentation.view.name(),
            by: presentation.by.iter().map(|group| group.name()).collect(),
            header: header(profile),
            strings,
            functions,
            frames,
            nodes: stacks.nodes,
            gaps,
            targets,
            health: health(profile),
            sources,
        }
    }
}

#[derive(Serialize)]
struct TargetFields {
    #[serde(flatten)]
    facts: Value,
    callsites: CallsiteColumns,
    history: HistoryColumns,
}

/// Times are in milliseconds since the recording started.
fn facts(profile: &Profile, target: &TargetProfile) -> Value {
    let TargetProfile { facts, totals, .. } = target;
    let heap = |heap: &HeapProfile| {
        json!({
            "name": heap.name,
            "interval_bytes": heap.interval_bytes,
            "interval_bytes_max": heap.interval_bytes_max,
            "estimates": estimates(profile, &heap.totals, heap.interval_bytes, heap.is_exact()),
        })
    };
    json!({
        // Unique, unlike pids.
        "name": describe::target(target),
        "pid": facts.pid,
        "command": facts.command,
        "cgroup": facts.cgroup,
        "origin": Origin::from(facts.beginning.origin),
        "begun": millis(profile, facts.beginning.time),
        "exited": facts.has_exited(),
        "replaced": facts.is_replaced(),
        "exit_code": facts.exit_code(),
        "detached": facts.detached().map(|time| millis(profile, time)),
        "estimates": estimates(profile, totals, profile.interval_bytes_of(target), profile.is_exact_of(target)),
        "freed_bytes": Number(totals.free_bytes.to_f64()),
        "freed_count": Number(totals.free_count.to_f64()),
        "peak_bytes": Number(totals.peak_bytes.to_f64()),
        "peak_time": totals.peak_time.map(|time| millis(profile, time)),
        "heaps": target.heaps.iter().map(heap).collect::<Vec<_>>(),
        "threads": target.threads,
        "memory": memory_points(profile, &target.memory),
        "objects": target.memory.objects().iter().map(|counted| objects(profile, counted)).collect::<Vec<_>>(),
        "leaks": target.leaks.as_ref().map(|leaks| self::leaks(leaks, target)),
    })
}

fn leaks(leaks: &Leaks, target: &TargetProfile) -> Value {
    let candidates = leaks.candidates.iter().filter(|candidate| candidate.callsite < target.callsites.len());
    let candidates = candidates.map(|candidate| {
        json!({
            "callsite": candidate.callsite,
            "bytes_per_second": Number(candidate.bytes_per_second),
            "margin": Number(candidate.margin),
            "old_share": candidate.old_share,
            "survival": candidate.survival,
        })
    });
    json!({
        // Observed time span, in milliseconds.
        "span": Number(float(leaks.span_ns) / 1e6),
        "too_short": leaks.too_short,
        "count": leaks.count,
        "suppressed_count": leaks.suppressed_count,
        "suppressed_bytes": Number(leaks.suppressed_bytes.to_f64()),
        "candidates": candidates.collect::<Vec<_>>(),
    })
}

fn unexplained(profile: &Profile) -> Vec<Value> {
    let json = |it: memory::Unexplained| json!({ "statement": it.statement, "details": it.details });
    memory::unexplained(profile).into_iter().map(json).collect()
}

/// Resident bytes by part, over time.
fn memory_points(profile: &Profile, account: &MemoryAccount) -> Value {
    let points = account.points().iter().map(|point| {
        let parts = point.parts.iter().map(|part| json!([part.title(), part.bytes]));
        json!({ "time": millis(profile, point.time), "parts": parts.collect::<Vec<_>>() })
    });
    points.collect()
}

/// Objects of a runtime, by type. The columns of a type are its name, objects, bytes with those of large tables, and the growths of both.
fn objects(profile: &Profile, counted: &ObjectTypes) -> Value {
    let row = |one: &ObjectType| json!([one.name, one.objects, one.all_bytes(), one.grown_objects, one.grown_bytes]);
    json!({
        "language": counted.language.name(),
        "time": millis(profile, counted.time),
        "since": counted.since.map(|time| millis(profile, time)),
        "types": counted.types.iter().map(row).collect::<Vec<_>>(),
        "more_types": counted.more_types,
        "blocks": [counted.blocks.blocks, counted.blocks.bytes],
        "other": [counted.other.blocks, counted.other.bytes],
        "unread": [counted.unread.blocks, counted.unread.bytes],
        "reserved_bytes": counted.reserved_bytes,
        "one_of": counted.one_of,
    })
}

fn header(profile: &Profile) -> Value {
    let totals = describe::totals(profile);
    let without = View::ALL.into_iter().filter(|&view| !describe::has_stacks(profile, view));
    let nothing = without.map(|view| json!({ "view": view.name(), "lines": describe::nothing(profile, view) }));
    json!({
        "subject": describe::subject(profile),
        "interval": describe::interval(profile),
        "exact": profile.is_exact(),
        "incomplete": profile.incomplete(),
        "verdict": describe::verdict(profile),
        "started": text::moment(profile.started_unix_ns),
        // Length of the recording, in milliseconds.
        "span": Number(float(profile.ended_unix_ns.saturating_sub(profile.started_unix_ns)) / 1e6),
        "duration": text::duration(describe::duration_ns(profile)),
        "checked": describe::checked_at(profile),
        "window": profile.window.is_some().then(|| describe::outcome(profile)),
        "older_than": profile.older_than_ns.map(text::duration),
        "unreachable": profile.unreachable,
        "beginnings": beginnings(profile),
        "unexplained": unexplained(profile),
        "estimates": estimates(profile, &totals, profile.interval_bytes_of_all(), profile.is_exact()),
        "freed_bytes": Number(totals.free_bytes.to_f64()),
        "freed_count": Number(totals.free_count.to_f64()),
        "folded": (profile.others.folded_count > 0).then(|| json!({
            "processes": describe::folded_processes(profile),
            "estimates": estimates(
                profile,
                &profile.others.folded_totals,
                profile.interval_bytes_of_folded(),
                profile.is_exact_of_folded(),
            ),
        })),
        "nothing": nothing.collect::<Vec<_>>(),
    })
}

/// Amounts by view; of estimates also the bounds of the 95 % confidence interval, if they are known, and the number of samples.
fn estimates(profile: &Profile, totals: &Totals, interval_bytes: u64, is_exact: bool) -> Map<String, Value> {
    let estimate = |view: View| {
        let mut numbers = vec![Number(view.estimate(totals))];
        if !is_exact && let Some([low, high]) = view.bounds(profile, totals, interval_bytes) {
            numbers.extend([low, high, float(view.samples(totals))].map(Number));
        }
        (view.field_name(), json!(numbers))
    };
    View::ALL.into_iter().map(estimate).collect()
}

#[derive(Serialize)]
struct HookFields<'a> {
    heap: &'a str,
    #[serde(flatten)]
    status: &'a HookStatus,
}

fn health(profile: &Profile) -> Value {
    let health = &profile.health;
    let guardrails = &health.guardrails;
    let lost = health.lost.iter().filter(|(_, count)| *count > 0).map(|(loss, count)| {
        let (meaning, remedy) = (loss.get_message(), loss.get_detailed_message());
        json!({ "reason": loss.name(), "count": count, "meaning": meaning, "remedy": remedy })
    });
    let ends = health.unwind.iter().filter(|(_, count)| *count > 0);
    let ends = ends.map(|(end, count)| json!({ "end": end, "count": count, "meaning": explain_stack_end(end) }));
    let cut = |cut: &Cut<'_>| json!({ "cause": cut.cause(), "share": cut.share, "advice": cut.advice });
    let hooks = describe::each_once(profile);
    let listed = hooks.iter().take(HOOKS_MAX).map(|(heap, status)| HookFields { heap: &heap.name, status });
    let overheads = profile.targets.iter().filter_map(|target| {
        let overhead = target.facts.overhead?;
        let (percent, highest) = (overhead.percent, overhead.percent_highest);
        Some(json!({ "target": describe::target(target), "percent": percent, "percent_highest": highest }))
    });
    let skipped = profile.others.skipped.iter().map(|skipped| {
        let line = format!("{} (pid {}): {}", skipped.command, skipped.pid, skipped.reason);
        text::printable(&line).into_owned()
    });
    let symbolization = missing_names(&health.symbolization).into_iter().chain(unnamed_modules(&health.symbolization));
    let symbolization = symbolization.chain(missing_isolation(&health.symbolization));
    json!({
        "lost": lost.collect::<Vec<_>>(),
        "unwind": ends.collect::<Vec<_>>(),
        "cuts": cuts(profile).iter().map(cut).collect::<Vec<_>>(),
        "frame_pointer_modules": health.frame_pointer_modules,
        "hooks": listed.collect::<Vec<_>>(),
        "hooks_count": hooks.len(),
        "unfound": health.unfound,
        "inlined": health.inlined_heaps.iter().map(describe::inlined).collect::<Vec<_>>(),
        "resyncs": health.resyncs,
        "interval_changes": describe::interval_changes(profile),
        "reached": guardrails.reached.iter().map(|reached| describe_reached(profile, reached)).collect::<Vec<_>>(),
        "memory_bytes_max": guardrails.memory_bytes_max,
        "memory_bytes_highest": guardrails.memory_bytes_highest,
        "cpu_percent_max": guardrails.cpu_percent_max,
        "cpu_percent_highest": guardrails.cpu_percent_highest,
        "overhead_percent_max": guardrails.overhead_percent_max,
        "overheads": overheads.collect::<Vec<_>>(),
        "events": health.events,
        // In milliseconds.
        "agent_cpu": Number(float(health.agent_cpu_ns) / 1e6),
        "agent_rss_bytes_max": health.agent_rss_bytes_max,
        "skipped": skipped.collect::<Vec<_>>(),
        "symbolization": symbolization.collect::<Vec<_>>(),
    })
}
