//! Drops, and the cost of a recording.

use heapbpf_base::ids::Pid;
use serde::{Deserialize, Serialize};

use super::interpreter_frames::InterpreterFrames;
use super::loss::Loss;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    pub events: u64,
    /// Drops by reason, without reasons that did not occur.
    pub lost: Vec<(Loss, u64)>,
    pub unwind: Vec<(String, u64)>,
    /// Modules without unwind tables, which were unwound by frame pointers.
    pub frame_pointer_modules: Vec<String>,
    /// User-defined hooks whose function was in no process.
    pub unfound: Vec<UnfoundHook>,
    /// Heaps that were not hooked in a module, because its compiler inlined their functions.
    #[serde(with = "in_text")]
    pub inlined_heaps: Vec<InlinedHeap>,
    /// Number of times the ledger was resynced from the kernel's live set.
    pub resyncs: u64,
    pub interval_changes: Vec<IntervalChange>,
    pub agent_cpu_ns: u64,
    /// Of it, for samples of the targets' resident memory.
    #[serde(with = "in_text")]
    pub memory_sampling_ns: u64,
    pub agent_rss_bytes_max: u64,
    pub guardrails: Guardrails,
    /// `None` where a recording does not have it.
    #[serde(with = "in_text")]
    pub scope: Option<ProbeScope>,
    /// With the inline engine only.
    #[serde(with = "in_text")]
    pub inline_engine: Option<InlineEngine>,
    #[serde(with = "in_text")]
    pub interpreters: Option<InterpreterFrames>,
    /// What the dropped records of `lost` may represent.
    #[serde(with = "in_text")]
    pub unaccounted: Unaccounted,
    /// Known when a report is written; recordings store it next to their names.
    #[serde(skip)]
    pub symbolization: Symbolization,
}

/// Upper bounds of what dropped records represent, of all targets together. Nothing is known of the records' processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub struct Unaccounted {
    /// Bytes of allocations that may be missing in what was allocated. Some of them were found in the live set later, and are not
    /// missing.
    pub alloc_bytes: u64,
    /// The same in blocks.
    pub alloc_count: u64,
    /// Bytes of these that may be live.
    pub live_bytes: u64,
    /// The same in blocks.
    pub live_count: u64,
    /// Whether live amounts have not been corrected since the last drop, so that nothing limits their error.
    pub is_live_behind: bool,
}

impl Unaccounted {
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn since(&self, base: &Self) -> Self {
        Self {
            alloc_bytes: self.alloc_bytes.saturating_sub(base.alloc_bytes),
            alloc_count: self.alloc_count.saturating_sub(base.alloc_count),
            ..*self
        }
    }
}

impl Health {
    pub fn add_loss(&mut self, loss: Loss, count: u64) {
        match self.lost.iter_mut().find(|(known, _)| *known == loss) {
            Some((_, known)) => *known += count,
            None if count > 0 => self.lost.push((loss, count)),
            None => {}
        }
    }

    /// The difference to the health of the same recording at an earlier time; modules, hooks, peaks and losses that are states stay.
    pub fn since(&self, base: &Self) -> Self {
        fn since<K: Clone + PartialEq>(now: &[(K, u64)], base: &[(K, u64)]) -> Vec<(K, u64)> {
            let before = |key: &K| base.iter().find(|(known, _)| known == key).map_or(0, |(_, count)| *count);
            let rest = now.iter().map(|(key, count)| (key.clone(), count.saturating_sub(before(key))));
            rest.filter(|(_, count)| *count > 0).collect()
        }
        let states = self.lost.iter().filter(|(loss, _)| loss.is_state()).cloned();
        let lost = since(&self.lost, &base.lost).into_iter().filter(|(loss, _)| !loss.is_state()).chain(states);
        Self {
            events: self.events.saturating_sub(base.events),
            lost: lost.collect(),
            unwind: since(&self.unwind, &base.unwind),
            unaccounted: self.unaccounted.since(&base.unaccounted),
            resyncs: self.resyncs.saturating_sub(base.resyncs),
            agent_cpu_ns: self.agent_cpu_ns.saturating_sub(base.agent_cpu_ns),
            memory_sampling_ns: self.memory_sampling_ns.saturating_sub(base.memory_sampling_ns),
            ..self.clone()
        }
    }

    /// Whether blocks are missing of which not even a size is known.
    pub fn has_lost_unsized(&self) -> bool {
        self.lost.iter().any(|(loss, count)| loss.is_unsized() && *count > 0)
    }

    pub fn lost_by(&self, reason: &Loss) -> u64 {
        self.lost.iter().filter(|(loss, _)| loss == reason).map(|(_, count)| count).sum()
    }

    /// Without processes and programs that other targets do not lack.
    pub fn lost_of_targets(&self) -> u64 {
        self.lost.iter().filter(|(loss, _)| !loss.is_of_others()).map(|(_, count)| count).sum()
    }

    pub fn lost_total(&self) -> u64 {
        self.lost.iter().map(|(_, count)| count).sum()
    }
}

/// A field that self-describing formats have, and the layout of folds in recordings does not.
mod in_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { value.serialize(serializer) } else { serializer.serialize_unit() }
    }

    pub(super) fn deserialize<'a, T: Default + Deserialize<'a>, D: Deserializer<'a>>(from: D) -> Result<T, D::Error> {
        if from.is_human_readable() { T::deserialize(from) } else { <()>::deserialize(from).map(|()| T::default()) }
    }
}

/// Which processes meet the probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ProbeScope {
    /// Which processes meet the probes.
    pub kind: ScopeKind,
    /// Why.
    pub reason: String,
    /// Number of processes that mapped a hooked file and were not targets when that was decided; null where they were not counted.
    pub other_processes: Option<u64>,
    /// Number of allocating calls of processes that are not targets: each cost a trap.
    pub foreign_calls: u64,
    /// Number of probes of other tools on hooked instructions, which slow down the targets' calls; null where the kernel does not list them.
    #[serde(default)]
    pub foreign_probes: Option<u64>,
}

/// Which processes meet the probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub enum ScopeKind {
    /// Targets.
    Process,
    /// All that map a hooked file.
    Inode,
}

/// How calls reached the inline engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct InlineEngine {
    /// Number of targets with stubs.
    pub targets: u64,
    /// Number of allocating calls that passed a stub.
    pub passed_calls: u64,
    /// Number of allocating calls of these targets that met a probe in the function: each cost a trap.
    pub trapped_calls: u64,
    /// The longest that a target was stopped to change its pointers, in nanoseconds.
    pub stop_ns_max: u64,
    /// Number of targets that were recorded by the trap engine instead, by reason.
    pub refused: std::collections::BTreeMap<String, u64>,
}

impl InlineEngine {
    /// `None` without calls.
    #[expect(clippy::cast_precision_loss, reason = "a share")]
    pub fn passed_percent(&self) -> Option<f64> {
        let calls = self.passed_calls.saturating_add(self.trapped_calls);
        (calls > 0).then(|| 100.0 * self.passed_calls as f64 / calls as f64)
    }
}

/// A user-defined hook whose function is in none of its modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct UnfoundHook {
    /// Name of its heap.
    pub heap: String,
    /// Symbol of the function.
    pub function: String,
    /// Patterns of the modules that may define it; `*` for any.
    pub modules: Vec<String>,
    /// The profile is incomplete without this hook.
    pub required: bool,
}

/// A user-defined heap whose functions the compiler has inlined in other functions of their module, so that hooks would see
/// few calls: it is not hooked there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct InlinedHeap {
    /// Name of the heap.
    pub heap: String,
    /// Path of the module.
    pub module: String,
    /// Its function with the most copies.
    pub function: String,
    /// Number of functions that contain a copy of it.
    pub copies: u64,
    /// What to do instead.
    pub advice: String,
}

/// A change of a heap's interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct IntervalChange {
    /// Time of the change, in nanoseconds since the Unix epoch.
    pub unix_ns: u64,
    /// Name of the heap.
    pub heap: String,
    /// Interval before the change.
    pub from_bytes: u64,
    /// Interval after the change.
    pub to_bytes: u64,
    /// Reason of the change.
    pub reason: ChangeReason,
}

/// Why a heap's interval was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub enum ChangeReason {
    // Aliases: names in older recordings.
    #[serde(alias = "RingFull")]
    RingFull,
    #[serde(alias = "RingFilling")]
    RingFilling,
    #[serde(alias = "LiveSetFilling")]
    LiveSetFilling,
    /// The load dropped.
    #[serde(alias = "Quiet")]
    Quiet,
}

impl ChangeReason {
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::RingFull => "the ring buffer was full",
            Self::RingFilling => "the ring buffer was more than half full",
            Self::LiveSetFilling => "the live set was nearly full",
            Self::Quiet => "the load dropped",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Symbolization {
    /// Parts of the symbolizer's isolation, and whether each was in force; empty where nothing was symbolized.
    pub isolation: Vec<(String, bool)>,
    pub failures: Vec<SymbolizationFailure>,
    /// Symbolizer processes that crashed, exited early or could not be started.
    pub crashes: u64,
    /// Modules without names, by falling share.
    pub modules: Vec<UnnamedModule>,
    /// From debuginfod servers.
    pub downloads: Vec<Download>,
}

impl Symbolization {
    pub fn isolated(&self, in_force: bool) -> impl Iterator<Item = &str> {
        self.isolation.iter().filter(move |(_, is_in_force)| *is_in_force == in_force).map(|(name, _)| name.as_str())
    }
}

/// A module with functions in the profile that have no name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct UnnamedModule {
    /// Path of the module.
    pub module: String,
    /// Build id, in hexadecimal.
    pub build_id: Option<String>,
    /// Share of the profile's bytes in stacks through these functions, from 0 to 1.
    pub share: f64,
    /// What the module's files have.
    pub symbols: SymbolSource,
    /// Package that probably has the debug information of the module; null where unknown, or where the module has it.
    pub package: Option<String>,
}

/// What a module has for symbolization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub enum SymbolSource {
    /// Debug information, in it or in a file of its own.
    DebugInformation,
    /// A symbol table.
    SymbolTable,
    /// A compressed symbol table (`.gnu_debugdata`).
    MiniDebugInfo,
    /// Names of exported functions, and the ranges of others (`.eh_frame`).
    UnwindTables,
    /// Names of exported functions alone.
    Exports,
    /// Its file could not be read.
    Unknown,
}

/// A debug file that was requested from debuginfod servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Download {
    /// Path of the module.
    pub module: String,
    /// Build id of the file, in hexadecimal.
    pub build_id: String,
    /// Size of the file.
    pub bytes: u64,
    /// Why there is no file; null if it was received.
    pub failure: Option<String>,
}

/// A module or script that could not be symbolized completely.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct SymbolizationFailure {
    /// Path of the module, or of the script's source map.
    pub module: String,
    /// Why.
    pub reason: String,
    /// Fallback source of names.
    pub names: NamesFrom,
}

/// Fallback source of names where debug information cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub enum NamesFrom {
    /// Functions without lines and without inlined calls.
    #[serde(alias = "SymbolTable")]
    SymbolTable,
    /// Frames are printed as module and offset.
    #[serde(rename = "none", alias = "Nothing")]
    Nothing,
    /// Functions, files and lines of a script as it is executed, because its source map is not used.
    Script,
}

/// Limits, `None` where none was set, and peaks of what they limit. Recordings contain it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guardrails {
    /// Of heapbpf and the kernel's maps.
    pub memory_bytes_max: Option<u64>,
    pub memory_bytes_highest: Option<u64>,
    /// Of heapbpf, in percent of one core.
    pub cpu_percent_max: Option<f64>,
    /// Over some seconds.
    pub cpu_percent_highest: Option<f64>,
    /// Of the probes, in percent of a target's CPU time.
    pub overhead_percent_max: Option<f64>,
    /// On this machine, where measured.
    #[serde(rename = "costs")]
    pub probe_costs: Option<ProbeCosts>,
    pub reached: Vec<Reached>,
}

/// Additional nanoseconds per unsampled call that probes cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ProbeCosts {
    /// For a probe on an instruction that the kernel emulates.
    pub emulated_ns: f64,
    /// For a probe on an instruction that the kernel executes out of line.
    pub single_stepped_ns: f64,
    /// For an allocating function with a probe on an emulated instruction, and one at the return where links need it.
    pub emulated_with_return_ns: f64,
    /// For an allocating function with a probe on an instruction executed out of line, and one at the return.
    pub single_stepped_with_return_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    pub unix_ns: u64,
    pub what: Excess,
    pub action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Excess {
    /// Bytes of the agent and the kernel's maps.
    Memory(u64),
    /// The agent's CPU usage, in percent of one core.
    Cpu(f64),
    /// The probes' share of this target's CPU time, in percent.
    Overhead(Pid, f64),
    /// No limit: the keeper exited prematurely.
    Keeper,
    /// Bytes left in the control group of heapbpf.
    Group(u64),
}

impl Reached {
    /// Whether later events are missing. Larger intervals leave nothing out.
    pub fn leaves_out(&self) -> bool {
        self.action != Action::IntervalsRaised
    }
}

/// Response to an exceeded limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub enum Action {
    /// The recording was stopped.
    #[serde(alias = "Stopped")]
    Stopped,
    /// The intervals of all heaps were doubled, once or several times.
    #[serde(alias = "IntervalsRaised")]
    IntervalsRaised,
    /// The target was detached.
    #[serde(alias = "Detached")]
    Detached,
}

impl Guardrails {
    pub fn stopped(&self) -> bool {
        self.reached.iter().any(|reached| reached.action == Action::Stopped)
    }
}

/// Estimated cost of a target's probes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct Overhead {
    /// Share of the target's CPU time, in percent.
    pub percent: f64,
    /// Peak of that share, over some seconds; null where the target was nearly idle or not profiled long enough.
    pub percent_highest: Option<f64>,
    /// CPU time in probes, in nanoseconds.
    pub probe_ns: f64,
    /// CPU time of the target, including its probes, in nanoseconds.
    pub cpu_ns: u64,
}
