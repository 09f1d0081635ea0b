//! Records of the kernel side, by the part of a session that handles them.

use std::sync::Arc;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{Pid, StackId, Tid};
use heapbpf_base::units::MonotonicNanos;
use profiler_common::mapped::FileKey;
use profiler_common::record::RecordKind;
use profiler_common::step::Registers;

use super::event::{Event, Free};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Changes a ledger.
    Event(Event),
    /// A block that is not in the kernel's live set was freed. The ledger may have it while an inventory is entered.
    UnknownFree(Free),
    /// A target forked; the child does not run yet.
    Fork(Fork),
    Exec(Exec),
    Code(RawCode),
    /// A target has mapped a library, or something where it had code; stacks through it may follow.
    Mapped(Mapped),
    /// A target has touched a range of memory for the first time.
    Range(Pid, FirstTouch),
    /// The memory that a stack was unwound from. Sent on request only, and possibly before the frames.
    RawStack(Pid, StackId, RawStack),
    /// A page of a stack that the kernel side did not unwind completely; all pages precede the frames.
    StackPage(Pid, StackId, StackPage),
}

/// A record of interpreted or compiled code that a stack contains, which its language decodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawCode {
    pub pid: Pid,
    pub kind: RecordKind,
    pub bytes: Arc<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    pub parent: Pid,
    pub child: Pid,
    pub time: MonotonicNanos,
    /// The child shares the parent's memory until it calls exec (`vfork`).
    pub shares_memory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exec {
    pub pid: Pid,
    /// Not the main thread called: per-process links, which the kernel ties to the main thread, are lost.
    pub by_other_thread: bool,
    pub time: MonotonicNanos,
}

/// A mapping that a process makes: of a library, or where it has had code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub pid: Pid,
    pub start: TargetAddr,
    /// Exclusive.
    pub end: TargetAddr,
    /// Offset in the file of the first byte.
    pub offset: FileOffset,
    /// The file; all 0 for memory without a file, and if it is not known.
    pub file: FileKey,
    /// Number of this change among those of the process that are reported: from 1 on.
    pub number: u32,
    /// Whether the kernel side unwinds stacks through it.
    pub is_corrected: bool,
    /// Whether there was registered code of another file.
    pub has_replaced: bool,
}

/// The first touch of a range of memory, which may have made all pages of the range resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstTouch {
    /// Address of the page.
    pub page: TargetAddr,
    pub stack: StackId,
    pub tid: Tid,
    pub time: MonotonicNanos,
    /// Distinguishes the program from others that the process has executed.
    pub memory: u32,
}

/// A copy of a stack, with the registers at the entry of the hooked function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Stack pointer, at the function's entry.
    pub sp: TargetAddr,
    pub bp: u64,
    /// Return address. 0 if it could not be read.
    pub caller: TargetAddr,
    /// Address of the first byte: the start of the page of `sp`.
    pub start: TargetAddr,
    pub bytes: Arc<[u8]>,
}

impl RawStack {
    pub fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start.0)?).ok()?;
        self.bytes.get(offset..)?.first_chunk().map(|word| u64::from_ne_bytes(*word))
    }
}

/// A page of a stack, with the registers of the last frame that was unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackPage {
    pub registers: Registers,
    /// Address of the first byte.
    pub start: TargetAddr,
    pub bytes: Arc<[u8]>,
}
