//! Places modules' tables in the kernel's maps, and counts the processes that use them. A table is loaded once, and
//! stays after the last process exits, because another is likely to map the module again, until its space is needed.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::time::Duration;

use heapbpf_base::address::{LinkAddr, TargetAddr};
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::record::Mapped;
use profiler_common::limits::RUNTIMES_MAX;
use profiler_common::mapped::{Changes, CodeFile, FileKey, GENERATED};
use profiler_common::unwind::{
    COPIES_MAX, PageRows, ProcessMapping, ProcessMappings, ReadTables, RowCell, Rule, TableRef, UnwindRow, find_rule,
};
use range_alloc::RangeAllocator;
use tracing::{debug, warn};

use super::runtimes::{RuntimePlace, Runtimes};
use super::table::{RuleTable, Table};

/// Slices are written from index `first` on.
pub(crate) trait UnwindMaps {
    fn write_rows(&mut self, first: u32, cells: &[RowCell]) -> io::Result<()>;
    fn write_pages(&mut self, first: u32, pages: &[PageRows]) -> io::Result<()>;
    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> io::Result<()>;
    fn write_mappings(&mut self, first: u32, mappings: &[ProcessMapping]) -> io::Result<()>;
    fn set_process(&mut self, pid: Pid, mappings: ProcessMappings) -> io::Result<()>;
    fn write_runtime(&mut self, index: u32, runtime: &RuntimePlace) -> io::Result<()>;
    /// Sets or removes the table of a file.
    fn set_code_file(&mut self, file: FileKey, table: Option<CodeFile>) -> io::Result<()>;
    /// Number of changes of a process's mappings that the kernel side has seen.
    fn changes(&self, pid: Pid) -> Changes;
    /// Forgets what the kernel side has seen of a process that is no target any more.
    fn forget_changes(&mut self, pid: Pid);
    /// Whether a registration lacks changes that the kernel side has seen.
    fn is_behind(&self, pid: Pid, registered: &ProcessMappings) -> bool;
    fn read_cell(&self, index: u32) -> Option<RowCell>;
    fn read_page(&self, index: u32) -> Option<PageRows>;
    /// Succeeds if the process is missing: the kernel side removes processes too.
    fn remove_process(&mut self, pid: Pid) -> io::Result<()>;
}

/// Why an address has no unwind rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRule {
    /// It is in no registered mapping.
    Unmapped,
    /// Its module has no table.
    NoTable,
    /// Its module's table has no code there.
    Gap,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    pub cells: u32,
    /// Pages of 64 KiB of code.
    pub pages: u32,
    /// Of all processes.
    pub mappings: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedCode {
    pub start: TargetAddr,
    pub end: TargetAddr,
    /// With the load bias (target address minus link address, wrapping); `None` if unknown.
    pub module: Option<(ModuleId, u64)>,
    /// Anonymous memory: code generated at run time.
    pub generated: bool,
    /// The file, and the address that its first byte has or would have, wrapping; `None` for memory without a file.
    pub file: Option<(FileKey, u64)>,
}

#[derive(Debug)]
pub(crate) struct TableStore<M> {
    maps: M,
    cells: Ranges,
    pages: Ranges,
    mappings: Ranges,
    rules: RuleTable,
    rules_written: usize,
    tables: HashMap<ModuleId, Placement>,
    /// Files whose tables the kernel side finds by itself: those of modules with users.
    files: HashMap<FileKey, (ModuleId, CodeFile)>,
    processes: HashMap<Pid, Registered>,
    retired: Vec<Retired>,
    uses: u64,
    /// Of the last registered mappings.
    serial: u32,
    generated: TableRef,
    interpreters: Runtimes,
    machines: Runtimes,
}

#[derive(Debug)]
struct Placement {
    base: LinkAddr,
    cells: Range<u32>,
    pages: Range<u32>,
    users: u32,
    /// Increases with each use.
    last_use: u64,
}

#[derive(Debug)]
struct Registered {
    mappings: ProcessMappings,
    /// As in the kernel's map.
    rows: Vec<ProcessMapping>,
    modules: Vec<ModuleId>,
}

impl Registered {
    fn mapping_at(&self, address: u64) -> Option<&ProcessMapping> {
        let behind = self.rows.partition_point(|row| row.start <= address);
        self.rows[..behind].last().filter(|row| row.contains(address))
    }
}

/// Former mappings of a process: a walk may still read them, and copies of stacks that were made under them may be unread.
#[derive(Debug)]
struct Retired {
    since: MonotonicNanos,
    /// `None` if the process has ended or executed another program.
    pid: Option<Pid>,
    registered: Registered,
}

/// Maximum duration of a walk that began before a change. Programs run for microseconds; if one is preempted for
/// longer, the result is a wrong frame at worst, never an invalid access.
const WALK_MAX: Duration = Duration::from_secs(1);

fn is_over(since: MonotonicNanos, now: MonotonicNanos) -> bool {
    u128::from(now.0.saturating_sub(since.0)) > WALK_MAX.as_nanos()
}

impl<M: UnwindMaps> TableStore<M> {
    pub(crate) fn new(maps: M, capacity: Capacity, generated: TableRef) -> Self {
        Self {
            maps,
            cells: Ranges::new(capacity.cells),
            pages: Ranges::new(capacity.pages),
            mappings: Ranges::new(capacity.mappings),
            rules: RuleTable::default(),
            rules_written: 0,
            tables: HashMap::new(),
            files: HashMap::new(),
            processes: HashMap::new(),
            retired: Vec::new(),
            uses: 0,
            serial: 0,
            generated,
            interpreters: Runtimes::new(RUNTIMES_MAX),
            machines: Runtimes::new(RUNTIMES_MAX),
        }
    }

    /// Number of changes of a process's mappings that the kernel side has seen: those that mappings have which are read from now on.
    pub(crate) fn changes(&self, pid: Pid) -> Changes {
        self.maps.changes(pid)
    }

    /// Registers the code of a process, as it was after so many changes. `former` is code whose place other code has now: its tables
    /// are kept, because it may come back. `code` must be sorted by address; `build` returns `None` for a module without code. Returns the modules whose
    /// tables do not fit: stacks end in them. Fails if the maps cannot be written, or have no space for the mappings.
    pub(crate) fn set_process(
        &mut self,
        pid: Pid,
        (code, former): (&[MappedCode], &[MappedCode]),
        changes: u32,
        now: MonotonicNanos,
        mut build: impl FnMut(ModuleId) -> Option<Table>,
    ) -> io::Result<Vec<ModuleId>> {
        self.reclaim(now);
        // Acquire new tables before releasing old ones, or a table used by both could be evicted in between.
        let mut modules = Vec::new();
        let written = self.acquire_all(code, &mut modules, &mut build).and_then(|omitted| {
            self.acquire_all(former, &mut modules, &mut build)?;
            let (mappings, rows) = self.write_process(pid, code, changes)?;
            // Afterwards: the kernel side uses them to correct what has just been written.
            self.write_files(former.iter().chain(code))?;
            Ok((mappings, rows, omitted))
        });
        let (mappings, rows, omitted) = match written {
            Ok(written) => written,
            Err(error) => {
                self.release(&modules);
                return Err(error);
            }
        };
        if let Some(registered) = self.processes.insert(pid, Registered { mappings, rows, modules }) {
            self.retired.push(Retired { since: now, pid: Some(pid), registered });
        }
        Ok(omitted)
    }

    /// Sets the interpreter of a process, from its next registration on. Returns false if the map is full.
    pub(crate) fn set_interpreter(&mut self, pid: Pid, interpreter: Option<&RuntimePlace>) -> io::Result<bool> {
        let Self { interpreters, maps, .. } = self;
        interpreters.set(pid, interpreter, |index, interpreter| maps.write_runtime(index, interpreter))
    }

    /// As above, of its virtual machine.
    pub(crate) fn set_machine(&mut self, pid: Pid, machine: Option<&RuntimePlace>) -> io::Result<bool> {
        let Self { machines, maps, .. } = self;
        machines.set(pid, machine, |index, machine| maps.write_runtime(index, machine))
    }

    /// Tables and mappings are released even if the map cannot be written.
    pub(crate) fn remove_process(&mut self, pid: Pid, now: MonotonicNanos) -> io::Result<()> {
        self.interpreters.release(pid);
        self.machines.release(pid);
        for retired in self.retired.iter_mut().filter(|retired| retired.pid == Some(pid)) {
            retired.pid = None;
        }
        let Some(registered) = self.processes.remove(&pid) else { return Ok(()) };
        let removed = self.maps.remove_process(pid);
        self.retired.push(Retired { since: now, pid: None, registered });
        removed
    }

    fn mapping(&self, mapped: &MappedCode) -> ProcessMapping {
        let table = match mapped.module.and_then(|(module, bias)| Some((self.tables.get(&module)?, bias))) {
            Some((placement, bias)) => TableRef {
                start: placement.base.0.wrapping_add(bias),
                page_first: placement.pages.start,
                page_count: placement.pages.end - placement.pages.start,
            },
            None if mapped.generated => self.generated,
            None => TableRef::NONE,
        };
        let identity = mapped.file.map_or(GENERATED, |(file, base)| file.identity(base));
        ProcessMapping { start: mapped.start.0, end: mapped.end.0, table, identity }
    }

    /// Writes the tables of files that are not known yet.
    fn write_files<'a>(&mut self, code: impl Iterator<Item = &'a MappedCode>) -> io::Result<()> {
        // `None` for a file whose table is at several distances from its first byte.
        let mut found: HashMap<FileKey, (ModuleId, Option<CodeFile>)> = HashMap::new();
        for mapped in code {
            let (Some((module, _)), Some((file, base))) = (mapped.module, mapped.file) else { continue };
            let row = self.mapping(mapped);
            if row.table.is_table() {
                let new = CodeFile::of(&row, base);
                let same = found.get(&file).filter(|(of, _)| *of == module);
                let whole = same.map_or(Some(new), |(_, known)| known.and_then(|known| known.with(&new)));
                found.insert(file, (module, whole));
            }
        }
        for (file, (module, table)) in found {
            let known = self.files.get(&file).copied();
            match table {
                Some(table) if known == Some((module, table)) => {}
                // The kernel's map may be full: then the agent registers what is mapped again.
                Some(table) if self.maps.set_code_file(file, Some(table)).is_ok() => {
                    self.files.insert(file, (module, table));
                }
                _ => {
                    self.maps.set_code_file(file, None)?;
                    self.files.remove(&file);
                }
            }
        }
        Ok(())
    }

    /// Follows a correction that the kernel side has made to the rows of a process. Returns false if the table that it has used is not
    /// known any more.
    pub(crate) fn correct(&mut self, pid: Pid, mapped: &Mapped) -> bool {
        let base = mapped.start.0.wrapping_sub(mapped.offset.0);
        let Some(process) = self.processes.get_mut(&pid) else { return true };
        let known = self.files.get(&mapped.file).filter(|_| mapped.is_corrected);
        let identity = if mapped.file.inode == 0 { GENERATED } else { mapped.file.identity(base) };
        let (start, end) = (mapped.start.0, mapped.end.0);
        let row = match known {
            Some((_, file)) => ProcessMapping {
                start: base.wrapping_add(file.code_start),
                end: base.wrapping_add(file.code_end),
                table: file.table(base),
                identity,
            },
            None => ProcessMapping { start, end, table: TableRef::CHANGED, identity },
        };
        let count = process.rows.len();
        process.rows.retain(|row| row.end <= start || end <= row.start);
        if process.rows.len() == count {
            return true;
        }
        let at = process.rows.partition_point(|old| old.start < row.start);
        process.rows.insert(at, row);
        if let Some((module, _)) = known
            && !process.modules.contains(module)
            && let Some(placement) = self.tables.get_mut(module)
        {
            placement.users += 1;
            process.modules.push(*module);
        }
        known.is_some() || !mapped.is_corrected
    }

    /// As [`remove_process`](Self::remove_process), of a process that is no target any more.
    pub(crate) fn forget_process(&mut self, pid: Pid, now: MonotonicNanos) -> io::Result<()> {
        self.maps.forget_changes(pid);
        self.remove_process(pid, now)
    }

    /// Whether the kernel side does not use all rows of a process, because it has seen changes that these may lack.
    pub(crate) fn is_behind(&self, pid: Pid) -> bool {
        let registered = self.processes.get(&pid).map(|process| &process.mappings);
        registered.is_some_and(|registered| self.maps.is_behind(pid, registered))
    }

    /// Appends modules whose users it increments to `modules`, also on an error. Returns those whose tables do not fit.
    fn acquire_all(
        &mut self,
        code: &[MappedCode],
        modules: &mut Vec<ModuleId>,
        build: &mut impl FnMut(ModuleId) -> Option<Table>,
    ) -> io::Result<Vec<ModuleId>> {
        let mut omitted = Vec::new();
        for module in code.iter().filter_map(|mapped| mapped.module).map(|(module, _)| module) {
            if modules.contains(&module) || omitted.contains(&module) {
                continue;
            }
            if self.acquire(module, build)? {
                modules.push(module);
            } else {
                omitted.push(module);
            }
        }
        Ok(omitted)
    }

    fn write_process(
        &mut self,
        pid: Pid,
        code: &[MappedCode],
        changes: u32,
    ) -> io::Result<(ProcessMappings, Vec<ProcessMapping>)> {
        let rows: Vec<ProcessMapping> = code.iter().map(|mapped| self.mapping(mapped)).collect();
        let length = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let Some(mappings) = self.mappings.take(length) else {
            return Err(io::Error::other("more mappings than the kernel's map holds"));
        };
        let (first, serial) = (mappings.start, self.next_serial());
        let (interpreter, machine) = (self.interpreters.number(pid), self.machines.number(pid));
        let (count, copies) = (length, COPIES_MAX);
        let range = ProcessMappings { first, count, serial, copies, interpreter, machine, changes };
        let written = self.maps.write_mappings(first, &rows).and_then(|()| self.maps.set_process(pid, range));
        if let Err(error) = written {
            // No walk can be using them.
            self.mappings.give_back(mappings);
            return Err(error);
        }
        Ok((range, rows))
    }

    /// Permits the kernel side to send so many copies of stacks until the process's mappings are registered again.
    pub(crate) fn permit_copies(&mut self, pid: Pid, copies: u32) -> io::Result<()> {
        let Some(process) = self.processes.get_mut(&pid) else { return Ok(()) };
        process.mappings.copies = copies;
        self.maps.set_process(pid, process.mappings)
    }

    pub(crate) fn knows(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Whether the last permission was for no copies.
    pub(crate) fn denies_copies(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.mappings.copies == 0)
    }

    /// Searches the unwind rule of an address as the kernel side does. Where nothing is mapped, the mappings of the last
    /// second count if `former_at` is the current time: a library may be unloaded before the agent reads the copies of its
    /// stacks. Not before the mappings have been read again, because another one may be there by now.
    pub(crate) fn rule_at(&self, pid: Pid, address: u64, former_at: Option<MonotonicNanos>) -> Result<Rule, NoRule> {
        let now = self.processes.get(&pid).into_iter();
        let is_recent =
            |retired: &&Retired| retired.pid == Some(pid) && former_at.is_some_and(|now| !is_over(retired.since, now));
        let former = self.retired.iter().rev().filter(is_recent);
        let mut registered = now.chain(former.map(|retired| &retired.registered));
        let mapping = registered.find_map(|registered| registered.mapping_at(address)).ok_or(NoRule::Unmapped)?;
        let table = &mapping.table;
        if table.is_table() {
            find_rule(self, table, address).ok_or(NoRule::Gap)
        } else if table.is_frame_pointer() {
            Ok(Rule::FRAME_POINTER)
        } else if table.is_changed() {
            Err(NoRule::Unmapped)
        } else {
            Err(NoRule::NoTable)
        }
    }

    /// Searches the unwind rule of an address in a file whose first byte has this address, or would have it.
    pub(crate) fn rule_in(&self, file: &FileKey, base: u64, address: u64) -> Result<Rule, NoRule> {
        let (_, file) = self.files.get(file).ok_or(NoRule::Unmapped)?;
        find_rule(self, &file.table(base), address).ok_or(NoRule::Gap)
    }

    /// The kernel side caches rules by serial, so a serial must not be that of other mappings. 2^31 registrations take years.
    fn next_serial(&mut self) -> u32 {
        // Serials with the highest bit are those of rows that the kernel side has corrected.
        self.serial = if self.serial < u32::MAX >> 1 { self.serial + 1 } else { 1 };
        self.serial
    }

    /// Returns false if the table does not fit.
    fn acquire(&mut self, module: ModuleId, build: &mut impl FnMut(ModuleId) -> Option<Table>) -> io::Result<bool> {
        if !self.tables.contains_key(&module) {
            let Some(table) = build(module) else {
                return Ok(true);
            };
            let Some((cells, pages)) = self.allocate(&table) else {
                warn!("unwind table of module {} does not fit: {} bytes", module.0, table.kernel_bytes());
                return Ok(false);
            };
            if let Err(error) = self.upload(&table, &cells, &pages) {
                self.cells.give_back(cells);
                self.pages.give_back(pages);
                return Err(error);
            }
            self.tables.insert(module, Placement { base: table.base, cells, pages, users: 0, last_use: 0 });
        }
        self.uses += 1;
        if let Some(placement) = self.tables.get_mut(&module) {
            placement.users += 1;
            placement.last_use = self.uses;
        }
        Ok(true)
    }

    /// Evicts the least recently used of the unused tables if necessary.
    fn allocate(&mut self, table: &Table) -> Option<(Range<u32>, Range<u32>)> {
        let cells = u32::try_from(table.rows.len().div_ceil(2)).ok()?;
        let pages = u32::try_from(table.pages.len()).ok()?;
        loop {
            if let Some(taken) = self.cells.take(cells) {
                if let Some(pages) = self.pages.take(pages) {
                    return Some((taken, pages));
                }
                self.cells.give_back(taken);
            }
            let unused = self.tables.iter().filter(|(_, placement)| placement.users == 0);
            let oldest = unused.min_by_key(|(_, placement)| placement.last_use).map(|(module, _)| *module);
            let Some(victim) = oldest else {
                self.retire_tables()?;
                continue;
            };
            let placement = self.tables.remove(&victim)?;
            self.cells.give_back(placement.cells);
            self.pages.give_back(placement.pages);
        }
    }

    fn upload(&mut self, table: &Table, cells: &Range<u32>, pages: &Range<u32>) -> io::Result<()> {
        let numbers = table.number_rules(&mut self.rules);
        let rules = self.rules.rules();
        let first = u32::try_from(self.rules_written).unwrap_or(u32::MAX);
        self.maps.write_rules(first, &rules[self.rules_written..])?;
        self.rules_written = rules.len();
        self.maps.write_rows(cells.start, &table.cells(&numbers).collect::<Vec<_>>())?;
        self.maps.write_pages(pages.start, &table.pages_at(cells.start * 2).collect::<Vec<_>>())
    }

    /// Releases the tables of former mappings. Returns `None` if they have none.
    fn retire_tables(&mut self) -> Option<()> {
        let mut modules = Vec::new();
        for Retired { registered, .. } in &mut self.retired {
            registered.rows.clear();
            modules.append(&mut registered.modules);
        }
        self.release(&modules);
        (!modules.is_empty()).then_some(())
    }

    fn release(&mut self, modules: &[ModuleId]) {
        for module in modules {
            let Some(placement) = self.tables.get_mut(module) else { continue };
            placement.users -= 1;
            if placement.users == 0 {
                let Self { files, maps, .. } = self;
                for (file, _) in files.extract_if(|_, (of, _)| of == module) {
                    if let Err(error) = maps.set_code_file(file, None) {
                        debug!("table of a file: {error}");
                    }
                }
            }
        }
    }

    fn reclaim(&mut self, now: MonotonicNanos) {
        let is_old = |retired: &mut Retired| is_over(retired.since, now);
        let old: Vec<Retired> = self.retired.extract_if(.., is_old).collect();
        for Retired { registered: Registered { mappings, modules, .. }, .. } in old {
            self.release(&modules);
            self.mappings.give_back(mappings.first..mappings.first + mappings.count);
        }
    }
}

impl<M: UnwindMaps> ReadTables for TableStore<M> {
    fn row(&self, index: u32) -> Option<UnwindRow> {
        self.maps.read_cell(index >> 1).map(|cell| cell.row(index))
    }

    fn page(&self, index: u32) -> Option<PageRows> {
        self.maps.read_page(index)
    }

    fn rule(&self, index: u16) -> Option<Rule> {
        self.rules.rules().get(usize::from(index)).copied()
    }
}

#[derive(Debug)]
struct Ranges(RangeAllocator<u32>);

impl Ranges {
    fn new(capacity: u32) -> Self {
        Self(RangeAllocator::new(0..capacity))
    }

    fn take(&mut self, length: u32) -> Option<Range<u32>> {
        if length == 0 { Some(0..0) } else { self.0.allocate_range(length).ok() }
    }

    fn give_back(&mut self, range: Range<u32>) {
        if !range.is_empty() {
            self.0.free_range(range);
        }
    }
}

#[cfg(test)]
mod tests;
