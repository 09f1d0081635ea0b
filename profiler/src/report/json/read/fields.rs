//! The fields of a report, and what they become.

use std::borrow::Cow;

use profiler_common::stack::StackEnd;
use serde::Deserialize;

use super::Interner;
use super::amounts::{Amount, TotalsFields};
use super::code::{MappingFields, ModuleFields, ThreadFields, thread_at};
use super::curve::CurveFields;
use super::details::DetailsFields;
use super::guardrails::OverheadFields;
use super::health::HealthFields;
use super::leaks::LeaksFields;
use super::window::WindowFields;
use crate::ids::Pid;
use crate::ledger::totals::Amounts;
use crate::model::guardrails::Overhead;
use crate::model::{
    Beginning, CallsiteProfile, Frame, FrameId, HeapProfile, HookStatus, Origin, Others, Profile, Skipped,
    TargetProfile, ThreadProfile,
};
use crate::report::text;
use crate::units::MonotonicNanos;

/// Bytes of the kernel's name for a process.
const COMM_BYTES_MAX: usize = 15;

#[derive(Deserialize)]
pub(super) struct Root<'a> {
    interval_bytes: u64,
    started_unix_ns: u64,
    ended_unix_ns: u64,
    window: Option<WindowFields>,
    older_than_ns: Option<u64>,
    #[serde(borrow)]
    targets: Vec<TargetFields<'a>>,
    others: OthersFields,
    /// Missing, as all that stands with it, from reports of versions that did not tell.
    #[serde(borrow, default)]
    modules: Vec<ModuleFields<'a>>,
    health: HealthFields,
}

impl Root<'_> {
    pub(super) fn into_profile(self) -> Result<Profile, String> {
        let mut interner = Interner::default();
        let modules = self.modules.into_iter().map(|module| module.into_module(&mut interner));
        let modules = modules.collect::<Result<Vec<_>, _>>()?;
        let targets = self.targets.into_iter().map(|target| target.into_target(modules.len(), &mut interner));
        Ok(Profile {
            // Who reads a report back compares amounts: what was old is not asked for.
            interval_bytes: self.interval_bytes,
            started_unix_ns: self.started_unix_ns,
            ended_unix_ns: self.ended_unix_ns,
            started_monotonic_ns: self.started_unix_ns,
            older_than_ns: self.older_than_ns,
            // Checks have a report of their own, which is not read back.
            unreachable: false,
            window: self.window.map(WindowFields::into_window).transpose()?,
            targets: targets.collect::<Result<_, _>>()?,
            others: self.others.into_others()?,
            health: self.health.into_health()?,
            frames: interner.frames,
            modules,
        })
    }
}

#[derive(Deserialize)]
struct TargetFields<'a> {
    pid: u32,
    command: String,
    comm: Option<String>,
    cgroup: Option<String>,
    beginning: BeginningFields,
    exited: bool,
    exit_code: Option<i32>,
    #[serde(default)]
    replaced: bool,
    detached_unix_ns: Option<u64>,
    overhead: Option<OverheadFields>,
    totals: TotalsFields,
    heaps: Vec<HeapFields>,
    #[serde(default)]
    curve: CurveFields,
    #[serde(borrow, default)]
    mappings: Vec<MappingFields<'a>>,
    #[serde(default)]
    threads: Vec<ThreadFields>,
    #[serde(borrow)]
    leak_candidates: Option<LeaksFields<'a>>,
    #[serde(borrow)]
    callsites: Vec<CallsiteFields<'a>>,
}

impl TargetFields<'_> {
    /// `modules` is how many there are.
    fn into_target(self, modules: usize, interner: &mut Interner) -> Result<TargetProfile, String> {
        let heaps = self.heaps.into_iter().map(HeapFields::into_heap).collect::<Result<Vec<_>, _>>()?;
        let mappings = self.mappings.into_iter().map(|mapping| mapping.into_mapping(modules));
        let threads = self.threads.len();
        let callsites = self.callsites.into_iter().map(|callsite| callsite.into_callsite(&heaps, threads, interner));
        let callsites = callsites.collect::<Result<Vec<_>, _>>()?;
        let leaks = self.leak_candidates.map(|leaks| leaks.into_leaks(&heaps, &callsites, interner));
        Ok(TargetProfile {
            pid: Pid(self.pid),
            comm: self.comm.unwrap_or_else(|| comm_of(&self.command)),
            command: self.command,
            cgroup: self.cgroup.map(Into::into),
            mappings: mappings.collect::<Result<_, _>>()?,
            threads: self.threads.into_iter().map(ThreadProfile::from).collect(),
            history: self.curve.into_history()?,
            beginning: self.beginning.into_beginning()?,
            exited: self.exited,
            replaced: self.replaced,
            exit_code: self.exit_code,
            detached: self.detached_unix_ns.map(MonotonicNanos),
            overhead: self.overhead.map(Overhead::from),
            totals: self.totals.into_totals()?,
            leaks: leaks.transpose()?,
            callsites,
            heaps,
        })
    }
}

/// What the kernel calls a program that was started as this.
fn comm_of(command: &str) -> String {
    let name = crate::model::base_name(command);
    name[..name.floor_char_boundary(COMM_BYTES_MAX)].to_owned()
}

#[derive(Deserialize)]
struct BeginningFields {
    origin: String,
    parent: Option<u32>,
    unix_ns: u64,
    delay_ns: Option<u64>,
    from_first_call: bool,
}

impl BeginningFields {
    fn into_beginning(self) -> Result<Beginning, String> {
        let origin = match (self.origin.as_str(), self.parent) {
            ("running", _) => Origin::Running,
            ("fork", Some(parent)) => Origin::Forked(Pid(parent)),
            ("exec", _) => Origin::Executed,
            ("launch", _) => Origin::Launched,
            (other, _) => return Err(format!("`{}` is no way to begin", text::printable(other))),
        };
        Ok(Beginning {
            origin,
            time: MonotonicNanos(self.unix_ns),
            delay_ns: self.delay_ns,
            from_first_call: self.from_first_call,
        })
    }
}

#[derive(Deserialize)]
struct HeapFields {
    name: String,
    interval_bytes: u64,
    /// Missing from reports of versions that did not change intervals.
    #[serde(default)]
    interval_bytes_max: u64,
    hooks: Vec<HookFields>,
    #[serde(flatten)]
    totals: TotalsFields,
}

impl HeapFields {
    fn into_heap(self) -> Result<HeapProfile, String> {
        Ok(HeapProfile {
            name: self.name,
            interval_bytes: self.interval_bytes,
            interval_bytes_max: self.interval_bytes_max.max(self.interval_bytes),
            hooks: self.hooks.into_iter().map(HookStatus::from).collect(),
            totals: self.totals.into_totals()?,
        })
    }
}

#[derive(Deserialize)]
struct HookFields {
    function: String,
    module: String,
    backend: String,
    offset: u64,
    instruction: Option<String>,
    emulated: Option<bool>,
    required: bool,
    attached: bool,
    error: Option<String>,
}

impl From<HookFields> for HookStatus {
    fn from(hook: HookFields) -> Self {
        let unknown = (!hook.attached).then(|| "the reason is not known".to_owned());
        Self {
            function: hook.function,
            module: hook.module,
            backend: hook.backend,
            offset: hook.offset,
            instruction: hook.instruction,
            emulated: hook.emulated,
            required: hook.required,
            error: hook.error.or(unknown),
        }
    }
}

#[derive(Deserialize)]
struct CallsiteFields<'a> {
    #[serde(borrow)]
    stack: Vec<FrameFields<'a>>,
    #[serde(borrow)]
    end: Option<Cow<'a, str>>,
    #[serde(borrow)]
    heap: Option<Cow<'a, str>>,
    thread: Option<usize>,
    #[serde(default)]
    inherited: bool,
    #[serde(flatten)]
    totals: TotalsFields,
    older_count: Option<Amount>,
    older_bytes: Option<Amount>,
    #[serde(flatten)]
    details: DetailsFields,
}

impl CallsiteFields<'_> {
    /// `threads` is how many the target has.
    fn into_callsite(
        self,
        heaps: &[HeapProfile],
        threads: usize,
        interner: &mut Interner,
    ) -> Result<CallsiteProfile, String> {
        let end = self.end.map(|name| {
            let end = StackEnd::ALL.iter().copied().find(|end| end.counter().name() == name);
            end.ok_or_else(|| format!("`{}` is no end of a stack", text::printable(&name)))
        });
        let older = match (self.older_count, self.older_bytes) {
            (Some(count), Some(bytes)) => {
                Some(Amounts { count: count.count()?, bytes: bytes.bytes()?, ..Amounts::default() })
            }
            _ => None,
        };
        let stack = self.stack.into_iter().map(|frame| frame.into_id(interner));
        Ok(CallsiteProfile {
            stack: stack.collect::<Result<_, String>>()?,
            end: end.transpose()?,
            heap: heaps.iter().position(|heap| Some(&*heap.name) == self.heap.as_deref()).unwrap_or(heaps.len()),
            thread: thread_at(self.thread, threads)?,
            history: Vec::new(),
            inherited: self.inherited,
            totals: self.totals.into_totals()?,
            older,
            details: self.details.into_details()?,
        })
    }
}

#[derive(Deserialize)]
pub(super) struct FrameFields<'a> {
    #[serde(borrow)]
    function: Option<Cow<'a, str>>,
    #[serde(borrow)]
    module: Option<Cow<'a, str>>,
    #[serde(borrow)]
    file: Option<Cow<'a, str>>,
    line: Option<u32>,
    inlined: bool,
    #[serde(borrow)]
    address: Cow<'a, str>,
    #[serde(borrow)]
    module_offset: Option<Cow<'a, str>>,
}

impl FrameFields<'_> {
    pub(super) fn into_id(self, interner: &mut Interner) -> Result<FrameId, String> {
        let frame = self.into_frame(interner)?;
        interner.frame(frame)
    }

    fn into_frame(self, interner: &mut Interner) -> Result<Frame, String> {
        Ok(Frame {
            function: self.function.map(|name| interner.name(&name)),
            module: self.module.map(|name| interner.name(&name)),
            file: self.file.map(|name| interner.name(&name)),
            line: self.line,
            inlined: self.inlined,
            address: hexadecimal(&self.address)?,
            module_offset: self.module_offset.as_deref().map(hexadecimal).transpose()?,
        })
    }
}

pub(super) fn hexadecimal(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
    digits.ok_or_else(|| format!("`{}` is no address", text::printable(text)))
}

#[derive(Deserialize)]
struct OthersFields {
    skipped: Vec<SkippedFields>,
    skipped_count: u64,
    short_lived_count: u64,
    not_inherited_count: u64,
    folded_count: u64,
    folded_interval_bytes: Option<u64>,
    folded_totals: TotalsFields,
}

#[derive(Deserialize)]
struct SkippedFields {
    pid: u32,
    command: String,
    reason: String,
}

impl OthersFields {
    fn into_others(self) -> Result<Others, String> {
        let skipped = |skipped: SkippedFields| Skipped {
            pid: Pid(skipped.pid),
            command: skipped.command,
            reason: skipped.reason,
        };
        Ok(Others {
            skipped: self.skipped.into_iter().map(skipped).collect(),
            skipped_count: self.skipped_count,
            short_lived_count: self.short_lived_count,
            not_inherited_count: self.not_inherited_count,
            folded_count: self.folded_count,
            folded_totals: self.folded_totals.into_totals()?,
            folded_interval_bytes: self.folded_interval_bytes,
        })
    }
}
