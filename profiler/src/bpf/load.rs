//! Loads the programs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::{Program, ProgramError, ProgramFd};
use aya::{Ebpf, EbpfLoader};
use profiler_common::hook::{HookCookie, NestedCallers};
use profiler_common::limits::{INFLIGHT_BUCKETS, INFLIGHT_CALLS_MAX, PROBES_MAX, SCRATCH_SHARED};
use profiler_common::live::LiveKey;
use profiler_common::sampling::SamplingRate;
use serde::{Deserialize, Serialize};
use tracing::debug;

use super::adapt::adapt;
pub(crate) use super::error::LoadError;
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{HeapId, HookId, Pid};
use heapbpf_linux::bpf::{AttachType, supports};
use heapbpf_linux::bpf_map::{SharedWords, read_hash, remove_hash, write_hash};
use heapbpf_linux::exec_stop::ExecStopLayout;
use heapbpf_linux::memory::{map_count_max, page_bytes};
use heapbpf_linux::uprobe::UPROBE_SOURCE;
use heapbpf_linux::{feature, files};

use super::error::{OBJECT_VARIABLE, refused};
use super::features::{Features, Optional};
use super::kernel_types::{LayoutError, MappingLayout, MemoryLayout, ReturnLayout, TaskLayout};
use super::program::{RelocatedObject, private_stack_absent};
use super::ring::Ring;

/// The committed object for this processor, built by `cargo xtask build-ebpf`.
#[cfg(target_arch = "x86_64")]
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/heapbpf-x86_64.bpf.o"));
#[cfg(target_arch = "aarch64")]
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/heapbpf-aarch64.bpf.o"));

#[derive(Clone, Copy, Debug)]
pub struct KernelConfig {
    /// Size of the ring buffer: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Binary logarithm of the largest interval in bytes that a filling ring buffer may raise others to; 0 if it raises none.
    pub back_pressure_max: u32,
    pub live_blocks_max: u32,
    pub unwind_by_tables: bool,
    /// Number of cells of unwind rows, two rows each.
    pub row_cells: u32,
    /// Random number, so that a target cannot provoke collisions of stack ids.
    pub stack_seed: u64,
    /// Send a copy of every sampled call's stack, for checking the unwinder.
    pub raw_stacks: bool,
    /// Report the execs of all processes instead of those of targets only.
    pub all_execs: bool,
    /// Requested bytes from which on a function that may throw is assumed to throw, so that its return is not probed.
    pub throw_safe_bytes: u64,
    /// Load the program for stubs of the inline engine, which requires links of kind multi (Linux 6.6).
    pub stubs: bool,
    /// Whether there are hooks of the shape [`Entry`](profiler_common::hook::CallShape::Entry), or may be.
    pub entries: bool,
    /// Whether resident pages are recorded.
    pub pages: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum LinkKind {
    /// One perf event for each probe.
    Perf,
    /// One link for all entries, another for all returns.
    Multi,
    /// One link for entries and returns, another for functions whose return does not matter.
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendChoice {
    /// Use the cheapest kind that the kernel supports.
    Auto,
    Only(LinkKind),
}

impl LinkKind {
    /// Chooses the kind of links. Tests kernel features instead of version numbers, which are unreliable: distributions backport.
    pub(crate) fn choose(choice: BackendChoice) -> Result<Self, LoadError> {
        // An inconclusive test counts as missing: perf events are available wherever uprobes are.
        let has = |kind: Self| {
            let (attach_type, feature) = match kind {
                Self::Perf => return true,
                Self::Multi => (AttachType::UprobeMulti, Optional::Multi),
                Self::Session => (AttachType::UprobeSession, Optional::Session),
            };
            if feature.is_suppressed() {
                return false;
            }
            supports(attach_type).unwrap_or_else(|error| {
                debug!("cannot determine whether the kernel has {attach_type:?} links: {error}");
                false
            })
        };
        let kind = match choice {
            BackendChoice::Only(kind) if !has(kind) => return Err(LoadError::NoLinks(kind.into())),
            BackendChoice::Only(kind) => kind,
            BackendChoice::Auto => {
                [Self::Session, Self::Multi].into_iter().find(|kind| has(*kind)).unwrap_or(Self::Perf)
            }
        };
        if kind == Self::Perf && !feature::has_admin() { Err(LoadError::NeedsAdmin) } else { Ok(kind) }
    }

    /// Features for links of this kind. Kinds other than perf are newer than all these features.
    pub(crate) fn features(self) -> Features {
        if self == Self::Perf { Features::probe() } else { Features::ALL }
    }
}

pub(crate) fn possible_cpus() -> u32 {
    aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1)
}

#[derive(Debug)]
enum Programs {
    Perf { entry: OwnedFd, at_return: OwnedFd },
    Multi { entry: OwnedFd, at_return: OwnedFd },
    Session { session: OwnedFd, free: OwnedFd },
}

/// The loaded kernel side. Dropping it unloads everything.
#[derive(Debug)]
pub struct Kernel {
    ebpf: Ebpf,
    programs: Programs,
    stub: Option<OwnedFd>,
    /// Whether the kernel side sees what targets map where they had code.
    pub(super) watches_mappings: bool,
    /// Whether resident pages are recorded.
    pub(super) records_pages: bool,
    stack_seed: u64,
    pub(super) task_layout: Result<TaskLayout, LayoutError>,
    features: Features,
    /// Filter of the live set, mapped when it is first needed: to map it takes a tenth of a millisecond.
    pub(super) filter: OnceLock<Arc<SharedWords>>,
}

impl Kernel {
    pub fn load(config: KernelConfig, links: LinkKind) -> Result<Self, LoadError> {
        check_uprobes(Path::new(UPROBE_SOURCE))?;
        let (cpus, page_shift) = (possible_cpus(), page_bytes().trailing_zeros());
        let scratch_areas = cpus + SCRATCH_SHARED;
        let (wakeup_bytes, ring_shift) = (u64::from(config.ring_bytes) / 4, config.ring_bytes.ilog2());
        let unwind_by_tables = u32::from(config.unwind_by_tables);
        let (raw_stacks, raw_areas) = if config.raw_stacks { (1u32, scratch_areas) } else { (0, 1) };
        let task_layout = TaskLayout::of_kernel();
        let task = task_layout.clone().unwrap_or_default();
        // Only session links probe functions that may throw.
        let memory = task.memory.filter(|_| links == LinkKind::Session).unwrap_or_default();
        let mappings_max = map_count_max();
        let mapping = task.mappings.unwrap_or_default();
        let (all_execs, stubs) = (u32::from(config.all_execs), u32::from(config.stubs));
        let features = links.features();
        let faults = FaultGlobals::new(config.pages, &task);
        let (cookies, atomics) = (u32::from(features.cookies), u32::from(features.atomics));
        let (buckets, calls) = if features.maps_calls() { (1, INFLIGHT_CALLS_MAX) } else { (INFLIGHT_BUCKETS, 1) };
        let mut loader = EbpfLoader::new();
        loader
            .override_global("STACK_SEED", &config.stack_seed, true)
            .override_global("WAKEUP_BYTES", &wakeup_bytes, true)
            .override_global("RING_SHIFT", &ring_shift, true)
            .override_global("BACK_PRESSURE_MAX", &config.back_pressure_max, true)
            .override_global("CPUS", &cpus, true)
            .override_global("PAGE_SHIFT", &page_shift, true)
            .override_global("UNWIND_BY_TABLES", &unwind_by_tables, true)
            .override_global("RAW_STACKS", &raw_stacks, true)
            .override_global("ALL_EXECS", &all_execs, true)
            .override_global("THROW_SAFE_BYTES", &config.throw_safe_bytes, true)
            .override_global("MAP_COUNT_MAX", &mappings_max, true)
            .override_global("STUBS", &stubs, true)
            .override_global("COOKIES", &cookies, true)
            .override_global("ATOMICS", &atomics, true)
            .map_max_entries("INFLIGHT", buckets)
            .map_max_entries("INFLIGHT_CALLS", calls)
            .map_max_entries("PROBES", if features.cookies { 1 } else { PROBES_MAX })
            .map_max_entries("ROWS", config.row_cells.max(1))
            .map_max_entries("EVENTS", config.ring_bytes)
            .map_max_entries("LIVE", config.live_blocks_max)
            .map_max_entries("SCRATCH", scratch_areas)
            .map_max_entries("RAW", raw_areas);
        override_task(&mut loader, &task, &memory);
        override_mappings(&mut loader, &mapping);
        faults.set(&mut loader);
        let object = adapt(object()?, features).ok_or_else(|| LoadError::Relocation("it is malformed".to_owned()))?;
        let mut ebpf = loader.load(&object).map_err(refused)?;
        start_log(&mut ebpf);
        let programs = Programs::load(&object, &ebpf, links, config.entries)?;
        let stub = if config.stubs {
            Some(RelocatedObject::new(&object, &ebpf)?.load(STUB, AttachType::UprobeMulti)?)
        } else {
            None
        };
        close_used(&mut ebpf, config.pages);
        let watches_mappings =
            config.unwind_by_tables && task.mappings.is_some() && !Optional::Mappings.is_suppressed();
        Ok(Self {
            ebpf,
            programs,
            stub,
            watches_mappings,
            records_pages: config.pages,
            stack_seed: config.stack_seed,
            task_layout,
            features,
            filter: OnceLock::new(),
        })
    }

    pub(crate) fn records_pages(&self) -> bool {
        self.records_pages
    }

    /// Random number of the session, which also decides which pages are sampled.
    pub(crate) fn stack_seed(&self) -> u64 {
        self.stack_seed
    }

    pub fn take_ring(&mut self) -> Result<Ring, LoadError> {
        let map = self.take_map("EVENTS")?;
        Ring::new(map).map_err(|source| LoadError::Map { name: "EVENTS", source })
    }

    pub fn set_rate(&mut self, heap: HeapId, rate: SamplingRate) -> Result<(), LoadError> {
        let map = self.map_mut("RATES")?;
        let failed = |source| LoadError::Map { name: "RATES", source };
        let mut rates: Array<&mut MapData, SamplingRate> = Array::try_from(map).map_err(failed)?;
        rates.set(u32::from(heap.0), rate, 0).map_err(failed)
    }

    /// Sets the return addresses that identify nested calls of a hook. Must precede attaching it.
    pub fn set_nested_callers(&mut self, hook: HookId, callers: NestedCallers) -> Result<(), LoadError> {
        let map = self.map_mut("NESTED")?;
        let failed = |source| LoadError::Map { name: "NESTED", source };
        let mut nested: Array<&mut MapData, NestedCallers> = Array::try_from(map).map_err(failed)?;
        nested.set(u32::from(hook.0), callers, 0).map_err(failed)
    }

    /// Reason why the kernel side cannot compare the memory of processes with their limits.
    pub(crate) fn limits_error(&self) -> Option<String> {
        match &self.task_layout {
            Ok(layout) if layout.memory.is_some() => None,
            Ok(_) => Some("the kernel's type information lacks what processes have mapped".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Layout for stopping processes at their execs; `None` if the kernel lacks a member, or its memory may not be read.
    pub(crate) fn exec_stop_layout(&self) -> Option<ExecStopLayout> {
        self.task_layout.as_ref().ok()?.exec_stop
    }

    /// Whether links carry cookies. Otherwise [`set_probes`](Self::set_probes) must be called before probes are hit.
    pub fn has_cookies(&self) -> bool {
        self.features.cookies
    }

    /// Sets the cookies of a process's probes by address, for kernels whose links carry none. Fails if the map is full.
    pub(crate) fn set_probes(&self, pid: Pid, probes: &[(TargetAddr, HookCookie)]) -> Result<(), LoadError> {
        let keys: Vec<LiveKey> = probes.iter().map(|(address, _)| LiveKey::new(pid.0, address.0)).collect();
        let cookies: Vec<u64> = probes.iter().map(|(_, cookie)| cookie.pack()).collect();
        let written = write_hash(self.probes()?, &keys, &cookies);
        match written.map_err(|error| LoadError::Probes(error.to_string()))? {
            written if written == keys.len() => Ok(()),
            _ => Err(LoadError::Probes(format!("the map is full ({PROBES_MAX} probes)"))),
        }
    }

    pub(super) fn forget_probes(&self, pid: Pid) -> Result<(), LoadError> {
        if self.features.cookies {
            return Ok(());
        }
        let mut own: Vec<LiveKey> = Vec::new();
        let map = self.probes()?;
        read_hash(map, |keys: &[LiveKey], _: &[u64]| own.extend(keys.iter().filter(|key| key.tgid == pid.0)))
            .and_then(|()| remove_hash(map, &own, |_| ()))
            .map_err(|error| LoadError::Probes(error.to_string()))
    }

    fn probes(&self) -> Result<BorrowedFd<'_>, LoadError> {
        match self.map("PROBES")? {
            aya::maps::Map::HashMap(data) => Ok(data.fd().as_fd()),
            _ => Err(LoadError::Missing("PROBES")),
        }
    }

    /// Takes a map. Succeeds once for each map.
    pub(super) fn take_map(&mut self, name: &'static str) -> Result<aya::maps::Map, LoadError> {
        self.ebpf.take_map(name).ok_or(LoadError::Missing(name))
    }

    pub(super) fn map(&self, name: &'static str) -> Result<&aya::maps::Map, LoadError> {
        self.ebpf.map(name).ok_or(LoadError::Missing(name))
    }

    pub(super) fn map_mut(&mut self, name: &'static str) -> Result<&mut aya::maps::Map, LoadError> {
        self.ebpf.map_mut(name).ok_or(LoadError::Missing(name))
    }

    /// Returns a program of aya's that is not loaded yet.
    pub(super) fn program<'a, P>(&'a mut self, name: &'static str) -> Result<&'a mut P, LoadError>
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        program(&mut self.ebpf, name)
    }

    pub(super) fn own_programs(&self) -> impl Iterator<Item = (&str, &Program)> {
        self.ebpf.programs()
    }

    pub fn link_kind(&self) -> LinkKind {
        match self.programs {
            Programs::Perf { .. } => LinkKind::Perf,
            Programs::Multi { .. } => LinkKind::Multi,
            Programs::Session { .. } => LinkKind::Session,
        }
    }

    /// Returns the programs for probes: for session links and for hooks without a return, or for entries and for returns.
    pub fn hook_programs(&self) -> Result<Vec<BorrowedFd<'_>>, LoadError> {
        Ok(match &self.programs {
            Programs::Session { session, free } => vec![session.as_fd(), free.as_fd()],
            Programs::Perf { entry, at_return } | Programs::Multi { entry, at_return } => {
                vec![entry.as_fd(), at_return.as_fd()]
            }
        })
    }

    /// Returns the program for stubs; `None` unless [`KernelConfig::stubs`] is set.
    pub fn stub_program(&self) -> Option<BorrowedFd<'_>> {
        self.stub.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn own_program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        Some(self.own_programs().find(|(its, _)| *its == name)?.1.fd().ok()?.as_fd())
    }

    pub(super) fn all_programs(&self) -> Vec<BorrowedFd<'_>> {
        let tracepoints = self.own_programs().filter_map(|(_, program)| Some(program.fd().ok()?.as_fd()));
        self.hook_programs().unwrap_or_default().into_iter().chain(self.stub_program()).chain(tracepoints).collect()
    }

    /// Whether the machine code of all programs was readable, so that the absence of private stacks is verified.
    pub fn stacks_verified(&self) -> bool {
        self.all_programs().into_iter().all(private_stack_absent)
    }
}

/// What the program for page faults needs to know.
struct FaultGlobals {
    faults: u32,
    faults_disabled: u32,
    replaces_pages: u32,
    huge_pages: u32,
    returns: ReturnLayout,
}

impl FaultGlobals {
    fn new(pages: bool, task: &TaskLayout) -> Self {
        Self {
            faults: u32::from(pages),
            faults_disabled: task.faults_disabled,
            replaces_pages: u32::from(pages && !may_take_pages_away()),
            huge_pages: u32::from(pages && has_huge_pages()),
            returns: task.returns.unwrap_or_default(),
        }
    }

    fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        loader
            .override_global("FAULTS", &self.faults, true)
            .override_global("TASK_FAULTS_DISABLED_OFFSET", &self.faults_disabled, true)
            .override_global("REPLACES_PAGES", &self.replaces_pages, true)
            .override_global("HUGE_PAGES", &self.huge_pages, true)
            .override_global("TASK_RETURNS_OFFSET", &self.returns.probes, true)
            .override_global("RETURNS_LIST_OFFSET", &self.returns.list, true)
            .override_global("RETURN_STACK_OFFSET", &self.returns.stack, true)
            .override_global("RETURN_ADDRESS_OFFSET", &self.returns.address, true)
            .override_global("RETURN_NEXT_OFFSET", &self.returns.next, true);
    }
}

/// Whether pages of a process may be absent that it has not given back: swapped out, or without access for a while (NUMA balancing).
fn may_take_pages_away() -> bool {
    const BALANCING: &str = "/proc/sys/kernel/numa_balancing";
    const SWAPS: &str = "/proc/swaps";
    const BYTES_MAX: u64 = 1 << 16;
    let text = |path: &str| files::read_text(Path::new(path), BYTES_MAX).unwrap_or_default();
    // The first line is a heading.
    !matches!(text(BALANCING).trim(), "" | "0") || text(SWAPS).lines().count() > 1
}

/// Whether the kernel may map a huge page at the first touch of memory. If that is unknown, it may.
fn has_huge_pages() -> bool {
    const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
    const SETTING_BYTES_MAX: u64 = 4096;
    files::read_text(Path::new(SETTING), SETTING_BYTES_MAX).is_ok_and(|setting| !setting.contains("[never]"))
}

/// Closes the maps that only programs use which have been loaded: these keep them. `pages` if that for page faults is loaded later.
fn close_used(ebpf: &mut Ebpf, pages: bool) {
    for name in LOADED_WITH.into_iter().filter(|name| !pages || *name != CODE_RATES) {
        drop(ebpf.take_map(name));
    }
}

/// Sets the offsets of members of a task, and of the memory of its process.
fn override_task<'a>(loader: &mut EbpfLoader<'a>, task: &'a TaskLayout, memory: &'a MemoryLayout) {
    loader
        .override_global("TASK_TGID_OFFSET", &task.tgid, true)
        .override_global("TASK_MM_OFFSET", &task.mm, true)
        .override_global("TASK_SIGNAL_OFFSET", &task.signal, true)
        .override_global("SIGNAL_LIVE_OFFSET", &task.live, true)
        .override_global("TASK_THREAD_POINTER_OFFSET", &task.thread_pointer, true)
        .override_global("MM_MAP_COUNT_OFFSET", &memory.map_count, true)
        .override_global("MM_TOTAL_VM_OFFSET", &memory.total_vm, true)
        .override_global("MM_DATA_VM_OFFSET", &memory.data_vm, true)
        .override_global("MM_DEF_FLAGS_OFFSET", &memory.def_flags, true)
        .override_global("MM_TASK_SIZE_OFFSET", &memory.task_size, true)
        .override_global("SIGNAL_LIMITS_OFFSET", &memory.limits, true);
}

/// Sets the offsets of what leads from a task to the file that it maps.
fn override_mappings<'a>(loader: &mut EbpfLoader<'a>, mapping: &'a MappingLayout) {
    loader
        .override_global("AREA_LENGTH_OFFSET", &mapping.length, true)
        .override_global("TASK_FILES_OFFSET", &mapping.files, true)
        .override_global("FILES_TABLE_OFFSET", &mapping.table, true)
        .override_global("TABLE_DESCRIPTORS_OFFSET", &mapping.descriptors, true)
        .override_global("FILE_INODE_OFFSET", &mapping.inode, true)
        .override_global("INODE_NUMBER_OFFSET", &mapping.number, true)
        .override_global("INODE_SUPER_OFFSET", &mapping.file_system, true)
        .override_global("SUPER_DEVICE_OFFSET", &mapping.device, true);
}

/// Maps that no program uses which is loaded later.
const LOADED_WITH: [&str; 3] = ["HOOK_TAIL_CALLS", "FREE_TAIL_CALLS", CODE_RATES];
/// The program for page faults, which is loaded later, walks stacks as those of probes do.
const CODE_RATES: &str = "CODE_RATES";

const ENTRY: &str = "hook_entry";
const RETURN: &str = "hook_return";
const SESSION: &str = "hook_session";
const FREE: &str = "hook_free";
const STUB: &str = "hook_stub";

impl Programs {
    fn load(object: &[u8], ebpf: &Ebpf, links: LinkKind, entries: bool) -> Result<Self, LoadError> {
        let object = RelocatedObject::new(object, ebpf)?;
        if links == LinkKind::Session {
            let session = object.load(SESSION, AttachType::UprobeSession)?;
            // Frees need a small program; other entries need a stack, as calls through stubs do.
            let name = if entries { STUB } else { FREE };
            return Ok(Self::Session { session, free: object.load(name, AttachType::UprobeMulti)? });
        }
        if links == LinkKind::Perf {
            let entry = object.load(ENTRY, AttachType::PerfEvent)?;
            return Ok(Self::Perf { entry, at_return: object.load(RETURN, AttachType::PerfEvent)? });
        }
        let entry = object.load(ENTRY, AttachType::UprobeMulti)?;
        Ok(Self::Multi { entry, at_return: object.load(RETURN, AttachType::UprobeMulti)? })
    }
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut P, LoadError>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or(LoadError::Missing(name))?;
    program.try_into().map_err(|_| LoadError::Missing(name))
}

pub(super) fn loaded<'a>(
    name: &'static str,
    fd: Result<&'a ProgramFd, ProgramError>,
) -> Result<&'a ProgramFd, LoadError> {
    fd.map_err(|error| LoadError::program(name, &error.to_string()))
}

/// Forwards log lines of the debug object; the release object has no log map.
fn start_log(ebpf: &mut Ebpf) {
    if let Ok(mut logger) = aya_log::EbpfLogger::init(ebpf) {
        tokio::spawn(async move {
            loop {
                logger.flush();
                tokio::time::sleep(LOG_PERIOD).await;
            }
        });
    }
}

const LOG_PERIOD: Duration = Duration::from_millis(100);
/// Maximum size of an object file. The object with logs has 2 MiB.
const OBJECT_BYTES_MAX: u64 = 64 << 20;

fn object() -> Result<std::borrow::Cow<'static, [u8]>, LoadError> {
    let Some(path) = std::env::var_os(OBJECT_VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(OBJECT.into());
    };
    let path = PathBuf::from(path);
    files::read(&path, OBJECT_BYTES_MAX).map(Into::into).map_err(|source| LoadError::Object { path, source })
}

fn check_uprobes(source: &Path) -> Result<(), LoadError> {
    if source.join("type").exists() { Ok(()) } else { Err(LoadError::NoUprobes(source.to_owned())) }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::fs;

    use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget};

    use super::*;

    #[test]
    fn a_kernel_without_uprobes_has_its_own_error() {
        let error = check_uprobes(Path::new("/sys/bus/event_source/devices/no-such-source")).expect_err("not there");
        assert!(error.to_string().contains("CONFIG_UPROBES"), "{error}");
    }

    #[test]
    fn the_release_object_carries_no_log() {
        let has = |needle: &[u8]| OBJECT.windows(needle.len()).any(|window| window == needle);
        assert!(has(b"hook_session"), "the object has its programs");
        assert!(!has(b"AYA_LOGS"), "the object was built with the `log` feature");
    }

    /// The names of the functions that functions call, call by call.
    fn called_by_functions() -> Vec<String> {
        let object = object::File::parse(OBJECT).expect("an object file");
        // Has the functions that programs call; the programs have sections of their own.
        let text = object.section_by_name(".text").expect("functions");
        let name = |index| object.symbol_by_index(index).and_then(|symbol| symbol.name()).expect("a symbol");
        text.relocations()
            .filter_map(|(_, relocation)| match relocation.target() {
                RelocationTarget::Symbol(index) => Some(name(index).to_owned()),
                _ => None,
            })
            .collect()
    }

    /// The compiler's functions work byte by byte, and took a third of the time of a frame of PHP.
    #[test]
    fn frames_are_added_without_copies_byte_by_byte() {
        let functions = called_by_functions();
        assert!(functions.iter().any(|name| name == "cpython_step"), "calls have relocations: {functions:?}");
        let found: Vec<_> = functions.iter().filter(|name| name.starts_with("mem")).collect();
        assert!(found.is_empty(), "{found:?}: see `zero` in profiler-ebpf/src/asm.rs");
    }

    /// Bytes of stack that a function uses, by its instructions (Documentation/bpf/standardization/instruction-set.rst).
    fn frame_bytes(code: &[[u8; 8]]) -> u64 {
        const FRAME_POINTER: u8 = 10;
        let (mut lowest, mut addresses) = (0, HashSet::new());
        for &[operation, registers, offset_low, offset_high, a, b, c, d] in code {
            let (destination, source) = (registers & 15, registers >> 4);
            let offset = i64::from(i16::from_le_bytes([offset_low, offset_high]));
            match operation & 7 {
                1 if source == FRAME_POINTER => lowest = lowest.min(offset),
                2 | 3 if destination == FRAME_POINTER => lowest = lowest.min(offset),
                // `r = r10`, and `r += constant` after it.
                7 if operation == 0xbf && source == FRAME_POINTER => _ = addresses.insert(destination),
                7 if operation == 0x07 && addresses.remove(&destination) => {
                    lowest = lowest.min(i64::from(i32::from_le_bytes([a, b, c, d])));
                }
                _ => {}
            }
        }
        lowest.unsigned_abs()
    }

    /// Sections and addresses of functions, each with its own bytes of stack and those that it calls.
    type Functions = HashMap<(usize, u64), (u64, Vec<(usize, u64)>)>;

    fn functions_of(object: &object::File<'_>) -> Functions {
        let place = |symbol: &object::Symbol<'_, '_>| Some((symbol.section_index()?.0, symbol.address()));
        let is_function =
            |symbol: &object::Symbol<'_, '_>| symbol.kind() == object::SymbolKind::Text && symbol.size() > 0;
        let function = |symbol: object::Symbol<'_, '_>| {
            let (section, start) = place(&symbol)?;
            let code = object.section_by_index(object::SectionIndex(section)).ok()?;
            let relocated: HashMap<u64, RelocationTarget> =
                code.relocations().map(|(at, relocation)| (at, relocation.target())).collect();
            let (code, _) = code.data_range(start, symbol.size()).ok()??.as_chunks();
            let called =
                (start..).step_by(8).zip(code).filter_map(|(at, &[operation, registers, _, _, a, b, c, d])| {
                    // A call of a function of BPF: of a symbol, or by the distance to the next instruction.
                    let is_call = operation == 0x85 && registers >> 4 == 1;
                    match relocated.get(&at) {
                        _ if !is_call => None,
                        Some(RelocationTarget::Symbol(index)) => place(&object.symbol_by_index(*index).ok()?),
                        _ => {
                            let instructions = i64::from(i32::from_le_bytes([a, b, c, d]));
                            Some((section, at.wrapping_add_signed(8 * (instructions + 1))))
                        }
                    }
                });
            Some(((section, start), (frame_bytes(code), called.collect())))
        };
        object.symbols().filter(is_function).filter_map(function).collect()
    }

    /// Bytes of stack that a function and those that it calls take before Linux 6.8, which rounded each up to 32
    /// (`check_max_stack_depth` in kernel/bpf/verifier.c).
    fn nested_bytes(functions: &Functions, place: (usize, u64)) -> u64 {
        let (own, called) = &functions[&place];
        let most = called.iter().map(|place| nested_bytes(functions, *place)).max();
        own.max(&1).next_multiple_of(32) + most.unwrap_or(0)
    }

    #[test]
    fn stacks_of_nested_functions_fit_on_kernels_that_round_them_up() {
        const STACK_BYTES_MAX: u64 = 512;
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("bpf");
        for name in ["heapbpf-x86_64.bpf.o", "heapbpf-aarch64.bpf.o"] {
            let bytes = fs::read(folder.join(name)).expect("committed");
            let object = object::File::parse(&*bytes).expect("an object file");
            let functions = functions_of(&object);
            let nested = |program: &str| {
                let symbol = object.symbol_by_name(program).expect("it has this program");
                nested_bytes(&functions, (symbol.section_index().expect("it has code").0, symbol.address()))
            };
            for program in [ENTRY, RETURN, SESSION, FREE, STUB] {
                let bytes = nested(program);
                assert!(bytes <= STACK_BYTES_MAX, "`{program}` of {name}: {bytes} bytes");
            }
            assert!(nested(ENTRY) > 2 * nested(FREE), "{name}: calls are followed");
        }
    }

    /// The verifier walks every chain of calls: 32 copies of each of three calls that nest made it take 0.4 s longer.
    #[test]
    fn loops_over_frames_are_not_unrolled() {
        let functions = called_by_functions();
        // Batches of frames are walked from calls, and from page faults.
        for (looped, callers) in
            [("unwind_batch", 2), ("unwind_step", 1), ("frames_of_call", 1), ("interpreter_frames", 1)]
        {
            let calls = functions.iter().filter(|name| *name == looped).count();
            assert_eq!(calls, callers, "calls of `{looped}`: see `UNROLL` in xtask/src/build_ebpf");
        }
    }
}
