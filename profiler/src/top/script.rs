//! The tables as text, JSON or CSV, for scripts.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use heapbpf_ledger::model::{Frame, MemoryPart, Profile, TargetProfile};
use heapbpf_report::csv::{self, Cell};
use heapbpf_report::page::{Column as PageColumn, table_lines};
use heapbpf_report::{function, plain_json, text};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Phase;
use super::columns::{CallsiteColumn, Column, Order, TargetColumn};
use super::model::{CallsiteRow, Model, TargetRow};
use crate::live::{Feed, Unavailable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Tables for people.
    Text,
    /// One JSON object per refresh and line.
    Json,
    /// One CSV line per process and refresh.
    Csv,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) style: Style,
    /// Time between refreshes.
    pub(crate) period: Duration,
    /// Whether to write only one refresh: after the period, or at the end of a recording whose duration is set.
    pub(crate) is_once: bool,
    pub(crate) has_duration: bool,
    /// Maximum number of callsites of each process.
    pub(crate) callsites_max: usize,
    /// Whether names are written as they are: see [`Presentation::csv_raw`](heapbpf_report::Presentation::csv_raw).
    pub(crate) csv_raw: bool,
}

/// Writes a record per period, until the recording ends or the view is to end.
pub(crate) async fn run(
    feed: &Feed,
    first: Arc<Profile>,
    settings: Settings,
    mut phase: watch::Receiver<Phase>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut model = Model::new(first);
    let mut due = Instant::now();
    let mut is_first = true;
    loop {
        due += settings.period;
        tokio::select! {
            () = sleep_until(due) => {}
            _ = phase.wait_for(|phase| *phase != Phase::Recording) => {}
        }
        let (profile, has_ended) = match feed.profile(Duration::ZERO).await {
            Ok(profile) => (Some(profile), false),
            Err(Unavailable::Busy) => continue,
            Err(_) => (last(feed, &mut phase).await, true),
        };
        let is_wanted = !settings.is_once || !settings.has_duration || has_ended;
        if let Some(profile) = profile.filter(|_| is_wanted) {
            model.update(profile);
            write(&model, settings, is_first, out)?;
            is_first = false;
        }
        if has_ended || *phase.borrow() == Phase::Closing || settings.is_once && is_wanted {
            return Ok(());
        }
    }
}

/// The last state of a recording that is ending or has ended; `None` if it never began.
pub(crate) async fn last(feed: &Feed, phase: &mut watch::Receiver<Phase>) -> Option<Arc<Profile>> {
    let _ = phase.wait_for(|phase| *phase != Phase::Recording).await;
    let snapshot = feed.last().await?;
    feed.named(&snapshot).await.ok()
}

fn write(model: &Model, settings: Settings, is_first: bool, out: &mut dyn Write) -> io::Result<()> {
    match settings.style {
        Style::Text => write_text(model, settings.callsites_max, is_first, out)?,
        Style::Json => write_json(model, settings.callsites_max, out)?,
        Style::Csv => write_csv(model, settings.csv_raw, is_first, out)?,
    }
    out.flush()
}

fn sorted_targets(model: &Model) -> Vec<TargetRow> {
    let mut rows = model.target_rows();
    let order = Order::by(TargetColumn::Live);
    rows.sort_by(|one, other| order.compare(one, other).then_with(|| one.key.cmp(&other.key)));
    rows
}

fn sorted_callsites(model: &Model, target: &TargetProfile, max: usize) -> Vec<CallsiteRow> {
    let mut rows = model.callsite_rows(target, |_| true);
    let order = Order::by(CallsiteColumn::Live);
    rows.retain(|row| row.live > 0.0 || row.allocated_per_s > 0.0);
    rows.sort_by(|one, other| order.compare(one, other).then_with(|| one.index.cmp(&other.index)));
    rows.truncate(max);
    rows
}

fn columns<C: Column>(last: &'static str) -> Vec<PageColumn> {
    let columns = C::ALL.iter().map(|column| PageColumn::Right(column.heading()));
    columns.chain([PageColumn::Left(last)]).collect()
}

fn cells<C: Column>(row: &C::Row, last: String) -> Vec<String> {
    C::ALL.iter().map(|column| column.text(row)).chain([last]).collect()
}

fn write_text(model: &Model, callsites_max: usize, is_first: bool, out: &mut dyn Write) -> io::Result<()> {
    if !is_first {
        writeln!(out)?;
    }
    let targets = sorted_targets(model);
    writeln!(out, "after {}", text::duration(model.elapsed_ns()))?;
    if targets.is_empty() {
        return writeln!(out, "no process yet");
    }
    let name = |row: &TargetRow| {
        let facts = &model.profile.targets[row.at].facts;
        let end = if row.is_running { "" } else { " (exited)" };
        format!("{}{end}  {}", text::printable(&facts.comm), text::command(&facts.command))
    };
    let rows = targets.iter().map(|row| cells::<TargetColumn>(row, name(row))).collect();
    for line in table_lines(&columns::<TargetColumn>("PROCESS"), rows, None) {
        writeln!(out, "{line}")?;
    }
    for row in &targets {
        let target = &model.profile.targets[row.at];
        let callsites = sorted_callsites(model, target, callsites_max);
        if callsites.is_empty() {
            continue;
        }
        writeln!(out, "\nprocess {}, {}", row.key.pid, text::printable(&target.facts.comm))?;
        let chain = |row: &CallsiteRow| {
            let callsite = &target.callsites[row.at];
            function::chain(&model.profile, &callsite.stack, callsite.end, callsite.inherited)
        };
        let rows = callsites.iter().map(|row| cells::<CallsiteColumn>(row, chain(row))).collect();
        for line in table_lines(&columns::<CallsiteColumn>("CALLSITE"), rows, None) {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

/// A refresh. Amounts are estimates in bytes.
#[derive(Serialize)]
struct Record<'a> {
    /// End of the period, in nanoseconds since the Unix epoch.
    unix_ns: u64,
    elapsed_ns: u64,
    events: u64,
    dropped: u64,
    targets: Vec<TargetRecord<'a>>,
}

#[derive(Serialize)]
struct TargetRecord<'a> {
    pid: u32,
    comm: &'a str,
    command: &'a str,
    cgroup: Option<&'a str>,
    running: bool,
    live_bytes: u64,
    growth_bytes: i64,
    growth_bytes_per_second: f64,
    alloc_bytes_per_second: f64,
    rss_bytes: Option<u64>,
    memory: &'a [MemoryPart],
    callsites: Vec<CallsiteRecord<'a>>,
}

#[derive(Serialize)]
struct CallsiteRecord<'a> {
    /// Number of the callsite, which stays the same from one record to the next.
    callsite: u32,
    heap: Option<&'a str>,
    live_bytes: u64,
    growth_bytes: i64,
    alloc_bytes_per_second: f64,
    age_ns: Option<u64>,
    temporary_share: Option<f64>,
    /// Frames of the stack, the allocating function first.
    stack: Vec<FrameRecord<'a>>,
}

#[derive(Serialize)]
struct FrameRecord<'a> {
    function: Option<&'a str>,
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
}

fn write_json(model: &Model, callsites_max: usize, out: &mut dyn Write) -> io::Result<()> {
    let targets = sorted_targets(model);
    let record = Record {
        unix_ns: model.profile.ended_unix_ns,
        elapsed_ns: model.elapsed_ns(),
        events: model.profile.health.events,
        dropped: model.profile.health.lost_total(),
        targets: targets.iter().map(|row| target_record(model, row, callsites_max)).collect(),
    };
    plain_json::write_line(&record, out)
}

fn target_record<'a>(model: &'a Model, row: &'a TargetRow, callsites_max: usize) -> TargetRecord<'a> {
    let target = &model.profile.targets[row.at];
    let callsites = sorted_callsites(model, target, callsites_max);
    TargetRecord {
        pid: row.key.pid.0,
        comm: &target.facts.comm,
        command: &target.facts.command,
        cgroup: target.facts.cgroup.as_deref(),
        running: row.is_running,
        live_bytes: bytes(row.live),
        growth_bytes: signed(row.growth),
        growth_bytes_per_second: row.growth_per_s.round(),
        alloc_bytes_per_second: row.allocated_per_s.round(),
        rss_bytes: row.rss_bytes,
        memory: &row.memory,
        callsites: callsites.iter().map(|row| callsite_record(&model.profile, target, row)).collect(),
    }
}

fn callsite_record<'a>(profile: &'a Profile, target: &'a TargetProfile, row: &CallsiteRow) -> CallsiteRecord<'a> {
    let callsite = &target.callsites[row.at];
    let frame = |frame: &'a Frame| FrameRecord {
        function: frame.function.as_deref(),
        module: frame.module.as_deref(),
        file: frame.file.as_deref(),
        line: frame.line,
    };
    CallsiteRecord {
        callsite: row.index,
        heap: target.heaps.get(callsite.heap).map(|heap| heap.name.as_str()),
        live_bytes: bytes(row.live),
        growth_bytes: signed(row.growth),
        alloc_bytes_per_second: row.allocated_per_s.round(),
        age_ns: row.age_ns,
        temporary_share: row.temporary,
        stack: callsite.stack.iter().map(|&id| frame(profile.frame(id))).collect(),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn bytes(estimate: f64) -> u64 {
    estimate.max(0.0).round() as u64
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates")]
fn signed(estimate: f64) -> i64 {
    estimate.round() as i64
}

fn write_csv(model: &Model, raw: bool, is_first: bool, out: &mut dyn Write) -> io::Result<()> {
    const COLUMNS: [&str; 9] = [
        "unix_ns",
        "elapsed_ns",
        "pid",
        "comm",
        "live_bytes",
        "growth_bytes",
        "growth_bytes_per_second",
        "alloc_bytes_per_second",
        "rss_bytes",
    ];
    if is_first {
        csv::row(COLUMNS.map(Cell::own), raw, out)?;
    }
    for row in sorted_targets(model) {
        let cells = [
            Cell::number(model.profile.ended_unix_ns),
            Cell::number(model.elapsed_ns()),
            Cell::number(row.key.pid),
            Cell::name(&model.profile.targets[row.at].facts.comm),
            Cell::number(bytes(row.live)),
            Cell::number(signed(row.growth)),
            Cell::number(signed(row.growth_per_s)),
            Cell::number(signed(row.allocated_per_s)),
            row.rss_bytes.map_or(Cell::own(""), Cell::number),
        ];
        csv::row(cells, raw, out)?;
    }
    Ok(())
}
