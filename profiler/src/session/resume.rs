//! Continues a walk that the kernel side could not complete, over a copy of the stack. Pure; the copy and the registers are
//! the target's and may be anything.

use std::ops::Range;
use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_ledger::ingest::event::Stack;
use heapbpf_ledger::ingest::record::StackPage;
use profiler_common::limits::{PAGE_BYTES, STACK_COPY_PAGES_MAX, STACK_FRAMES_MAX};
use profiler_common::stack::StackEnd;
use profiler_common::step::{ReadMemory, Registers, Step, step};
use profiler_common::unwind::Rule;

use crate::unwind::store::NoRule;

/// A copy of the innermost pages of a stack, and the registers of the last frame that was unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StackCopy {
    registers: Registers,
    start: TargetAddr,
    bytes: Vec<u8>,
}

impl StackCopy {
    pub(crate) fn new(first: &StackPage) -> Self {
        Self { registers: first.registers, start: first.start, bytes: first.bytes.to_vec() }
    }

    /// Appends the next page. Returns false, and changes nothing, if `page` is not the next one or there are too many.
    pub(crate) fn append(&mut self, page: &StackPage) -> bool {
        let length = self.bytes.len() as u64;
        let is_next = page.start.0 == self.start.0.wrapping_add(length) && page.registers == self.registers;
        if !is_next || length >= STACK_COPY_PAGES_MAX * PAGE_BYTES {
            return false;
        }
        self.bytes.extend_from_slice(&page.bytes);
        true
    }

    /// Whether the frame that it continues from, or a word of it, is an address in this range.
    pub(crate) fn has_address(&self, range: &Range<TargetAddr>) -> bool {
        let words = self.bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        let mut addresses = std::iter::once(self.registers.ip).chain(words);
        addresses.any(|address| range.contains(&TargetAddr(address)) || range.end.0 == address)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

impl ReadMemory for StackCopy {
    fn read_u64(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start.0)?).ok()?;
        self.bytes.get(offset..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resumed {
    pub(crate) stack: Stack,
    /// Whether the walk ended outside the registered mappings again.
    pub(crate) is_unmapped: bool,
}

/// Continues a walk from the last of `frames`. A walk that leaves the copy ends as it did before, as
/// [`StackEnd::MissingModule`].
pub(crate) fn resume(
    frames: &[TargetAddr],
    copy: &StackCopy,
    mut rule: impl FnMut(u64) -> Result<Rule, NoRule>,
) -> Resumed {
    let mut frames = frames.to_vec();
    let mut registers = copy.registers;
    let mut is_unmapped = false;
    let end = loop {
        let rule = match rule(registers.lookup_address()) {
            Ok(rule) => rule,
            Err(NoRule::Gap) => break StackEnd::NoRow,
            Err(reason) => {
                is_unmapped = reason == NoRule::Unmapped;
                break StackEnd::MissingModule;
            }
        };
        match step(&registers, rule, copy) {
            Step::Caller(_) if frames.len() >= STACK_FRAMES_MAX => break StackEnd::Truncated,
            Step::Caller(caller) => {
                frames.push(TargetAddr(caller.ip));
                registers = caller;
            }
            Step::End(StackEnd::Unreadable) => break StackEnd::MissingModule,
            Step::End(end) => break end,
        }
    };
    Resumed { stack: Stack { frames: Arc::from(frames), end }, is_unmapped }
}

#[cfg(test)]
mod tests;
