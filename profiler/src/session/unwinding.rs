//! Unwind tables of the targets' modules, and their upload to the kernel side.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::record::Mapped;
use heapbpf_linux::clock;
use heapbpf_linux::proc::maps::Mapping;
use profiler_common::limits::{MAPPINGS_MAX, PROCESS_MAPPINGS_MAX, UNWIND_PAGES_MAX};
use profiler_common::mapped::{Changes, FileKey};
use profiler_common::unwind::{RowCell, Rule, TableRef};
use tracing::{debug, info, trace, warn};

use super::config::UnwindMode;
use super::interpreters::{Found, Interpreters};
use crate::bpf::load::Kernel;
use crate::bpf::unwind_maps::KernelUnwindMaps;
use crate::object::module::ModuleStore;
use crate::process::address_space::{AddressSpace, MappedModule};
use crate::unwind::cache::Cache;
use crate::unwind::runtimes::RuntimePlace;
use crate::unwind::store::{Capacity, MappedCode, NoRule, TableStore};
use crate::unwind::{self, Table};

/// Spare capacity for modules that are mapped later, in cells of two rows: 16 MiB, four times libLLVM.
const SPARE_CELLS: u64 = 2 << 20;
const THREADS_MAX: usize = 8;

/// Files whose place something else has, of one process, whose tables are kept.
const FORMER_MAX: usize = 64;

/// Copies of stacks after a reload of mappings that was of no use to earlier ones.
const COPIES_ON_TRIAL: u32 = 4;

pub(super) struct Tables {
    mode: UnwindMode,
    cache: Option<Cache>,
    /// Those that are not in the kernel's maps yet.
    built: HashMap<ModuleId, Option<Table>>,
    /// Modules for whose tables there was no room.
    dropped: HashSet<ModuleId>,
    room: Room,
    by_frame_pointer: Vec<String>,
    spent: Duration,
}

/// Room for tables that are not in the kernel's maps yet: no more than there. Others are built again when they are needed, one at a
/// time.
#[derive(Debug)]
struct Room {
    bytes_max: u64,
    kept_bytes: AtomicU64,
    /// Cells of two rows of all tables.
    wanted_cells: AtomicU64,
}

impl Room {
    /// Whether a table is kept.
    fn take(&self, table: &Table) -> bool {
        let bytes = table.kernel_bytes() as u64;
        self.wanted_cells.fetch_add(table.rows.len().div_ceil(2) as u64, Ordering::Relaxed);
        let kept = |kept: u64| kept.checked_add(bytes).filter(|kept| *kept <= self.bytes_max);
        self.kept_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, kept).is_ok()
    }
}

impl Tables {
    /// `bytes_max` is the size of the kernel's maps.
    pub(super) fn new(mode: UnwindMode, bytes_max: u64) -> Self {
        let cache = if mode == UnwindMode::FramePointer { None } else { Cache::from_environment() };
        let room = Room { bytes_max, kept_bytes: AtomicU64::new(0), wanted_cells: AtomicU64::new(0) };
        Self {
            mode,
            cache,
            built: HashMap::new(),
            dropped: HashSet::new(),
            room,
            by_frame_pointer: Vec::new(),
            spent: Duration::ZERO,
        }
    }

    /// Builds the tables of all modules of a target. Before probes are attached, so that the first stack is complete.
    pub(super) fn build_all(&mut self, space: &AddressSpace, modules: &ModuleStore) {
        if self.mode == UnwindMode::FramePointer {
            return;
        }
        let is_missing = |id: &ModuleId| !self.built.contains_key(id) && !self.dropped.contains(id);
        let missing: Vec<ModuleId> = space.modules().into_iter().filter(is_missing).collect();
        let started = Instant::now();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut read = Vec::new();
            while let Some(&id) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut table = self.read(id, modules);
                table.iter_mut().for_each(|table| table.rows.shrink_to_fit());
                let is_kept = table.as_ref().is_none_or(|table| self.room.take(table));
                read.push((id, is_kept.then_some(table)));
            }
            read
        };
        let read: Vec<(ModuleId, Option<Option<Table>>)> = thread::scope(|scope| {
            let others = thread::available_parallelism().map_or(0, |cores| cores.get().min(THREADS_MAX) - 1);
            let threads: Vec<_> = (0..others.min(missing.len() / 2)).map(|_| scope.spawn(work)).collect();
            let own = work();
            // Tables of a thread that panicked are read when they are taken.
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).chain(own).collect()
        });
        for (id, table) in read {
            let Some(table) = table else {
                self.dropped.insert(id);
                continue;
            };
            let table = table.map(|table| self.adapt(id, table, modules));
            self.built.insert(id, table);
        }
        self.spent += started.elapsed();
    }

    /// Bytes for the row map: twice what is needed now, if there is room.
    pub(super) fn bytes_wanted(&self) -> u64 {
        let needed = self.room.wanted_cells.load(Ordering::Relaxed) + self.built.len() as u64;
        ((needed * 2).max(needed + SPARE_CELLS) * size_of::<RowCell>() as u64).min(self.room.bytes_max)
    }

    fn take(&mut self, id: ModuleId, modules: &ModuleStore) -> Option<Table> {
        if let Some(table) = self.built.remove(&id) {
            return table;
        }
        let started = Instant::now();
        let table = self.read(id, modules).map(|table| self.adapt(id, table, modules));
        self.spent += started.elapsed();
        table
    }

    fn read(&self, id: ModuleId, modules: &ModuleStore) -> Option<Table> {
        let module = modules.get(id);
        let file = module.image().ok()?;
        let table = match &self.cache {
            Some(cache) => unwind::build_cached(file, cache),
            None => unwind::build(file),
        };
        table.inspect_err(|error| debug!("module {}: {error}", module.path())).ok()
    }

    fn adapt(&mut self, id: ModuleId, mut table: Table, modules: &ModuleStore) -> Table {
        if table.stats.fills_gaps {
            if self.mode == UnwindMode::Tables {
                table.forget_frame_pointers();
            } else {
                let path = modules.get(id).path().to_string();
                if !self.by_frame_pointer.contains(&path) {
                    self.by_frame_pointer.push(path);
                }
            }
        }
        table
    }
}

pub(super) struct Unwinding {
    tables: Tables,
    /// `None` when unwinding by frame pointers only.
    store: Option<TableStore<KernelUnwindMaps>>,
    pub(super) interpreters: Interpreters,
}

impl Unwinding {
    pub(super) fn new(tables: Tables, cells: u32, kernel: &mut Kernel) -> Result<Self> {
        let store = if tables.mode == UnwindMode::FramePointer {
            None
        } else {
            // Code generated at run time has no tables, but mostly keeps frame pointers.
            let generated = if tables.mode == UnwindMode::Tables { TableRef::NONE } else { TableRef::FRAME_POINTER };
            let capacity = Capacity { cells, pages: UNWIND_PAGES_MAX, mappings: MAPPINGS_MAX };
            Some(TableStore::new(KernelUnwindMaps::take(kernel)?, capacity, generated))
        };
        Ok(Self { tables, store, interpreters: Interpreters::default() })
    }

    /// Finds the process's interpreter too, which becomes part of the address space.
    pub(super) fn register(&mut self, space: &mut Arc<AddressSpace>, modules: &mut ModuleStore) -> Result<()> {
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        let Found { interpreter, machine } = self.interpreters.find(space, modules);
        let modules = &*modules;
        let cannot = "cannot write the offsets of an interpreter";
        let names = |place: &Option<RuntimePlace>| place.as_ref().map_or("", |place| place.language.name());
        if !store.set_interpreter(space.pid(), interpreter.as_ref()).context(cannot)? {
            let language = names(&interpreter);
            warn!("process `{}`: too many interpreters: stacks lack its {language} functions", space.pid());
        }
        if !store.set_machine(space.pid(), machine.as_ref()).context(cannot)? {
            let language = names(&machine);
            warn!("process `{}`: too many virtual machines: stacks lack its {language} functions", space.pid());
        }
        let (code, former) = code_of(space, modules);
        trace!("process {}: {} mappings registered after {} changes", space.pid(), code.len(), space.changes());
        let tables = &mut self.tables;
        let (started, spent) = (Instant::now(), tables.spent);
        let without_room = store
            .set_process(space.pid(), (&code, &former), space.changes(), clock::now().monotonic, |id| {
                tables.take(id, modules)
            })
            .with_context(|| format!("cannot write the unwind tables of process `{}`", space.pid()))?;
        let writing = started.elapsed().saturating_sub(tables.spent - spent);
        let building = std::mem::take(&mut tables.spent);
        let milliseconds = |duration: Duration| duration.as_secs_f64() * 1e3;
        info!(
            "unwind tables of process {}: {:.1} ms to build or read, {:.1} ms to write",
            space.pid(),
            milliseconds(building),
            milliseconds(writing)
        );
        for id in without_room {
            let path = modules.get(id).path();
            warn!("no space for the unwind tables of `{path}`: stacks end there; raise `--unwind-memory`");
        }
        Ok(())
    }

    /// Permits copies of a process's stacks before its mappings are registered: building their tables can take longer than
    /// its startup.
    pub(super) fn expect(&mut self, pid: Pid) {
        if let Some(store) = &mut self.store
            && !store.knows(pid)
            && let Err(error) = store.set_process(pid, (&[], &[]), 0, clock::now().monotonic, |_| None)
        {
            debug!("process {pid}: {error}");
        }
    }

    /// Number of changes of a process's mappings that the kernel side has seen.
    pub(super) fn changes(&self, pid: Pid) -> Changes {
        self.store.as_ref().map_or_else(Changes::default, |store| store.changes(pid))
    }

    /// Follows a correction that the kernel side has made. Returns false if the process is to be registered again.
    pub(super) fn correct(&mut self, mapped: &Mapped) -> bool {
        self.store.as_mut().is_none_or(|store| store.correct(mapped.pid, mapped))
    }

    /// Whether the kernel side does not use all that is registered of a process, because it has seen changes since.
    pub(super) fn is_behind(&self, pid: Pid) -> bool {
        self.store.as_ref().is_some_and(|store| store.is_behind(pid))
    }

    /// The unwind rule of an address of a process, by the tables that are registered now, and by those of the second before
    /// `former_at`.
    pub(super) fn rule_at(&self, pid: Pid, address: u64, former_at: Option<MonotonicNanos>) -> Result<Rule, NoRule> {
        self.store.as_ref().map_or(Err(NoRule::NoTable), |store| store.rule_at(pid, address, former_at))
    }

    /// As above, in a file whose first byte has this address, or would have it.
    pub(super) fn rule_in(&self, (file, base): (FileKey, u64), address: u64) -> Result<Rule, NoRule> {
        self.store.as_ref().map_or(Err(NoRule::NoTable), |store| store.rule_in(&file, base, address))
    }

    /// Denies copies of stacks to a process until its mappings are registered again, or [`try_copies`](Self::try_copies).
    pub(super) fn deny_copies(&mut self, pid: Pid) {
        self.permit_copies(pid, 0);
    }

    /// Permits a few copies to a process for which they are denied.
    pub(super) fn try_copies(&mut self, pid: Pid) {
        if self.store.as_ref().is_some_and(|store| store.denies_copies(pid)) {
            self.permit_copies(pid, COPIES_ON_TRIAL);
        }
    }

    fn permit_copies(&mut self, pid: Pid, copies: u32) {
        if let Some(store) = &mut self.store
            && let Err(error) = store.permit_copies(pid, copies)
        {
            debug!("process {pid}: {error}");
        }
    }

    /// As [`forget`](Self::forget), of a process that is no target any more.
    pub(super) fn end(&mut self, pid: Pid) {
        if let Some(store) = &mut self.store
            && let Err(error) = store.forget_process(pid, clock::now().monotonic)
        {
            debug!("process {pid}: {error}");
        }
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        if let Some(store) = &mut self.store
            && let Err(error) = store.remove_process(pid, clock::now().monotonic)
        {
            debug!("process {pid}: {error}");
        }
    }

    pub(super) fn by_frame_pointer(&self) -> &[String] {
        &self.tables.by_frame_pointer
    }
}

/// Code of a process to be registered: what is mapped, and unmapped files where nothing else is, which may be mapped again. Then the
/// files whose place something else has.
fn code_of(space: &AddressSpace, modules: &ModuleStore) -> (Vec<MappedCode>, Vec<MappedCode>) {
    let code = |mapped: &MappedModule| {
        let Mapping { start, end, offset, .. } = mapped.mapping;
        let bias = |id: ModuleId| Some((id, modules.get(id).bias(start, offset)?));
        MappedCode {
            start,
            end,
            module: mapped.module.and_then(bias),
            generated: mapped.module.is_none(),
            file: space.file_of(mapped),
        }
    };
    let mut mapped: Vec<MappedCode> = space.mappings().iter().take(PROCESS_MAPPINGS_MAX).map(code).collect();
    let mut former = Vec::new();
    for old in space.retired().iter().rev().filter(|old| old.module.is_some() && old.mapping.inode != 0) {
        if former.len() == FORMER_MAX || mapped.len() >= PROCESS_MAPPINGS_MAX {
            break;
        }
        let is_gone = space.is_replaced(old);
        let old = code(old);
        let at = mapped.partition_point(|it| it.start < old.start);
        let is_free = !is_gone
            && mapped[..at].last().is_none_or(|it| it.end <= old.start)
            && mapped.get(at).is_none_or(|it| old.end <= it.start);
        if is_free { mapped.insert(at, old) } else { former.push(old) }
    }
    (mapped, former)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapbpf_base::testing::{Running, Workshop};

    #[test]
    fn no_more_tables_are_kept_than_the_kernel_has_room_for() {
        let program = "#include <stdlib.h>\n#include <unistd.h>\nint main(int n, char **a) { sleep(atoi(a[1])); }";
        let workshop = Workshop::new();
        let running = Running::sleep(&workshop.compile("gcc", "program.c", program, &[]));
        let mut modules = ModuleStore::default();
        let mut space = AddressSpace::new(running.pid());
        space.refresh(&mut modules).expect("readable");
        let built = |bytes_max: u64| {
            // Without the user's cache.
            let mut tables = Tables { mode: UnwindMode::Auto, ..Tables::new(UnwindMode::FramePointer, bytes_max) };
            tables.build_all(&space, &modules);
            tables.build_all(&space, &modules);
            tables
        };
        let bytes = |tables: &Tables| tables.built.values().flatten().map(Table::kernel_bytes).sum::<usize>() as u64;
        let all = built(u64::MAX);
        let all_bytes = bytes(&all);
        assert!(all.dropped.is_empty() && all_bytes > 4096, "{all_bytes} bytes");
        let mut some = built(all_bytes - 1);
        assert!(bytes(&some) < all_bytes && !some.built.is_empty());
        assert_eq!(some.bytes_wanted(), all_bytes - 1);
        let dropped: Vec<ModuleId> = some.dropped.iter().copied().collect();
        assert_eq!(dropped.len() + some.built.len(), all.built.len());
        for id in dropped {
            assert_eq!(some.take(id, &modules), all.built[&id], "built when it is needed");
        }
    }
}
