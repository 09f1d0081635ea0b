//! Every map. Sizes marked 1 are set by the agent before loading.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, RingBuf};
use profiler_common::counter::Counter;
use profiler_common::limits::{
    EXECS_SEEN, HEAPS_MAX, INFLIGHT_MAX, LIVE_PLACES, MAPPINGS_MAX, PROCESSES_MAX, STACKS_SEEN, TARGETS_MAX,
    UNWIND_PAGES_MAX, UNWIND_RULES_MAX,
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

/// Flags of targets by process, kept by the agent; a target's forks are added here, and exiting processes are removed. With its
/// elements allocated, as [`PROCESSES`]: forks are added under a run queue's lock, where kernels before 6.1 must not
/// allocate.
#[map]
pub(crate) static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(TARGETS_MAX, 0);

/// The memory that the last exec of a process gave it, by process: marks the exec as handled for the other copies of the program.
#[map]
pub(crate) static EXECS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(EXECS_SEEN, 0);

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
pub(crate) static PROCESSES: HashMap<u32, ProcessMappings> = HashMap::with_max_entries(PROCESSES_MAX, 0);

/// Always empty: see [`private_stack`](crate::private_stack). For the programs at probes.
#[map]
pub(crate) static HOOK_TAIL_CALLS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Always empty, as above. For the programs at tracepoints.
#[map]
pub(crate) static PROCESS_TAIL_CALLS: ProgramArray = ProgramArray::with_max_entries(1, 0);
