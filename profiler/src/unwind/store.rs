//! Which modules' tables lie where in the kernel's maps, and which process uses them.
//!
//! A module's table is loaded once, however many processes map it. It stays when the last one ends, because the next is
//! likely to map it again, and goes when its room is needed. Knows no file and no kernel: tables come from a function,
//! maps are a trait.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::time::Duration;

use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule, TableRef};
use tracing::warn;

use super::ranges::Ranges;
use super::rules::RuleTable;
use super::table::Table;
use crate::address::{LinkAddr, TargetAddr};
use crate::ids::{ModuleId, Pid};
use crate::units::MonotonicNanos;

/// The kernel's maps.
pub(crate) trait UnwindMaps {
    /// Writes cells of rows from this index on.
    fn write_rows(&mut self, first: u32, cells: &[RowCell]) -> io::Result<()>;
    /// Writes pages from this index on.
    fn write_pages(&mut self, first: u32, pages: &[PageRows]) -> io::Result<()>;
    /// Writes rules from this index on.
    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> io::Result<()>;
    /// Writes mappings from this index on.
    fn write_mappings(&mut self, first: u32, mappings: &[ProcessMapping]) -> io::Result<()>;
    /// Says where a process's mappings lie.
    fn set_process(&mut self, pid: Pid, mappings: ProcessMappings) -> io::Result<()>;
    /// Forgets a process. One that is not there is no error: the kernel side forgets processes too.
    fn remove_process(&mut self, pid: Pid) -> io::Result<()>;
}

/// Elements that the kernel's maps hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// Cells of two rows.
    pub cells: u32,
    /// Pages of 64 KiB of code.
    pub pages: u32,
    /// Mappings, over all processes.
    pub mappings: u32,
}

/// One executable mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MappedCode {
    /// First address.
    pub start: TargetAddr,
    /// Address after the last.
    pub end: TargetAddr,
    /// What is mapped and its load bias (target address minus link address, wrapping); `None` where that is not known.
    pub module: Option<(ModuleId, u64)>,
    /// No file is mapped: code that was made at run time.
    pub generated: bool,
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
    processes: HashMap<Pid, Registered>,
    /// Mappings that a walk may still be reading.
    retired: Vec<(MonotonicNanos, Range<u32>)>,
    uses: u64,
    /// How generated code is unwound.
    generated: TableRef,
}

/// Where a module's table lies.
#[derive(Clone, Debug)]
struct Placement {
    base: LinkAddr,
    cells: Range<u32>,
    pages: Range<u32>,
    /// Processes that map it.
    users: u32,
    /// Rises with each use: the lowest goes first.
    last_use: u64,
}

#[derive(Debug)]
struct Registered {
    mappings: Range<u32>,
    modules: Vec<ModuleId>,
}

/// How long a walk that began before a change may go on. A program runs for microseconds; being preempted for longer than
/// this in the midst of one costs a wrong frame at worst, never a wrong access.
const WALK_MAX: Duration = Duration::from_secs(1);

impl<M: UnwindMaps> TableStore<M> {
    /// An empty store over empty maps. `generated` says how code that was made at run time is unwound.
    pub(crate) fn new(maps: M, capacity: Capacity, generated: TableRef) -> Self {
        Self {
            maps,
            cells: Ranges::new(capacity.cells),
            pages: Ranges::new(capacity.pages),
            mappings: Ranges::new(capacity.mappings),
            rules: RuleTable::new(),
            rules_written: 0,
            tables: HashMap::new(),
            processes: HashMap::new(),
            retired: Vec::new(),
            uses: 0,
            generated,
        }
    }

    /// Says what a process maps, by rising address, in place of what was said before. Tables that are not there are asked
    /// of `build`; `None` is a module without code. Returns the modules that found no room: stacks through them end there.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be written, or have no room for the mappings.
    pub(crate) fn set_process(
        &mut self,
        pid: Pid,
        code: &[MappedCode],
        now: MonotonicNanos,
        mut build: impl FnMut(ModuleId) -> Option<Table>,
    ) -> io::Result<Vec<ModuleId>> {
        self.reclaim(now);
        // The new users come before the old ones go, or a table in use by both could be evicted in between.
        let mut modules = Vec::new();
        let written = self.acquire_all(code, &mut modules, &mut build).and_then(|without_room| {
            let mappings = self.write_process(pid, code)?;
            Ok((mappings, without_room))
        });
        let (mappings, without_room) = match written {
            Ok(written) => written,
            Err(error) => {
                self.release(&modules);
                return Err(error);
            }
        };
        if let Some(before) = self.processes.insert(pid, Registered { mappings, modules }) {
            self.retire(before, now);
        }
        Ok(without_room)
    }

    /// A process has ended, or is another program. What it used is given back whatever becomes of its entry in the map.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be written.
    pub(crate) fn remove_process(&mut self, pid: Pid, now: MonotonicNanos) -> io::Result<()> {
        let Some(before) = self.processes.remove(&pid) else { return Ok(()) };
        let removed = self.maps.remove_process(pid);
        self.retire(before, now);
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
        ProcessMapping { start: mapped.start.0, end: mapped.end.0, table }
    }

    /// One more user of each module's table. `modules` are those whose user it is, after an error too; returned are those
    /// that found no room.
    fn acquire_all(
        &mut self,
        code: &[MappedCode],
        modules: &mut Vec<ModuleId>,
        build: &mut impl FnMut(ModuleId) -> Option<Table>,
    ) -> io::Result<Vec<ModuleId>> {
        let mut without_room = Vec::new();
        for module in code.iter().filter_map(|mapped| mapped.module).map(|(module, _)| module) {
            if modules.contains(&module) || without_room.contains(&module) {
                continue;
            }
            if self.acquire(module, build)? {
                modules.push(module);
            } else {
                without_room.push(module);
            }
        }
        Ok(without_room)
    }

    /// Writes a process's mappings and says where they lie.
    fn write_process(&mut self, pid: Pid, code: &[MappedCode]) -> io::Result<Range<u32>> {
        let rows: Vec<ProcessMapping> = code.iter().map(|mapped| self.mapping(mapped)).collect();
        let length = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let Some(mappings) = self.mappings.take(length) else {
            return Err(io::Error::other("more mappings than the kernel's map holds"));
        };
        let place = ProcessMappings { first: mappings.start, count: length };
        let written = self.maps.write_mappings(mappings.start, &rows).and_then(|()| self.maps.set_process(pid, place));
        if let Err(error) = written {
            // No walk has been told of them.
            self.mappings.give_back(mappings);
            return Err(error);
        }
        Ok(mappings)
    }

    /// One more user of a module's table; loads it where it is not. False when there is no room.
    fn acquire(&mut self, module: ModuleId, build: &mut impl FnMut(ModuleId) -> Option<Table>) -> io::Result<bool> {
        if !self.tables.contains_key(&module) {
            let Some(table) = build(module) else {
                return Ok(true);
            };
            let Some((cells, pages)) = self.room(&table) else {
                warn!("no room for the unwind table of module {}: {} bytes", module.0, table.kernel_bytes());
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

    /// Room for a table, made by evicting tables that nobody uses, the longest unused first.
    fn room(&mut self, table: &Table) -> Option<(Range<u32>, Range<u32>)> {
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
            let victim = unused.min_by_key(|(_, placement)| placement.last_use).map(|(module, _)| *module)?;
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

    fn retire(&mut self, before: Registered, now: MonotonicNanos) {
        self.release(&before.modules);
        self.retired.push((now, before.mappings));
    }

    fn release(&mut self, modules: &[ModuleId]) {
        for module in modules {
            if let Some(placement) = self.tables.get_mut(module) {
                placement.users -= 1;
            }
        }
    }

    /// Gives back mappings that no walk reads any more.
    fn reclaim(&mut self, now: MonotonicNanos) {
        let mappings = &mut self.mappings;
        self.retired.retain(|(since, range)| {
            let old = u128::from(now.0.saturating_sub(since.0)) > WALK_MAX.as_nanos();
            if old {
                mappings.give_back(range.clone());
            }
            !old
        });
    }
}

#[cfg(test)]
mod tests;
