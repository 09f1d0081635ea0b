//! Path `/metrics`: the recording for Prometheus.

mod exposition;
mod series;

use std::collections::BTreeMap;

use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::Loss;
use heapbpf_linux::companion;
use heapbpf_linux::proc::stat::Stat;
use heapbpf_report::text::printable;
use profiler_common::counter::Counter;
use profiler_common::stack::StackEnd;

use crate::live::symbolizer_crashes;
use crate::push::PushStatus;
use crate::snapshot::{Snapshot, TargetState};
pub(super) use exposition::CONTENT_TYPE;
use exposition::{Exposition, Kind};
use series::{Row, Series};

/// Label of the sum of all targets without series of their own.
const OTHERS: &str = "other";

#[derive(Default)]
pub(super) struct Metrics {
    series: Series,
}

impl Metrics {
    /// Returns all metrics, as text. `snapshot` is `None` before the first recording.
    pub(super) fn describe(
        &mut self,
        snapshot: Option<&Snapshot>,
        is_recording: bool,
        streams: usize,
        pushed: Option<&PushStatus>,
    ) -> String {
        let mut text = Exposition::default();
        text.metric("heapbpf_build_info", Kind::Gauge, "Version of heapbpf; always 1.")
            .value(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
        text.metric("heapbpf_recording", Kind::Gauge, "1 while a recording is running, 0 otherwise.")
            .value(&[], f64::from(u8::from(is_recording)));
        text.metric("heapbpf_event_streams", Kind::Gauge, "Pages that are connected to /api/events.")
            .value(&[], number(streams as u64));
        add_processes(&mut text);
        text.metric(
            "heapbpf_symbolizer_crashes_total",
            Kind::Counter,
            "Symbolizer processes that crashed, exited early or could not be started.",
        )
        .value(&[], number(symbolizer_crashes()));
        if let Some(pushed) = pushed {
            add_pushed(&mut text, pushed);
        }
        if let Some(snapshot) = snapshot {
            self.add_targets(&mut text, snapshot);
            add_health(&mut text, snapshot);
        }
        text.finish()
    }

    fn add_targets(&mut self, text: &mut Exposition, snapshot: &Snapshot) {
        let (rows, others) = self.series.update(snapshot);
        let labels: Vec<[String; 3]> = rows.iter().map(|(target, _)| labels(target)).collect();
        let mut add = |name, kind, help, value: fn(&Row) -> f64| {
            let metric = text.metric(name, kind, help);
            for ([pid, comm, cgroup], (_, row)) in labels.iter().zip(&rows) {
                metric.value(&[("pid", pid), ("comm", comm), ("cgroup", cgroup)], value(row));
            }
            metric.value(&[("pid", OTHERS), ("comm", OTHERS), ("cgroup", "")], value(&others));
        };
        add("heapbpf_live_bytes", Kind::Gauge, "Bytes allocated and not freed, estimated.", |row| row.live_bytes);
        add("heapbpf_live_blocks", Kind::Gauge, "Blocks allocated and not freed, estimated.", |row| row.live_count);
        add(
            "heapbpf_allocated_bytes_total",
            Kind::Counter,
            "Bytes allocated since recording of the target started, estimated.",
            |row| row.counters.alloc_bytes,
        );
        add(
            "heapbpf_allocated_blocks_total",
            Kind::Counter,
            "Blocks allocated since recording of the target started, estimated.",
            |row| row.counters.alloc_count,
        );
        add("heapbpf_freed_bytes_total", Kind::Counter, "Bytes freed, estimated.", |row| row.counters.free_bytes);
        add("heapbpf_freed_blocks_total", Kind::Counter, "Blocks freed, estimated.", |row| row.counters.free_count);
        let overheads = text.metric(
            "heapbpf_probe_overhead_ratio",
            Kind::Gauge,
            "Share of the target's CPU time that probes take, from 0 to 1, where it was measured.",
        );
        for ([pid, comm, cgroup], (target, _)) in labels.iter().zip(&rows) {
            if let Some(overhead) = target.facts.overhead {
                overheads.value(&[("pid", pid), ("comm", comm), ("cgroup", cgroup)], overhead.percent / 100.0);
            }
        }
        let targets = snapshot.targets.iter().filter(|target| target.facts.is_running()).count();
        text.metric("heapbpf_targets", Kind::Gauge, "Processes that are being recorded.")
            .value(&[], number(targets as u64));
    }
}

fn labels(target: &TargetState) -> [String; 3] {
    let facts = &target.facts;
    // Metrics are also read on terminals.
    let [comm, cgroup] = [&facts.comm, facts.cgroup.as_deref().unwrap_or_default()].map(|name| printable(name).into());
    [facts.pid.to_string(), comm, cgroup]
}

fn add_health(text: &mut Exposition, snapshot: &Snapshot) {
    let health = &snapshot.health;
    text.metric("heapbpf_recording_start_time_seconds", Kind::Gauge, "Start of the recording, in Unix time.")
        .value(&[], number(snapshot.started_unix_ns) / 1e9);
    text.metric("heapbpf_sampling_interval_bytes", Kind::Gauge, "Requested mean of bytes between samples.")
        .value(&[], number(snapshot.interval_bytes));
    text.metric("heapbpf_events_total", Kind::Counter, "Records received from the kernel.")
        .value(&[], number(health.events));
    text.metric("heapbpf_resyncs_total", Kind::Counter, "Corrections of the ledger from the kernel's live set.")
        .value(&[], number(health.resyncs));
    let drops = text.metric("heapbpf_drops_total", Kind::Counter, "Events or blocks that were dropped, by reason.");
    let mut by_reason: BTreeMap<&str, u64> = losses().map(|name| (name, 0)).collect();
    for (reason, count) in &health.lost {
        *by_reason.entry(reason.name()).or_default() += count;
    }
    for (reason, count) in by_reason {
        drops.value(&[("reason", reason)], number(count));
    }
    let stacks =
        text.metric("heapbpf_stacks_total", Kind::Counter, "Unwound stacks, by how they end; `complete` is the goal.");
    for end in StackEnd::ALL {
        let name = end.counter().name();
        let count = health.unwind.iter().filter(|(known, _)| known == name).map(|(_, count)| count).sum();
        stacks.value(&[("end", name)], number(count));
    }
}

fn add_pushed(text: &mut Exposition, pushed: &PushStatus) {
    text.metric("heapbpf_push_windows_total", Kind::Counter, "Windows of --push that ended.")
        .value(&[], number(pushed.windows));
    text.metric("heapbpf_push_profiles_total", Kind::Counter, "Profiles that the server has accepted.")
        .value(&[], number(pushed.pushed));
    text.metric("heapbpf_push_sent_bytes_total", Kind::Counter, "Bytes of requests that the server has accepted.")
        .value(&[], number(pushed.pushed_bytes));
    text.metric("heapbpf_push_retries_total", Kind::Counter, "Requests that failed and were repeated.")
        .value(&[], number(pushed.retries));
    text.metric("heapbpf_push_queued_profiles", Kind::Gauge, "Profiles that wait to be sent.")
        .value(&[], number(pushed.queued));
    text.metric("heapbpf_push_queued_bytes", Kind::Gauge, "Bytes of requests that wait to be sent.")
        .value(&[], number(pushed.queued_bytes));
    let drops = text.metric("heapbpf_push_drops_total", Kind::Counter, "Profiles that were dropped, by reason.");
    for (reason, count) in pushed.drops.each() {
        drops.value(&[("reason", reason.name())], number(count));
    }
}

/// Names of losses, whose counters are always written: a counter that appears when it is no longer 0 hides its first increase.
fn losses() -> impl Iterator<Item = &'static str> {
    let own = [Loss::UnreadableRecord, Loss::UnknownFree, Loss::StackLost, Loss::ProbeMissed];
    let of_kernel = Counter::ALL.iter().filter(|counter| counter.is_loss()).map(|counter| counter.name());
    of_kernel.chain(own.map(|loss| <&str>::from(&loss)))
}

/// CPU time and memory of the agent, the keeper and the symbolizer.
fn add_processes(text: &mut Exposition) {
    let ticks_per_second = number(rustix::param::clock_ticks_per_second());
    let mut by_name: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for pid in companion::all().into_iter().chain([Pid(std::process::id())]) {
        if let Ok(stat) = Stat::read(pid) {
            let (seconds, bytes) = by_name.entry(stat.comm).or_default();
            *seconds += number(stat.cpu_ticks) / ticks_per_second;
            *bytes += number(stat.resident_bytes);
        }
    }
    let seconds = text.metric("heapbpf_cpu_seconds_total", Kind::Counter, "CPU time of heapbpf's processes.");
    for (name, (value, _)) in &by_name {
        seconds.value(&[("process", name)], *value);
    }
    let bytes = text.metric("heapbpf_resident_memory_bytes", Kind::Gauge, "Resident memory of heapbpf's processes.");
    for (name, (_, value)) in &by_name {
        bytes.value(&[("process", name)], *value);
    }
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has floats")]
fn number(number: u64) -> f64 {
    number as f64
}
