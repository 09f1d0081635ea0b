//! What is known of a process before its runtime is looked for.

use std::ops::Range;

use heapbpf_base::ids::Pid;

/// A process that maps a module with a runtime.
pub(crate) struct Process {
    pub(crate) pid: Pid,
    /// The module's load bias.
    pub(crate) bias: u64,
    /// Its C library is musl.
    pub(crate) uses_musl: bool,
    /// Distance of a thread's pointer from its control block, if it is known: see [`control_block`](super::control_block).
    pub(crate) control_block: Option<u64>,
    /// By address.
    pub(crate) code: Vec<CodeMapping>,
}

/// A mapping of code.
#[derive(Clone, Debug)]
pub(crate) struct CodeMapping {
    pub(crate) range: Range<u64>,
    /// Load bias of the runtime's module, if it is of that.
    pub(crate) own_bias: Option<u64>,
    /// Not of a file.
    pub(crate) is_generated: bool,
}

impl CodeMapping {
    /// Where it has a range of the runtime's module; `None` if it does not have all of it.
    pub(super) fn part(&self, link: &Range<u64>) -> Option<Range<u64>> {
        let bias = self.own_bias?;
        let part = link.start.wrapping_add(bias)..link.end.wrapping_add(bias);
        (self.range.start <= part.start && part.start < part.end && part.end <= self.range.end).then_some(part)
    }
}
