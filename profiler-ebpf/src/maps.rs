//! Every map. Sizes marked 1 are set by the agent before loading.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};
use profiler_common::counter::Counter;
use profiler_common::limits::{
    HEAPS_MAX, INFLIGHT_MAX, LIVE_PLACES, MAPPINGS_MAX, PROCESSES_MAX, STACKS_SEEN, TARGETS_MAX, UNWIND_PAGES_MAX,
    UNWIND_RULES_MAX,
};
use profiler_common::live::{LiveBlock, LiveKey};
use profiler_common::sampling::SamplingRate;
use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};

use crate::inflight::Inflight;
use crate::scratch::Scratch;
use crate::stack::RawRecord;

/// Records for the agent.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(1, 0);

/// The live set. Grows as blocks are sampled: most sessions hold far fewer than it may.
#[map]
pub(crate) static LIVE: HashMap<LiveKey, LiveBlock> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// How many live blocks there are by [`LiveKey::place`], counted before they are entered and after they are taken out, so
/// that 0 says that there is none. Whoever writes to [`LIVE`] counts here, the agent too.
#[map]
pub(crate) static LIVE_COUNTS: Array<u64> = Array::with_max_entries(LIVE_PLACES, BPF_F_MMAPABLE);

/// Hooked calls between entry and return, by thread (`bpf_get_current_pid_tgid`).
#[map]
pub(crate) static INFLIGHT: HashMap<u64, Inflight> = HashMap::with_max_entries(INFLIGHT_MAX, 0);

/// Flags of targets by process, kept by the agent; a target's forks are added here, and who ends is taken out.
#[map]
pub(crate) static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(TARGETS_MAX, BPF_F_NO_PREALLOC);

/// Stacks whose frames have been sent.
#[map]
pub(crate) static STACKS: LruHashMap<u64, u8> = LruHashMap::with_max_entries(STACKS_SEEN, 0);

/// Sampling rate by heap.
#[map]
pub(crate) static RATES: Array<SamplingRate> = Array::with_max_entries(HEAPS_MAX, 0);

/// Counters by [`Counter`].
#[map]
pub(crate) static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT, 0);

/// Memory to unwind in.
#[map]
pub(crate) static SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// Copies of stacks on their way into the ring. An area here belongs to whoever holds the same one of [`SCRATCH`].
#[map]
pub(crate) static RAW: Array<RawRecord> = Array::with_max_entries(1, 0);

/// Unwind rows of all modules, two to a cell.
#[map]
pub(crate) static ROWS: Array<RowCell> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The rows of each page of 64 KiB of code.
#[map]
pub(crate) static PAGES: Array<PageRows> = Array::with_max_entries(UNWIND_PAGES_MAX, BPF_F_MMAPABLE);

/// Unwind rules that rows number.
#[map]
pub(crate) static RULES: Array<Rule> = Array::with_max_entries(UNWIND_RULES_MAX, 0);

/// Executable mappings of all targets.
#[map]
pub(crate) static MAPPINGS: Array<ProcessMapping> = Array::with_max_entries(MAPPINGS_MAX, 0);

/// Where each target's mappings lie.
#[map]
pub(crate) static PROCESSES: HashMap<u32, ProcessMappings> =
    HashMap::with_max_entries(PROCESSES_MAX, BPF_F_NO_PREALLOC);
