//! Stacks that the kernel side could not unwind completely, because their process had mapped code since its mappings were
//! last read, with the copies over which the walks are continued.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, StackId};
use heapbpf_ledger::ingest::event::{Event, Stack};
use heapbpf_ledger::ingest::record::StackPage;
use profiler_common::counter::Counter;
use profiler_common::stack::StackEnd;
use rustc_hash::FxHashMap;
use tracing::debug;

use super::resume::{Resumed, StackCopy};
use crate::bpf::counters::Counters;

/// Maximum memory of all copies; further ones are dropped, and their stacks stay cut.
const BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct StackCopies {
    /// Copies whose frames have not arrived.
    incomplete: FxHashMap<StackId, (Pid, StackCopy)>,
    cut: BTreeMap<Pid, Vec<CutStack>>,
    bytes: usize,
    /// Number of stacks that were continued, by their end.
    continued: [u64; StackEnd::ALL.len()],
}

#[derive(Clone, Debug)]
struct CutStack {
    id: StackId,
    frames: Arc<[TargetAddr]>,
    copy: StackCopy,
}

/// Result of [`StackCopies::resume`].
#[derive(Debug, Default)]
pub(super) struct Continued {
    pub(super) stacks: Vec<(StackId, Stack)>,
    /// Number of stacks that still end outside the registered mappings.
    pub(super) unmapped: usize,
}

impl StackCopies {
    /// Notes the frames of a stack, which arrive after all pages of its copy.
    pub(super) fn observe(&mut self, event: &Event) {
        if let Event::Stack(pid, id, stack) = event
            && let Some((_, copy)) = self.incomplete.remove(id)
        {
            let frames = Arc::clone(&stack.frames);
            self.cut.entry(*pid).or_default().push(CutStack { id: *id, frames, copy });
        }
    }

    pub(super) fn add(&mut self, pid: Pid, id: StackId, page: &StackPage) {
        if self.bytes + page.bytes.len() > BYTES_MAX {
            // The frames of these copies were probably dropped.
            self.forget_incomplete(|_| true);
            return;
        }
        let is_added = match self.incomplete.get_mut(&id) {
            Some((_, copy)) => copy.append(page),
            None => {
                self.incomplete.insert(id, (pid, StackCopy::new(page)));
                true
            }
        };
        if is_added {
            self.bytes += page.bytes.len();
        }
    }

    fn forget_incomplete(&mut self, is_of: impl Fn(Pid) -> bool) {
        for (_, (_, copy)) in self.incomplete.extract_if(|_, (pid, _)| is_of(*pid)) {
            self.bytes -= copy.bytes();
        }
    }

    /// PIDs of processes with cut stacks.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.cut.keys().copied().collect()
    }

    /// Whether a cut stack of a process contains an address in this range, so that it may pass through the code there.
    pub(super) fn has_address(&self, pid: Pid, range: Range<TargetAddr>) -> bool {
        self.cut.get(&pid).is_some_and(|cut| cut.iter().any(|cut| cut.copy.has_address(&range)))
    }

    pub(super) fn has(&self, pid: Pid) -> bool {
        self.cut.contains_key(&pid)
    }

    /// Continues the walks of a process. Stacks that still end outside the registered mappings are kept for another
    /// attempt unless this is the last one.
    pub(super) fn resume(
        &mut self,
        pid: Pid,
        is_last: bool,
        mut resume: impl FnMut(&[TargetAddr], &StackCopy) -> Resumed,
    ) -> Continued {
        let mut continued = Continued::default();
        let mut kept = Vec::new();
        for cut in self.cut.remove(&pid).unwrap_or_default() {
            let Resumed { stack, is_unmapped } = resume(&cut.frames, &cut.copy);
            continued.unmapped += usize::from(is_unmapped);
            if is_unmapped && !is_last {
                kept.push(cut);
                continue;
            }
            self.bytes -= cut.copy.bytes();
            self.continued[stack.end as usize] += 1;
            if stack.end == StackEnd::MissingModule {
                debug!("process {pid}: a stack stays cut at {:#x}", stack.frames.last().map_or(0, |frame| frame.0));
            }
            if stack.frames.len() > cut.frames.len() || stack.end != StackEnd::MissingModule {
                continued.stacks.push((cut.id, stack));
            }
        }
        if !kept.is_empty() {
            self.cut.insert(pid, kept);
        }
        continued
    }

    /// Drops the copies of a process or program that has ended.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.bytes -= self.cut.remove(&pid).iter().flatten().map(|cut| cut.copy.bytes()).sum::<usize>();
        self.forget_incomplete(|of| of == pid);
    }

    /// Counts the continued stacks by their final ends: the kernel side has counted the cut ones.
    pub(super) fn correct(&self, counters: &mut Counters) {
        for (end, &count) in StackEnd::ALL.iter().zip(&self.continued) {
            counters.recount(Counter::StackMissingModule, end.counter(), count);
        }
    }
}

#[cfg(test)]
mod tests;
