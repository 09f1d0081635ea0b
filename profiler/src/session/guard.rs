//! Enforces the cost limits of `guardrail` every half second: reads memory and CPU time, and raises intervals.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytesize::ByteSize;
use heapbpf_base::ids::Pid;
use heapbpf_ledger::model::{Action, Excess, Guardrails, Reached};
use heapbpf_linux::memory::GroupMemory;
use heapbpf_linux::{clock, memory};
use thiserror::Error;
use tracing::{debug, warn};

use super::probes::Probes;
use super::process_table::ProcessTable;
use super::rates::Rates;
use crate::bpf::footprint::{Adjustable, KernelMaps};
use crate::bpf::load::Kernel;
use crate::guardrail::{CpuMonitor, Limits, Shares, doublings};
use crate::probe::cost::Costs;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub(crate) struct TooSmall(String);

#[derive(Debug)]
pub(super) struct Guard {
    limits: Limits,
    maps: KernelMaps,
    cpu: CpuMonitor,
    costs: Option<Costs>,
    /// Share of the CPU time of all targets that probes took lately.
    pub(super) overhead_percent: Option<f64>,
    memory_bytes_highest: Option<u64>,
    overhead_checked: Instant,
    reached: Vec<Reached>,
    /// Whether heapbpf's control group has a limit that was not near at the start.
    pub(super) watches_group: bool,
}

pub(super) const GROUP_PERIOD: Duration = Duration::from_millis(100);

/// Memory that must be left in heapbpf's control group to end the recording and write the report, while the group's
/// processes go on.
fn reserve_bytes(group: GroupMemory) -> u64 {
    (group.limit_bytes / 8).clamp(8 << 20, 32 << 20)
}

pub(super) const GUARD_PERIOD: Duration = Duration::from_millis(500);

impl Guard {
    pub(super) fn new(limits: Limits, maps: KernelMaps, own_bytes: u64) -> Result<Self, TooSmall> {
        let maps_bytes = maps.empty_bytes();
        if let Some(limit) = limits.memory_bytes_max.filter(|limit| own_bytes + maps_bytes > *limit) {
            let [Adjustable { name, option, bytes }, ..] = maps.adjustable();
            let [limit, own, maps, largest] = [limit, own_bytes, maps_bytes, bytes].map(ByteSize);
            return Err(TooSmall(format!(
                "`--max-memory {limit}` is less than heapbpf needs at the start: {own} of its own and {maps} of kernel maps, most of it {name} ({largest}); reduce that with `{option}`, or raise the limit"
            )));
        }
        let cpu = CpuMonitor::default();
        Ok(Self {
            limits,
            maps,
            cpu,
            costs: None,
            overhead_percent: None,
            memory_bytes_highest: None,
            overhead_checked: Instant::now(),
            reached: Vec::new(),
            watches_group: memory::own_group().is_some_and(|group| group.left_bytes_max > 2 * reserve_bytes(group)),
        })
    }

    /// Measures the cost of probes, which takes a third of a second, with an overhead limit and if `shows_overhead`. Must
    /// precede attaching.
    pub(super) fn calibrate(&mut self, probes: &mut Probes, shows_overhead: bool) -> Result<()> {
        if self.limits.overhead_percent_max.is_some() {
            let costs = probes.calibrate();
            self.costs = Some(costs.context("cannot measure the cost of a probe, which `--max-overhead` requires")?);
        } else if shows_overhead {
            self.costs =
                probes.calibrate().inspect_err(|error| debug!("cannot measure the cost of a probe: {error}")).ok();
        }
        Ok(())
    }

    pub(super) fn is_needed(&self) -> bool {
        self.limits.any() || self.costs.is_some()
    }

    pub(super) fn note_keeper_exit(&mut self) {
        warn!("recording ends: the keeper process, which owns the probes, exited");
        self.note(Excess::Keeper, Action::Stopped);
    }

    fn note(&mut self, what: Excess, action: Action) {
        self.reached.push(Reached { unix_ns: clock::now().unix_ns, what, action });
    }

    pub(super) fn check_memory(&mut self, live_blocks: u64) -> bool {
        let Some(limit) = self.limits.memory_bytes_max else { return true };
        let bytes = memory::resident_bytes() + self.maps.bytes(live_blocks);
        self.memory_bytes_highest = self.memory_bytes_highest.max(Some(bytes));
        if bytes <= limit {
            return true;
        }
        let (used, limit) = (ByteSize(bytes), ByteSize(limit));
        warn!("recording ends: heapbpf and its kernel maps use {used}, more than `--max-memory {limit}`");
        self.note(Excess::Memory(bytes), Action::Stopped);
        false
    }

    /// Returns false when the control group is about to be out of memory, which ends the recording.
    pub(super) fn check_group(&mut self) -> bool {
        let group = memory::own_group();
        let Some(group) = group.filter(|group| group.left_bytes_max <= reserve_bytes(*group)) else { return true };
        let [left, limit] = [group.left_bytes_max, group.limit_bytes].map(ByteSize);
        warn!("recording ends: heapbpf's control group has only {left} left of {limit}");
        self.note(Excess::Group(group.left_bytes_max), Action::Stopped);
        false
    }

    /// Raises intervals if the agent exceeds its CPU limit. Returns false if intervals cannot grow, which ends the
    /// recording.
    pub(super) fn check_cpu(&mut self, rates: &mut Rates, kernel: &mut Kernel) -> Result<bool> {
        let Some(limit) = self.limits.cpu_percent_max else { return Ok(true) };
        let percent = self.cpu.observe(clock::now().monotonic, clock::cpu_ns(), limit);
        let Some(percent) = percent else { return Ok(true) };
        let excess = format!("heapbpf uses {percent:.1} % of a core, more than `--max-cpu {limit}%`");
        if rates.double(doublings(percent, limit), kernel)? {
            warn!("all intervals are raised: {excess}");
            self.note(Excess::Cpu(percent), Action::IntervalsRaised);
            return Ok(true);
        }
        warn!("recording ends: {excess}, and intervals cannot be raised further");
        self.note(Excess::Cpu(percent), Action::Stopped);
        Ok(false)
    }

    /// Whether to check the overhead, even while probes are being attached: attaching to many targets takes seconds.
    pub(super) fn is_overhead_due(&self) -> bool {
        self.limits.overhead_percent_max.is_some() && self.overhead_checked.elapsed() >= GUARD_PERIOD
    }

    /// Returns the targets over the limit, with the shares of their CPU time that probes take.
    pub(super) fn check_overhead(&mut self, processes: &mut ProcessTable, probes: &Probes) -> Vec<(Pid, f64)> {
        let Some(costs) = self.costs else { return Vec::new() };
        self.overhead_checked = Instant::now();
        let limit = self.limits.overhead_percent_max.unwrap_or(f64::INFINITY);
        let mut excesses = Vec::new();
        let mut whole = Shares::default();
        let count = processes.count();
        for target in processes.running_mut() {
            let calls = probes.call_costs(target, &costs, count);
            let (Some(calls), Some(cpu_ns)) = (calls, clock::process_cpu_ns(target.pid)) else { continue };
            let now = clock::now().monotonic;
            let share = target.overhead.observe(now, target.ledger.totals(), cpu_ns, calls, limit);
            share.iter().for_each(|share| whole.add(share));
            // Detaching is irreversible, so require the lower confidence bound.
            let excess = share.filter(|share| share.percent_at_least() > limit);
            excesses.extend(excess.map(|share| (target.pid, share.percent())));
        }
        self.overhead_percent = whole.percent();
        excesses
    }

    pub(super) fn note_detached(&mut self, pid: Pid, percent: f64) {
        let limit = self.limits.overhead_percent_max.unwrap_or_default();
        warn!(
            "detached from process {pid}: probes take ≈ {percent:.1} % of its CPU time, more than `--max-overhead {limit}%`"
        );
        self.note(Excess::Overhead(pid, percent), Action::Detached);
    }

    pub(super) fn report(&self) -> Guardrails {
        Guardrails {
            memory_bytes_max: self.limits.memory_bytes_max,
            memory_bytes_highest: self.memory_bytes_highest,
            cpu_percent_max: self.limits.cpu_percent_max,
            cpu_percent_highest: self.limits.cpu_percent_max.map(|_| self.cpu.percent_highest),
            overhead_percent_max: self.limits.overhead_percent_max,
            probe_costs: self.costs.filter(|_| self.limits.overhead_percent_max.is_some()),
            reached: self.reached.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_limit_that_is_too_small_names_the_largest_map() {
        let maps = KernelMaps {
            ring_bytes: 16 << 20,
            live_blocks_max: 1 << 24,
            row_cells: 1 << 20,
            cpus: 2,
            is_preallocated: false,
        };
        let whole = maps.empty_bytes();
        let limits = Limits { memory_bytes_max: Some(whole + 7), ..Limits::default() };
        assert!(Guard::new(limits, maps, 7).is_ok());
        let text = Guard::new(limits, maps, 8).expect_err("a byte too much").to_string();
        assert!(text.contains("the live set (256.0 MiB); reduce that with `--live-blocks`"), "{text}");
    }
}
