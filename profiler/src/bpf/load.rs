//! Loads the programs.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{Array, MapData};
use aya::programs::{Program, ProgramError, ProgramFd, UProbe};
use aya::{Ebpf, EbpfError, EbpfLoader};
use profiler_common::limits::SCRATCH_SHARED;
use profiler_common::sampling::SamplingRate;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::kernel_types::{LayoutError, TaskLayout};
use super::private_stack;
use super::program::RelocatedObject;
use super::ring::Ring;
use crate::ids::HeapId;
use crate::linux::bpf::AttachType;
use crate::linux::bpf::UPROBE_SOURCE;

/// The release object, built by `cargo xtask build-ebpf`.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/heapbpf.bpf.o"));

/// Names a file to load instead of the built-in object: the debug object, or one that was just rebuilt.
pub(crate) const OBJECT_VARIABLE: &str = "HEAPBPF_BPF_OBJECT";

/// Sizes that are fixed when the programs are loaded.
#[derive(Clone, Copy, Debug)]
pub struct KernelConfig {
    /// Bytes of the ring buffer; a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Blocks that the live set can hold.
    pub live_blocks_max: u32,
    /// Unwind by tables instead of frame pointers.
    pub unwind_by_tables: bool,
    /// Cells of unwind rows, two rows each.
    pub row_cells: u32,
    /// Random, so that a target cannot aim for clashing stack ids.
    pub stack_seed: u64,
    /// Send a copy of every sampled call's stack, for checking the unwinder.
    pub raw_stacks: bool,
    /// Tell of the execs of all processes, not of those of targets alone.
    pub watch_execs: bool,
    /// From this many requested bytes on, a function that may throw is taken to do so: its return is not seen.
    pub throw_safe_bytes: u64,
}

/// Why the kernel side cannot run.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel has no uprobes, or no sysfs is mounted.
    #[error(
        "this kernel has no uprobes: `{0}` is missing (needs CONFIG_UPROBES and CONFIG_UPROBE_EVENTS, and sysfs mounted at /sys)"
    )]
    NoUprobes(PathBuf),
    /// The kernel has no BPF.
    #[error("this kernel has no BPF: the system call is not there (needs CONFIG_BPF_SYSCALL)")]
    NoBpf,
    /// There is no memory for the maps.
    #[error(
        "not enough memory for heapbpf's maps in the kernel: lower `--ring-size`, `--unwind-memory` or `--live-blocks`, or \
         raise the memory limit of the control group that heapbpf runs in (`memory.max`)"
    )]
    NoMemory,
    /// There are no descriptors left for maps and programs.
    #[error(
        "too many open files: heapbpf needs about 50 for its maps and programs, and more for its targets; raise the limit (`ulimit -n`)"
    )]
    NoDescriptors,
    /// An object named by the environment cannot be read.
    #[error("cannot read the BPF object `{path}` that {OBJECT_VARIABLE} names: {source}")]
    Object {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refuses maps or programs.
    #[error("the kernel refuses heapbpf's programs: {0}; run `uname -r` and see docs/kernel-support.md")]
    Refused(#[from] EbpfError),
    /// A program is refused.
    #[error("the kernel refuses the program `{name}`: {reason}; run `uname -r` and see docs/kernel-support.md")]
    Program {
        /// The program.
        name: &'static str,
        /// Why: the end of the verifier's log.
        reason: String,
    },
    /// aya's parser cannot make the programs ready.
    #[error("cannot relocate the BPF object: {0}")]
    Relocation(String),
    /// A program would be corrupted by concurrent threads.
    #[error(
        "the kernel gives the program `{0}` a private stack, which threads that preempt each other would overwrite; \
         heapbpf does not attach it: see docs/kernel-support.md, and please report the kernel's version"
    )]
    PrivateStack(&'static str),
    /// A part that the object should have is not there: the object is of another version.
    #[error("the BPF object has no `{0}`: it is of another version than this binary")]
    Missing(&'static str),
    /// A map cannot be used.
    #[error("BPF map `{name}`: {source}")]
    Map {
        /// The map.
        name: &'static str,
        /// Why.
        source: aya::maps::MapError,
    },
}

impl LoadError {
    /// A refused program. The verifier's last lines say why; the thousands before are how it got there, and go to the log.
    pub(super) fn program(name: &'static str, text: &str) -> Self {
        const LINES: usize = 6;
        tracing::info!("{text}");
        let lines: Vec<&str> = text.lines().collect();
        let reason = if lines.len() <= LINES {
            text.to_owned()
        } else {
            let first: String = lines[0].chars().take(120).collect();
            format!("{first} … {}", lines[lines.len() - LINES..].join("\n"))
        };
        Self::Program { name, reason }
    }
}

/// The kind of links that programs are loaded for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkKind {
    /// One perf event for each probe.
    Perf,
    /// One link for all entries, one for all returns.
    Multi,
    /// One link for all.
    Session,
}

/// The loaded programs.
#[derive(Debug)]
enum Programs {
    /// aya's own.
    Perf,
    Multi {
        entry: OwnedFd,
        at_return: OwnedFd,
    },
    Session(OwnedFd),
}

/// The loaded kernel side. Dropping it takes everything out of the kernel again.
#[derive(Debug)]
pub struct Kernel {
    ebpf: Ebpf,
    programs: Programs,
    task_layout: Result<TaskLayout, LayoutError>,
}

impl Kernel {
    /// Loads all programs; attaches none.
    pub fn load(config: KernelConfig, links: LinkKind) -> Result<Self, LoadError> {
        check_uprobes(Path::new(UPROBE_SOURCE))?;
        let cpus = aya::util::nr_cpus().ok().and_then(|cpus| u32::try_from(cpus).ok()).unwrap_or(1);
        let scratch_areas = cpus + SCRATCH_SHARED;
        let wakeup_bytes = u64::from(config.ring_bytes) / 4;
        let unwind_by_tables = u32::from(config.unwind_by_tables);
        let (raw_stacks, raw_areas) = if config.raw_stacks { (1u32, scratch_areas) } else { (0, 1) };
        let task_layout = TaskLayout::of_kernel();
        let task = task_layout.clone().unwrap_or(TaskLayout { tgid: 0, mm: 0, signal: 0, live: 0 });
        let watch_execs = u32::from(config.watch_execs);
        let mut loader = EbpfLoader::new();
        loader
            .override_global("STACK_SEED", &config.stack_seed, true)
            .override_global("WAKEUP_BYTES", &wakeup_bytes, true)
            .override_global("CPUS", &cpus, true)
            .override_global("UNWIND_BY_TABLES", &unwind_by_tables, true)
            .override_global("RAW_STACKS", &raw_stacks, true)
            .override_global("TASK_TGID_OFFSET", &task.tgid, true)
            .override_global("TASK_MM_OFFSET", &task.mm, true)
            .override_global("TASK_SIGNAL_OFFSET", &task.signal, true)
            .override_global("SIGNAL_LIVE_OFFSET", &task.live, true)
            .override_global("WATCH_EXECS", &watch_execs, true)
            .override_global("THROW_SAFE_BYTES", &config.throw_safe_bytes, true)
            .map_max_entries("ROWS", config.row_cells.max(1))
            .map_max_entries("EVENTS", config.ring_bytes)
            .map_max_entries("LIVE", config.live_blocks_max)
            .map_max_entries("SCRATCH", scratch_areas)
            .map_max_entries("RAW", raw_areas);
        let object = object()?;
        let mut ebpf = loader.load(&object).map_err(refused)?;
        start_log(&mut ebpf);
        let programs = Programs::load(&object, &mut ebpf, links)?;
        Ok(Self { ebpf, programs, task_layout })
    }

    /// The ring. Can be taken once.
    ///
    /// # Errors
    ///
    /// When it was taken before, or cannot be mapped.
    pub fn take_ring(&mut self) -> Result<Ring, LoadError> {
        let map = self.take_map("EVENTS")?;
        Ring::new(map).map_err(|source| LoadError::Map { name: "EVENTS", source })
    }

    /// Sets a heap's sampling rate. Takes effect with the next call.
    pub fn set_rate(&mut self, heap: HeapId, rate: SamplingRate) -> Result<(), LoadError> {
        let map = self.map_mut("RATES")?;
        let failed = |source| LoadError::Map { name: "RATES", source };
        let mut rates: Array<&mut MapData, SamplingRate> = Array::try_from(map).map_err(failed)?;
        rates.set(u32::from(heap.0), rate, 0).map_err(failed)
    }

    /// Takes a map out. Can be done once for each.
    pub(super) fn take_map(&mut self, name: &'static str) -> Result<aya::maps::Map, LoadError> {
        self.ebpf.take_map(name).ok_or(LoadError::Missing(name))
    }

    pub(super) fn map(&self, name: &'static str) -> Result<&aya::maps::Map, LoadError> {
        self.ebpf.map(name).ok_or(LoadError::Missing(name))
    }

    pub(super) fn map_mut(&mut self, name: &'static str) -> Result<&mut aya::maps::Map, LoadError> {
        self.ebpf.map_mut(name).ok_or(LoadError::Missing(name))
    }

    /// A program of aya's, not loaded before.
    pub(super) fn program<'a, P>(&'a mut self, name: &'static str) -> Result<&'a mut P, LoadError>
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        program(&mut self.ebpf, name)
    }

    /// All programs of aya's, loaded or not, with their names.
    pub(super) fn own_programs(&self) -> impl Iterator<Item = (&str, &Program)> {
        self.ebpf.programs()
    }

    /// Where the kernel's tasks have their members, as the programs were told.
    pub(super) fn task_layout(&self) -> Result<TaskLayout, LayoutError> {
        self.task_layout.clone()
    }

    /// What the programs are loaded for.
    pub fn link_kind(&self) -> LinkKind {
        match self.programs {
            Programs::Perf => LinkKind::Perf,
            Programs::Multi { .. } => LinkKind::Multi,
            Programs::Session(_) => LinkKind::Session,
        }
    }

    /// The programs for probes: of sessions one, else that for entries and that for returns.
    ///
    /// # Errors
    ///
    /// When the object is of another version.
    pub fn hook_programs(&self) -> Result<Vec<BorrowedFd<'_>>, LoadError> {
        Ok(match &self.programs {
            Programs::Session(program) => vec![program.as_fd()],
            Programs::Multi { entry, at_return } => vec![entry.as_fd(), at_return.as_fd()],
            Programs::Perf => {
                let fd = |name| match self.ebpf.program(name) {
                    Some(Program::UProbe(program)) => Ok(loaded(name, program.fd())?.as_fd()),
                    _ => Err(LoadError::Missing(name)),
                };
                vec![fd(ENTRY)?, fd(RETURN)?]
            }
        })
    }
}

const ENTRY: &str = "hook_entry";
const RETURN: &str = "hook_return";
const SESSION: &str = "hook_session";

/// Programs for perf events, which aya loads.
pub(super) const PERF_PROGRAMS: [&str; 2] = [ENTRY, RETURN];

impl Programs {
    fn load(object: &[u8], ebpf: &mut Ebpf, links: LinkKind) -> Result<Self, LoadError> {
        if links == LinkKind::Perf {
            for name in PERF_PROGRAMS {
                let program = program::<UProbe>(ebpf, name)?;
                program.load().map_err(|error| LoadError::program(name, &error.to_string()))?;
                private_stack::refuse(name, loaded(name, program.fd())?)?;
            }
            return Ok(Self::Perf);
        }
        let object = RelocatedObject::new(object, ebpf)?;
        if links == LinkKind::Session {
            return Ok(Self::Session(object.load(SESSION, AttachType::UprobeSession)?));
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

/// The descriptor of a program of aya's that has been loaded.
pub(super) fn loaded<'a>(
    name: &'static str,
    fd: Result<&'a ProgramFd, ProgramError>,
) -> Result<&'a ProgramFd, LoadError> {
    fd.map_err(|error| LoadError::program(name, &error.to_string()))
}

/// The debug object writes log lines; the release object has no log map.
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

/// How often the debug object's log lines are fetched.
const LOG_PERIOD: Duration = Duration::from_millis(100);

fn object() -> Result<std::borrow::Cow<'static, [u8]>, LoadError> {
    let Some(path) = std::env::var_os(OBJECT_VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(OBJECT.into());
    };
    let path = PathBuf::from(path);
    fs::read(&path).map(Into::into).map_err(|source| LoadError::Object { path, source })
}

fn check_uprobes(source: &Path) -> Result<(), LoadError> {
    if source.join("type").exists() { Ok(()) } else { Err(LoadError::NoUprobes(source.to_owned())) }
}

/// A missing system call and missing memory have their own messages: they do not concern the programs.
fn refused(error: EbpfError) -> LoadError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = cause {
        match error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            Some(libc::ENOSYS) => return LoadError::NoBpf,
            Some(libc::ENOMEM) => return LoadError::NoMemory,
            Some(libc::EMFILE) => return LoadError::NoDescriptors,
            _ => cause = error.source(),
        }
    }
    LoadError::Refused(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_uprobes_is_told_apart() {
        let error = check_uprobes(Path::new("/sys/bus/event_source/devices/no-such-source")).expect_err("not there");
        assert!(error.to_string().contains("CONFIG_UPROBES"), "{error}");
    }

    #[test]
    fn a_kernel_without_bpf_and_one_without_memory_are_told_apart() {
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::ENOSYS) };
        assert!(matches!(refused(error), LoadError::NoBpf));
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::ENOMEM) };
        assert!(matches!(refused(error), LoadError::NoMemory));
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::EMFILE) };
        assert!(matches!(refused(error), LoadError::NoDescriptors));
        let error = EbpfError::FileError { path: PathBuf::new(), error: io::Error::from_raw_os_error(libc::EPERM) };
        assert!(matches!(refused(error), LoadError::Refused(_)));
    }

    #[test]
    fn the_release_object_carries_no_log() {
        let has = |needle: &[u8]| OBJECT.windows(needle.len()).any(|window| window == needle);
        assert!(has(b"hook_session"), "the object has its programs");
        assert!(!has(b"AYA_LOGS"), "the object was built with the `log` feature");
    }
}
