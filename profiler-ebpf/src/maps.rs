//! All maps. The agent sets the sizes given as 1 before it loads the object.

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, RingBuf};
use profiler_common::counter::Counter;
use profiler_common::hook::NestedCallers;
use profiler_common::hotspot::Hotspot;
use profiler_common::interpreter::Interpreter;
use profiler_common::limits::{
    CODE_FILES_MAX, CODE_RATES as CODE_RATES_MAX, EXECS_SEEN, HEAPS_MAX, HOOKS_MAX, INFLIGHT_BUCKETS,
    LIVE_FILTER_SLOTS, MAPPINGS_MAX, PROCESSES_MAX, RULE_CACHE_SLOTS, RUNTIMES_MAX, STACK_BUCKETS, STACK_WAYS,
    TARGETS_MAX, UNWIND_PAGES_MAX, UNWIND_RULES_MAX,
};
use profiler_common::live::{LiveBlock, LiveKey};
use profiler_common::mapped::{CodeFile, FileKey, MappingState};
use profiler_common::php::Php;
use profiler_common::ruby::Ruby;
use profiler_common::rule_cache::CachedRule;
use profiler_common::sampling::SamplingRate;
use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};
use profiler_common::v8::V8;

use crate::asm;
use crate::layout::{InflightBucket, InflightCall, RawRecord, Scratch};

/// Records for the agent.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(1, 0);

/// The live set. Not preallocated: most sessions use a small part of its capacity.
#[map]
pub(crate) static LIVE: HashMap<LiveKey, LiveBlock> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Filter in front of [`LIVE`], by [`LiveKey::filter_slot`]. A writer of [`LIVE`], the agent included, adds a block's word before
/// it inserts the block, and subtracts it after it has removed it. Targets of the inline engine map it to read it.
#[map]
pub(crate) static LIVE_FILTER: Array<u64> = Array::with_max_entries(LIVE_FILTER_SLOTS, BPF_F_MMAPABLE);

/// Hooked calls between entry and return, by the low bits of the thread id: see [`inflight`](crate::inflight).
#[map]
pub(crate) static INFLIGHT: Array<InflightBucket> = Array::with_max_entries(INFLIGHT_BUCKETS, 0);

/// The same where the kernel lacks cookies or atomic instructions with a result, by thread. Else it has one element.
#[map]
pub(crate) static INFLIGHT_CALLS: HashMap<u64, InflightCall> = HashMap::with_max_entries(1, 0);

/// Cookies of probes by process and address, where links carry none. Else it has one element.
#[map]
pub(crate) static PROBES: HashMap<LiveKey, u64> = HashMap::with_max_entries(1, 0);

/// Return addresses that identify nested calls, by hook.
#[map]
pub(crate) static NESTED: Array<NestedCallers> = Array::with_max_entries(HOOKS_MAX, 0);

/// Flags of targets by process. Maintained by the agent; the kernel side adds forks of targets and removes exiting processes.
/// Preallocated, as [`PROCESSES`]: forks are added under a run queue's lock, where kernels before 6.1 must not allocate.
#[map]
pub(crate) static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(TARGETS_MAX, 0);

/// Allocating calls by process, for targets of the inline engine, which the agent inserts: see
/// [`TRAPPED_CALLS`](profiler_common::target::TRAPPED_CALLS).
#[map]
pub(crate) static STUB_CALLS: HashMap<u32, [u64; 2]> = HashMap::with_max_entries(TARGETS_MAX, BPF_F_NO_PREALLOC);

/// `mm` of each process after its last exec. Marks the exec as handled for the other copies of the program.
#[map]
pub(crate) static EXECS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(EXECS_SEEN, 0);

/// Ids of stacks whose frames have been sent, and of ranges of memory whose first touch was, by [`seen_bucket`](profiler_common::stack::seen_bucket). An array instead of a
/// hash map, because every sampled call searches it. The agent removes ids.
#[map]
pub(crate) static STACKS: Array<[u64; STACK_WAYS]> = Array::with_max_entries(STACK_BUCKETS, BPF_F_MMAPABLE);

/// Sampling rate by heap.
#[map]
pub(crate) static RATES: Array<SamplingRate> = Array::with_max_entries(HEAPS_MAX, 0);

/// Counters, and behind them [`FILLING`].
#[map]
pub(crate) static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT + 1, 0);

/// 1 if half of [`EVENTS`] or more was unread when this CPU wrote its last record, else 0.
pub(crate) const FILLING: u32 = Counter::COUNT;

#[map]
pub(crate) static SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// Buffers for raw stack records. An area belongs to the owner of the [`SCRATCH`] area with the same index.
#[map]
pub(crate) static RAW: Array<RawRecord> = Array::with_max_entries(1, 0);

/// Unwind rows of all modules, two per cell.
#[map]
pub(crate) static ROWS: Array<RowCell> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The rows of each page of 64 KiB of code.
#[map]
pub(crate) static PAGES: Array<PageRows> = Array::with_max_entries(UNWIND_PAGES_MAX, BPF_F_MMAPABLE);

/// Unwind rules by number.
#[map]
pub(crate) static RULES: Array<Rule> = Array::with_max_entries(UNWIND_RULES_MAX, 0);

/// Rules of addresses that stacks were unwound at: see [`rule_cache`](profiler_common::rule_cache).
#[map]
pub(crate) static RULE_CACHE: Array<CachedRule> = Array::with_max_entries(RULE_CACHE_SLOTS, 0);

/// Executable mappings of all targets.
#[map]
pub(crate) static MAPPINGS: Array<ProcessMapping> = Array::with_max_entries(MAPPINGS_MAX, 0);

/// Each target's range of [`MAPPINGS`].
#[map]
pub(crate) static PROCESSES: HashMap<u32, ProcessMappings> = HashMap::with_max_entries(PROCESSES_MAX, 0);

/// What has happened to the executable mappings of targets. Preallocated, as [`TARGETS`].
#[map]
pub(crate) static MAPPING_STATES: HashMap<u32, MappingState> = HashMap::with_max_entries(PROCESSES_MAX, 0);

/// Unwind tables by file, which the agent maintains: of modules that a target uses.
#[map]
pub(crate) static CODE_FILES: HashMap<FileKey, CodeFile> = HashMap::with_max_entries(CODE_FILES_MAX, BPF_F_NO_PREALLOC);

/// CPython in processes, by number, which [`PROCESSES`] has.
#[map]
pub(crate) static INTERPRETERS: Array<Interpreter> = Array::with_max_entries(RUNTIMES_MAX, 0);

/// Java virtual machines, as above.
#[map]
pub(crate) static JAVA_MACHINES: Array<Hotspot> = Array::with_max_entries(RUNTIMES_MAX, 0);

/// JavaScript engines, as above.
#[map]
pub(crate) static JAVASCRIPT_ENGINES: Array<V8> = Array::with_max_entries(RUNTIMES_MAX, 0);

/// CRuby, as above.
#[map]
pub(crate) static RUBIES: Array<Ruby> = Array::with_max_entries(RUNTIMES_MAX, 0);
/// PHP in processes, as above.
#[map]
pub(crate) static PHPS: Array<Php> = Array::with_max_entries(RUNTIMES_MAX, 0);

/// Code that processes have sent: see [`may_send`](crate::code::may_send).
#[map]
pub(crate) static CODE_RATES: Array<u64> = Array::with_max_entries(CODE_RATES_MAX, 0);

/// Always empty: see [`private_stack`](crate::private_stack). For the programs at probes.
#[map]
pub(crate) static HOOK_TAIL_CALLS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Always empty, as above. For the program at frees, whose links are of another type than those of sessions.
#[map]
pub(crate) static FREE_TAIL_CALLS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Always empty, as above. For the programs at tracepoints.
#[map]
pub(crate) static PROCESS_TAIL_CALLS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Increments a counter, atomically: the counter is this CPU's, but another program can preempt this one between read and
/// write.
#[inline(always)]
pub(crate) fn count(counter: Counter) {
    add(counter, 1);
}

/// Adds to a counter: see [`count`].
#[inline(always)]
pub(crate) fn add(counter: Counter, amount: u64) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        asm::atomic_add(value, amount as i64);
    }
}
