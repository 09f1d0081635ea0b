//! Limits of the number of callsites, which is up to the target. Beyond a limit, new callsites share one for each heap. Its stack
//! is one frame without code, which no program has, so that a recording need not contain it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::StackId;
use profiler_common::stack::StackEnd;

use crate::ingest::event::Stack;

/// Maximum number of callsites of a target, unless the user sets another.
pub const CALLSITES_MAX: u32 = 1 << 16;

/// Name of the frame of shared callsites.
pub const NAME: &str = "[other callsites]";

/// Id and address of the shared stack: not canonical, so no code is there, and chosen at random, as ids are hashes.
const ID: u64 = 0x93d4_6b1e_2fa7_58c1;

pub(super) const OTHERS: StackId = StackId(ID);

/// All targets together may have as many callsites as this number of targets may have.
const TARGETS: usize = 8;

/// Maximum number of stacks without a callsite in a ledger that may have no more callsites.
const STACKS_SPARE: usize = 4096;

pub fn stack() -> Stack {
    Stack { frames: Arc::new([TargetAddr(ID)]), end: StackEnd::Complete }
}

/// Whether this is the stack of a shared callsite.
pub fn is_stack(stack: &Stack) -> bool {
    matches!(*stack.frames, [only] if only.0 == ID)
}

/// Limit of a ledger's callsites. Its clones count what they add together.
#[derive(Debug)]
pub struct CallsiteLimit {
    max: usize,
    /// Maximum number of callsites of all ledgers together.
    all_max: usize,
    /// Number of callsites of this ledger that `all` contains.
    own: usize,
    all: Arc<AtomicUsize>,
}

impl CallsiteLimit {
    pub fn new(max: u32) -> Self {
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        Self { max, all_max: max.saturating_mul(TARGETS), own: 0, all: Arc::default() }
    }

    /// Lowers the number of callsites of all ledgers together, and so that of each.
    pub fn lower(&mut self, all_max: usize) {
        (self.max, self.all_max) = (self.max.min(all_max), self.all_max.min(all_max));
    }

    /// Maximum number of callsites of one ledger.
    pub fn max(&self) -> usize {
        self.max
    }

    pub(super) fn has_room(&self, callsites: usize) -> bool {
        callsites < self.max && self.all.load(Ordering::Relaxed) < self.all_max
    }

    /// Whether all targets together have more callsites than they may.
    pub(super) fn is_exceeded(&self) -> bool {
        self.all.load(Ordering::Relaxed) > self.all_max
    }

    pub(super) fn keeps_stack(&self, callsites: usize, stacks: usize) -> bool {
        let max = if self.has_room(callsites) { self.max.saturating_mul(2) } else { callsites };
        stacks < max.saturating_add(STACKS_SPARE)
    }

    pub(super) fn add(&mut self, callsites: usize) {
        self.own += callsites;
        self.all.fetch_add(callsites, Ordering::Relaxed);
    }
}

impl Default for CallsiteLimit {
    fn default() -> Self {
        Self::new(CALLSITES_MAX)
    }
}

/// A clone is the limit of another ledger, which has no callsites yet.
impl Clone for CallsiteLimit {
    fn clone(&self) -> Self {
        Self { max: self.max, all_max: self.all_max, own: 0, all: Arc::clone(&self.all) }
    }
}

impl Drop for CallsiteLimit {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}
