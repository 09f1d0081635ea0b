//! Keeps a recording within what it may cost: looks at memory, CPU time and probes each half second, and samples less, lets
//! a target go or ends the recording. When something is too much, `guardrail` says.

use anyhow::{Context, Result};
use bytesize::ByteSize;
use thiserror::Error;
use tokio::time::Duration;
use tracing::warn;

use super::Session;
use super::probes::Probes;
use super::target::{End, Target};
use crate::bpf::footprint::KernelMaps;
use crate::guardrail::Limits;
use crate::guardrail::cpu::{CpuWatch, doublings};
use crate::guardrail::overhead::OverheadWatch;
use crate::ids::Pid;
use crate::linux::{clock, memory};
use crate::model::guardrails::{Action, Excess, Guardrails, Overhead, ProbeCosts, Reached};
use crate::probe::cost::Costs;

/// How often is looked.
pub(super) const GUARD_PERIOD: Duration = Duration::from_millis(500);

/// What a limit leaves no room for, before anything is attached.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`--max-memory {limit}` is less than heapbpf takes from the start: {} of its own and {} of kernel maps, most of it {largest} ({}); make that smaller with `{option}`, or raise the limit",
    ByteSize(*own_bytes), ByteSize(*maps_bytes), ByteSize(*largest_bytes)
)]
pub(crate) struct TooSmall {
    limit: ByteSize,
    own_bytes: u64,
    maps_bytes: u64,
    largest: &'static str,
    largest_bytes: u64,
    option: &'static str,
}

/// Fails when the kernel's maps and what the agent has already are more than is allowed.
pub(super) fn check_memory(limits: &Limits, maps: &KernelMaps) -> Result<(), TooSmall> {
    let Some(limit) = limits.memory_bytes_max else { return Ok(()) };
    fits(limit, memory::resident_bytes(), maps)
}

fn fits(limit_bytes: u64, own_bytes: u64, maps: &KernelMaps) -> Result<(), TooSmall> {
    let maps_bytes = maps.empty_bytes();
    if own_bytes + maps_bytes <= limit_bytes {
        return Ok(());
    }
    let [largest, ..] = maps.adjustable();
    Err(TooSmall {
        limit: ByteSize(limit_bytes),
        own_bytes,
        maps_bytes,
        largest: largest.name,
        largest_bytes: largest.bytes,
        option: largest.option,
    })
}

/// The limits of a session, and what became of them.
#[derive(Debug)]
pub(super) struct Guard {
    limits: Limits,
    cpu: Option<CpuWatch>,
    costs: Option<Costs>,
    memory_bytes_highest: Option<u64>,
    reached: Vec<Reached>,
}

impl Guard {
    /// With these limits. Where probes have one, their cost is measured now, which takes a third of a second.
    pub(super) fn new(limits: Limits, probes: &mut Probes) -> Result<Self> {
        let costs = match limits.overhead_percent_max {
            Some(_) => {
                let costs = probes.calibrate();
                Some(costs.context("cannot measure what a probe costs, which `--max-overhead` takes")?)
            }
            None => None,
        };
        let cpu = limits.cpu_percent_max.map(CpuWatch::new);
        Ok(Self { limits, cpu, costs, memory_bytes_highest: None, reached: Vec::new() })
    }

    /// Whether there is anything to look at.
    pub(super) fn is_needed(&self) -> bool {
        self.limits.any()
    }

    /// The recording ends because the keeper process has exited.
    pub(super) fn note_keeper_exit(&mut self) {
        warn!("recording ends: the keeper process, which owns the probes, exited");
        self.note(Excess::Keeper, Action::Stopped);
    }

    fn note(&mut self, what: Excess, action: Action) {
        self.reached.push(Reached { unix_ns: clock::now().unix_ns, what, action });
    }

    /// What reports say.
    pub(super) fn report(&self) -> Guardrails {
        let costs = |costs: &Costs| ProbeCosts {
            emulated_ns: costs.emulated_ns,
            single_stepped_ns: costs.single_stepped_ns,
            emulated_with_return_ns: costs.emulated_with_return_ns,
            single_stepped_with_return_ns: costs.single_stepped_with_return_ns,
        };
        Guardrails {
            memory_bytes_max: self.limits.memory_bytes_max,
            memory_bytes_highest: self.memory_bytes_highest,
            cpu_percent_max: self.limits.cpu_percent_max,
            cpu_percent_highest: self.cpu.as_ref().map(CpuWatch::percent_highest),
            overhead_percent_max: self.limits.overhead_percent_max,
            costs: self.costs.as_ref().map(costs),
            reached: self.reached.clone(),
        }
    }
}

/// What reports say of a target's probes.
pub(super) fn overhead(watch: &OverheadWatch) -> Option<Overhead> {
    let whole = watch.whole()?;
    Some(Overhead {
        percent: whole.percent(),
        percent_highest: watch.highest().map(|share| share.percent()),
        probe_ns: whole.probe_ns,
        cpu_ns: whole.cpu_ns,
    })
}

impl Session {
    /// Looks at all limits, and does what it takes to keep them. False when the recording is to end for that.
    pub(super) fn keep_limits(&mut self) -> Result<bool> {
        self.keep_overhead();
        Ok(self.keep_memory() && self.keep_cpu()?)
    }

    fn keep_memory(&mut self) -> bool {
        let Some(limit) = self.guard.limits.memory_bytes_max else { return true };
        let live_blocks = self.targets.live_blocks() as u64;
        let bytes = memory::resident_bytes() + self.probes.maps.bytes(live_blocks);
        self.guard.memory_bytes_highest = self.guard.memory_bytes_highest.max(Some(bytes));
        if bytes <= limit {
            return true;
        }
        let (taken, limit) = (ByteSize(bytes), ByteSize(limit));
        warn!("recording ends: heapbpf and its kernel maps take {taken}, more than `--max-memory {limit}`");
        self.guard.note(Excess::Memory(bytes), Action::Stopped);
        false
    }

    fn keep_cpu(&mut self) -> Result<bool> {
        let Some(cpu) = &mut self.guard.cpu else { return Ok(true) };
        let Some(percent) = cpu.look(clock::now().monotonic, clock::cpu_ns()) else { return Ok(true) };
        let limit = self.guard.limits.cpu_percent_max.unwrap_or_default();
        let too_much = format!("heapbpf takes {percent:.1} % of a core, more than `--max-cpu {limit}%`");
        if self.probes.double_intervals(doublings(percent, limit))? {
            warn!("all intervals grow: {too_much}");
            self.guard.note(Excess::Cpu(percent), Action::IntervalsRaised);
            return Ok(true);
        }
        warn!("recording ends: {too_much}, and intervals cannot grow any more");
        self.guard.note(Excess::Cpu(percent), Action::Stopped);
        Ok(false)
    }

    fn keep_overhead(&mut self) {
        let (Some(limit), Some(costs)) = (self.guard.limits.overhead_percent_max, self.guard.costs) else { return };
        let mut excesses = Vec::new();
        for target in self.targets.running_mut() {
            let calls = target.hooks.call_costs(&self.probes.discovery.plan, &costs);
            let (Some(calls), Some(cpu_ns)) = (calls, clock::process_cpu_ns(target.pid)) else { continue };
            let now = clock::now().monotonic;
            let share = target.overhead.look(now, target.ledger.totals(), cpu_ns, calls);
            // Who is to be let go must be over the limit for certain: there is no way back.
            excesses.extend(share.filter(|share| share.percent_at_least() > limit).map(|share| (target.pid, share)));
        }
        for (pid, share) in excesses {
            let percent = share.percent();
            if self.let_go(pid) {
                warn!(
                    "process {pid} is let go: probes take ≈ {percent:.1} % of its CPU time, more than `--max-overhead {limit}%`"
                );
                self.guard.note(Excess::Overhead(pid, percent), Action::Detached);
            }
        }
    }

    /// Takes a target's probes away and closes its books as they are: what it does from now on, also to blocks that it made
    /// before, is not seen. False when it has ended or is another program by now.
    fn let_go(&mut self, pid: Pid) -> bool {
        // Calls are drawn of targets alone; what was drawn by now is in the ring.
        self.probes.forget(pid);
        let now = clock::now().monotonic;
        while !self.drain() {}
        // A program that it became meanwhile has cost nothing yet.
        let has_cost = |target: &Target| !target.is_gone() && target.overhead.whole().is_some();
        if !self.targets.get(pid).is_some_and(has_cost) {
            return false;
        }
        self.complete_pass_for(pid);
        let Some(mut target) = self.targets.remove(pid) else { return false };
        self.settle_losses_of(&mut target);
        self.lifecycle.settled(pid);
        if let Some(identity) = target.identity() {
            self.pending_targets.decline(identity);
        }
        target.end = Some(End::Detached(now));
        target.close(&mut self.probes.kernel);
        self.probes.release(&mut target);
        self.targets.keep(target, &self.probes.discovery.plan);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_leaves_no_room_names_what_to_make_smaller() {
        let maps = KernelMaps { ring_bytes: 16 << 20, live_blocks_max: 1 << 24, row_cells: 1 << 20, cpus: 2 };
        let whole = maps.empty_bytes();
        assert_eq!(fits(whole + 7, 7, &maps), Ok(()));
        let text = fits(whole + 7, 8, &maps).expect_err("a byte too much").to_string();
        assert!(text.contains("the live set (256.0 MiB); make that smaller with `--live-blocks`"), "{text}");
    }
}
