//! Passes over the kernel's live set, from which the books are put right: begins them, and enters what they have read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use profiler_common::counter::Counter;
use tracing::{debug, info, warn};

use super::super::Session;
use super::super::resync::{Beginning, Pass, Reading, Sieve, Touched};
use super::super::target::Target;
use crate::address::TargetAddr;
use crate::bpf::counters::Counters;
use crate::ids::Pid;
use crate::ledger::Reconciled;
use crate::linux::clock;
use crate::model::Origin;
use crate::units::MonotonicNanos;

/// Where the live set has no more blocks than this, what an ended process leaves in it is looked for at once.
const SWEPT_AT_ONCE: u64 = 1 << 16;

impl Session {
    pub(super) fn begin_pass(&mut self) {
        let now = clock::now().monotonic;
        self.back_pressure.schedule.begin(now);
        let targets = self.targets.running().map(|target| (target.pid, beginning(target))).collect();
        let sieve = Sieve { since: now, targets, thinnings: self.back_pressure.thinnings.clone() };
        match Pass::begin(Arc::clone(&self.back_pressure.reader), sieve) {
            Ok(pass) => self.back_pressure.pass = Some(pass),
            Err(error) => {
                warn!("cannot read the kernel's live set: {error}");
                self.back_pressure.schedule.fail(PASS_AGAIN);
            }
        }
    }

    /// Puts the books right by what a pass has read. All events that were there when it had read the last must have been taken.
    pub(super) fn finish_pass(&mut self) {
        let Some(pass) = self.back_pressure.pass.take() else { return };
        let (began, targets) = (pass.began, pass.targets.clone());
        let (reading, touched) = pass.finish();
        let reading = match reading {
            Ok(reading) => reading,
            Err(error) => {
                warn!("cannot read the kernel's live set: {error}");
                return self.back_pressure.schedule.fail(PASS_AGAIN);
            }
        };
        let mut all = Reconciled::default();
        let mut missing = Vec::new();
        for target in self.targets.running_mut() {
            // Another process, or program, than when it was read has books of its own.
            if targets.get(&target.pid) != Some(&beginning(target)) || self.lifecycle.awaits(target.pid) {
                continue;
            }
            let pid = target.pid;
            let is_touched = |address| touched.contains(&(pid, address)) || reading.is_recent(pid, address);
            all += put_right(target, &reading, is_touched, !self.back_pressure.thinnings.is_empty());
            missing.extend(target.ledger.stacks_missing());
        }
        self.remove_strays(&reading, &targets, &touched);
        if let Err(error) = self.probes.kernel.forget_stacks(&missing) {
            debug!("{error}");
        }
        self.back_pressure.schedule.end(began.elapsed());
        self.back_pressure.resyncs += 1;
        let after = Duration::from_nanos(clock::now().monotonic.0.saturating_sub(self.started.monotonic.0));
        info!(
            "after {after:.1?}: the books were put right in {} ms: {} blocks found, {} gone, {} others; {} stacks unknown",
            began.elapsed().as_millis(),
            all.inserted,
            all.removed,
            all.replaced,
            missing.len()
        );
    }

    /// Takes blocks of processes out of the live set that are gone.
    fn remove_strays(&mut self, reading: &Reading, known: &BTreeMap<Pid, Beginning>, touched: &Touched) {
        let mut strays = BTreeMap::<Pid, Vec<_>>::new();
        // A program may have made a block by now where one of the program before was.
        for &(pid, address) in reading.strays.iter().filter(|&stray| !touched.contains(stray)) {
            strays.entry(pid).or_default().push(address);
        }
        for (pid, addresses) in strays {
            // Who has become a target since, or may, has blocks of its own by now.
            let is_another =
                !known.contains_key(&pid) && (self.targets.get(pid).is_some() || self.lifecycle.awaits(pid));
            if is_another {
                continue;
            }
            if let Err(error) = self.probes.kernel.forget_blocks(pid, addresses) {
                debug!("process {pid}: {error}");
            }
        }
        self.back_pressure.unswept.retain(|pid| known.contains_key(pid));
    }

    /// The recording is over: no call is drawn any more. The books are put right a last time, if that is due.
    pub(in crate::session) fn resync_at_end(&mut self) {
        if self.back_pressure.pass.is_some() {
            self.complete_pass();
        }
        let Ok(lost) = Counters::read_one(&self.probes.kernel, Counter::RingFull) else { return };
        self.back_pressure.schedule.lose(lost + self.records_unreadable, clock::now().monotonic);
        // One is enough: nothing is made any more, and no free is entered.
        if self.back_pressure.schedule.is_uncovered() {
            self.begin_pass();
            self.complete_pass();
        }
    }

    /// The books of a target are about to be closed: a pass that is being made, and may have thinned the live set already, is of no
    /// use to them afterwards.
    pub(in crate::session) fn complete_pass_for(&mut self, pid: Pid) {
        if self.back_pressure.pass.as_ref().is_some_and(|pass| pass.targets.contains_key(&pid)) {
            self.complete_pass();
        }
    }

    /// A target has ended, whose books are wrong after losses. Puts them right where that takes long; the ring is read meanwhile. Of
    /// one of many that is done only if a pass is due: they may end one after the other.
    pub(in crate::session) fn catch_up(&mut self) {
        let now = clock::now().monotonic;
        let lost = Counters::read_one(&self.probes.kernel, Counter::RingFull).unwrap_or(0);
        self.back_pressure.schedule.lose(lost + self.records_unreadable, now);
        let schedule = &self.back_pressure.schedule;
        let is_meant = schedule.is_uncovered() && (self.targets.count() == 1 || schedule.is_due(now));
        if is_meant && self.back_pressure.reader.count() > SWEPT_AT_ONCE {
            self.complete_pass();
            self.begin_pass();
            self.complete_pass();
        }
    }

    /// Waits for a pass, and reads the ring meanwhile.
    fn complete_pass(&mut self) {
        while self.back_pressure.pass.as_ref().is_some_and(|pass| !pass.is_read()) {
            if self.take_records() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        while !self.take_records() {}
        self.finish_pass();
    }

    /// A target has ended: what the kernel's live set has of it is what was live. Takes that out.
    pub(in crate::session) fn settle_losses_of(&mut self, target: &mut Target) {
        let lost = Counters::read_one(&self.probes.kernel, Counter::RingFull).unwrap_or(0);
        self.back_pressure.schedule.lose(lost + self.records_unreadable, clock::now().monotonic);
        if !self.back_pressure.schedule.has_losses() {
            return;
        }
        // Where reading takes long, the next pass sees to it.
        if self.back_pressure.reader.count() > SWEPT_AT_ONCE {
            self.back_pressure.unswept.push(target.pid);
            return self.back_pressure.schedule.ask();
        }
        let start = beginning(target);
        let targets = [(target.pid, start)].into();
        let sieve = Sieve { since: MonotonicNanos(u64::MAX), targets, thinnings: self.back_pressure.thinnings.clone() };
        let mut reading = Reading::default();
        let read = self
            .back_pressure
            .reader
            .sift(|pid, address, block| pid != target.pid || reading.take(&sieve, pid, address, block));
        match read {
            Ok(_) if self.back_pressure.schedule.is_uncovered() => {
                put_right(target, &reading, |_| false, !self.back_pressure.thinnings.is_empty());
            }
            Ok(_) => {}
            Err(error) => return debug!("process {}: {error}", target.pid),
        }
        let left = reading.live(target.pid).map(|block| block.address);
        let strays = reading.strays.iter().map(|&(_, address)| address);
        if let Err(error) = self.probes.kernel.forget_blocks(target.pid, left.chain(strays)) {
            debug!("process {}: {error}", target.pid);
        }
    }

    /// A process becomes a target that has the number of one whose blocks are still in the live set.
    pub(in crate::session) fn sweep_before(&mut self, pid: Pid) {
        if let Some(at) = self.back_pressure.unswept.iter().position(|&unswept| unswept == pid) {
            self.back_pressure.unswept.swap_remove(at);
            if let Err(error) = self.probes.kernel.sweep(pid) {
                debug!("process {pid}: {error}");
            }
        }
    }
}

/// Between two tries to read the live set, a tenth of it.
const PASS_AGAIN: Duration = Duration::from_secs(1);

/// Puts a target's books right by what was read, thinned as that is.
fn put_right(
    target: &mut Target,
    reading: &Reading,
    is_touched: impl Fn(TargetAddr) -> bool + Copy,
    is_thinned: bool,
) -> Reconciled {
    let (pid, ledger) = (target.pid, &mut target.ledger);
    // Those too that events have told of meanwhile: their time tells them from others at their address.
    reading.thinned(pid).for_each(|block| ledger.thin(&block, None));
    if is_thinned {
        reading.live(pid).for_each(|block| ledger.thin(&block, Some(block.interval)));
    }
    ledger.reconcile(reading.live(pid), is_touched)
}

fn beginning(target: &Target) -> Beginning {
    let program = if target.beginning.origin == Origin::Executed { target.born } else { None };
    Beginning { opened: target.opened(), program: program.unwrap_or_default() }
}
