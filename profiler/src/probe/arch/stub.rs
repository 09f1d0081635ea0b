//! Code of the inline engine's stubs.
//!
//! A stub runs in place of a function: it counts allocated bytes down, or searches the filter for the block that is freed, and
//! continues in the function *behind* the instruction that has a probe, which it executes itself. Only sampled calls, and
//! frees that the filter does not exclude, reach a `nop` in the stub, on which the kernel side has a probe. A stub that is
//! switched off continues at the function's entry, where other probes are.

use gimli::Encoding;
use gimli::write::{CallFrameInstruction, CommonInformationEntry};
use profiler_common::hook::{CallShape, Site};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StubError {
    #[error("it cannot be executed elsewhere: {0}")]
    Prefix(&'static str),
    #[error("cannot be encoded: {0}")]
    Encode(String),
}

/// Countdown of one CPU for one heap: a cache line. Agent and stubs write it.
pub(crate) mod slot {
    pub(crate) const BYTES: usize = 64;
    /// Bytes until the next sample; negative at a sample (i64).
    pub(crate) const COUNTDOWN: i32 = 0;
    /// Interval for which the countdown was sampled, in bytes (u64), and its code (u32).
    pub(crate) const INTERVAL: i32 = 8;
    pub(crate) const CODE: i32 = 16;
    /// Code of the interval for the next countdown (u32).
    pub(crate) const NEXT_CODE: i32 = 20;
    /// State of the random number generator (u64).
    pub(crate) const RANDOM: i32 = 24;
    /// Number of calls so far (u64).
    pub(crate) const CALLS: i32 = 32;
    /// Number of sampled calls that have executed the probed instruction (u64).
    pub(crate) const SAMPLES: i32 = 40;
    /// Number of sampled calls that were left to a function that may throw (u64).
    pub(crate) const LEFT: i32 = 48;
}

/// How a stub finds its countdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotIndex {
    /// The slot of the current CPU. At this offset from the thread pointer, `struct rseq` has the number of the CPU (Linux 4.18).
    Rseq(i32),
    /// The slot with the number that a hash of the thread pointer has. There are 2 to the power of this many slots.
    Thread(u32),
}

/// A function to be replaced by a stub.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StubFunction<'a> {
    pub shape: CallShape,
    /// Number of the argument with the size; those of the count and of the pointer follow.
    pub size: usize,
    pub count: Option<usize>,
    pub pointer: Option<usize>,
    pub page_rounded: bool,
    /// How to call the function if it may throw.
    pub nothrow: Option<Nothrow>,
    pub address: u64,
    /// Code from the entry to the end of the probed instruction; empty without a probe.
    pub prefix: &'a [u8],
    /// Distance of the first countdown of the function's heap from those of the first heap, in bytes.
    pub heap_offset: u64,
    /// Stub for calls that may be nested: for `realloc` of null, that of `malloc`; for `reallocarray`, that of `realloc`.
    pub simpler: Option<u64>,
}

/// How a stub calls a function that may throw: no exception can be unwound through a stub's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nothrow {
    /// Address of the form that returns null instead.
    pub function: u64,
    /// Number of the form's argument of type `std::nothrow_t`, of the first three.
    pub argument: usize,
    /// Address of `std::get_new_handler`.
    pub get_handler: u64,
}

/// Properties that the stubs of a process have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    /// Address of the live set's filter in the process.
    pub(crate) filter: u64,
    /// Address of the words by which stubs are switched on and off.
    pub(crate) control: u64,
    pub(crate) index: SlotIndex,
    /// Address of the routine that samples countdowns.
    pub(crate) draw: u64,
    /// Size of a page, a power of 2.
    pub(crate) page_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StubSite {
    /// Offset from the beginning of the code.
    pub offset: u64,
    pub site: Site,
}

/// Code with a single entry, which is its beginning.
#[derive(Debug)]
pub(crate) struct Routine {
    pub(crate) code: Vec<u8>,
    /// Places for probes, with offsets from the routine's beginning.
    pub(crate) sites: Vec<StubSite>,
    /// Changes of the frame, with the offsets of the instructions from which on they apply.
    pub(crate) frames: Vec<(u32, CallFrameInstruction)>,
}

/// Assembles stubs for a processor.
pub(crate) trait StubSet {
    /// Processor of ELF files (`e_machine`).
    const MACHINE: u16;
    /// Instruction between routines, which ends the program.
    const PADDING: &'static [u8];
    /// Maximum distance of jumps, in bytes.
    const REACH_BYTES: u64;

    /// Unwind rules at a function's entry, without changes of the frame.
    fn common_information(encoding: Encoding) -> CommonInformationEntry;

    /// Assembles the routine for this address that samples a countdown. The table of logarithms is at `table`.
    fn draw(address: u64, table: u64) -> Result<Routine, StubError>;

    fn stub(address: u64, function: &StubFunction<'_>, common: &Common) -> Result<Routine, StubError>;
}

/// Binary logarithm of the number of steps in the table of logarithms, which has one entry more.
pub(crate) const TABLE_BITS: u32 = 8;

/// Entry of the table of logarithms: 2^32 · log2(1 + step / 2^TABLE_BITS).
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in 0..=2^32, which saturates")]
pub(crate) fn logarithm(step: u32) -> u32 {
    let part = f64::from(step) / f64::from(1_u32 << TABLE_BITS);
    ((1.0 + part).log2() * 2_f64.powi(32)).round() as u32
}

/// The natural logarithm of 2, times 2^32.
pub(super) const LN_2: u32 = 2_977_044_472;

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): the increment, and shifts with the factors behind them.
pub(super) const RANDOM_INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;
pub(super) const RANDOM_MIXES: [(u8, Option<u64>); 3] =
    [(30, Some(0xbf58_476d_1ce4_e5b9)), (27, Some(0x94d0_49bb_1331_11eb)), (31, None)];
