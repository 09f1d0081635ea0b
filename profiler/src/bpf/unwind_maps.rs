//! The kernel's unwind maps, as written by the table store.

use std::io;
use std::os::fd::AsFd;

use aya::maps::{HashMap, Map, MapData, MapError};
use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use heapbpf_linux::bpf_map::{read_array, write_array, write_mapped};
use profiler_common::interpreter::Runtime;
use profiler_common::mapped::{Changes, CodeFile, FileKey, MappingState};
use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};

use super::load::{Kernel, LoadError};
use super::processes::{PROCESSES, is_missing};
use crate::unwind::runtimes::RuntimePlace;
use crate::unwind::store::UnwindMaps;

const CODE_FILES: &str = "CODE_FILES";
const STATES: &str = "MAPPING_STATES";

#[derive(Debug)]
pub(crate) struct KernelUnwindMaps {
    rows: MapData,
    pages: MapData,
    rules: MapData,
    mappings: MapData,
    /// With the structures of runtimes.
    runtimes: Vec<(Runtime, MapData)>,
    processes: HashMap<MapData, u32, ProcessMappings>,
    code_files: HashMap<MapData, FileKey, CodeFile>,
    states: HashMap<MapData, u32, MappingState>,
}

impl KernelUnwindMaps {
    /// Takes the maps. Fails if they were taken before, or the object is of another version.
    pub(crate) fn take(kernel: &mut Kernel) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Map { name: PROCESSES, source };
        // The kernel side's copy stays in `kernel`, which removes processes without tables too.
        let Map::HashMap(data) = kernel.map(PROCESSES)? else {
            return Err(LoadError::Missing(PROCESSES));
        };
        let second = data.fd().as_fd().try_clone_to_owned().map_err(|error| failed(MapError::IoError(error)))?;
        let processes = Map::HashMap(MapData::from_fd(second).map_err(failed)?);
        Ok(Self {
            rows: array(kernel, "ROWS")?,
            pages: array(kernel, "PAGES")?,
            rules: array(kernel, "RULES")?,
            mappings: array(kernel, "MAPPINGS")?,
            runtimes: Language::with_functions()
                .map(|(_, functions)| Ok((functions.runtime, array(kernel, functions.map)?)))
                .collect::<Result<_, LoadError>>()?,
            processes: HashMap::try_from(processes).map_err(failed)?,
            code_files: HashMap::try_from(kernel.take_map(CODE_FILES)?)
                .map_err(|source| LoadError::Map { name: CODE_FILES, source })?,
            states: HashMap::try_from(kernel.take_map(STATES)?)
                .map_err(|source| LoadError::Map { name: STATES, source })?,
        })
    }
}

fn array(kernel: &mut Kernel, name: &'static str) -> Result<MapData, LoadError> {
    match kernel.take_map(name)? {
        Map::Array(data) => Ok(data),
        _ => Err(LoadError::Missing(name)),
    }
}

/// Writes through the map's memory if it can be mapped: there are millions of rows.
fn write_large<V: aya::Pod>(map: &MapData, first: u32, values: &[V]) -> io::Result<()> {
    write_mapped(map.fd(), first, values).or_else(|_| write_array(map.fd(), first, values))
}

impl UnwindMaps for KernelUnwindMaps {
    fn write_rows(&mut self, first: u32, cells: &[RowCell]) -> io::Result<()> {
        write_large(&self.rows, first, cells)
    }

    fn write_pages(&mut self, first: u32, pages: &[PageRows]) -> io::Result<()> {
        write_large(&self.pages, first, pages)
    }

    fn write_rules(&mut self, first: u32, rules: &[Rule]) -> io::Result<()> {
        write_array(self.rules.fd(), first, rules)
    }

    fn write_mappings(&mut self, first: u32, mappings: &[ProcessMapping]) -> io::Result<()> {
        write_array(self.mappings.fd(), first, mappings)
    }

    fn write_runtime(&mut self, index: u32, place: &RuntimePlace) -> io::Result<()> {
        let (_, map) = self
            .runtimes
            .iter()
            .find(|(runtime, _)| *runtime == place.functions.runtime)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        place.value.write(map.fd().as_fd(), index)
    }

    fn read_cell(&self, index: u32) -> Option<RowCell> {
        read_array(self.rows.fd(), index).ok()
    }

    fn read_page(&self, index: u32) -> Option<PageRows> {
        read_array(self.pages.fd(), index).ok()
    }

    fn set_process(&mut self, pid: Pid, mappings: ProcessMappings) -> io::Result<()> {
        self.processes.insert(pid.0, mappings, 0).map_err(io::Error::other)
    }

    fn set_code_file(&mut self, file: FileKey, table: Option<CodeFile>) -> io::Result<()> {
        match table {
            Some(table) => self.code_files.insert(file, table, 0).map_err(io::Error::other),
            None => match self.code_files.remove(&file) {
                Err(error) if !is_missing(&error) => Err(io::Error::other(error)),
                _ => Ok(()),
            },
        }
    }

    fn changes(&self, pid: Pid) -> Changes {
        self.states.get(&pid.0, 0).map_or_else(|_| Changes::default(), |state| state.counts())
    }

    fn forget_changes(&mut self, pid: Pid) {
        // It is missing if nothing has changed, and after the process's exit.
        let _ = self.states.remove(&pid.0);
    }

    fn is_behind(&self, pid: Pid, registered: &ProcessMappings) -> bool {
        let state = self.states.get(&pid.0, 0).ok();
        state.is_some_and(|it| it.changes != registered.changes && it.corrected != registered.serial)
    }

    fn remove_process(&mut self, pid: Pid) -> io::Result<()> {
        match self.processes.remove(&pid.0) {
            Err(error) if !is_missing(&error) => Err(io::Error::other(error)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::fixture;
    use crate::bpf::load::LinkKind;

    #[test]
    fn removing_a_process_that_the_kernel_side_removed_succeeds() {
        let mut kernel = fixture::kernel(LinkKind::Perf);
        let mut maps = KernelUnwindMaps::take(&mut kernel).expect("not taken yet");
        let mappings =
            ProcessMappings { first: 3, count: 4, serial: 5, copies: 6, interpreter: 7, machine: 8, changes: 9 };
        let (executed, other) = (Pid(1), Pid(2));
        for pid in [executed, other] {
            maps.set_process(pid, mappings).expect("there is room");
        }
        kernel.forget_target(executed).expect("its mappings are there");
        maps.remove_process(executed).expect("it need not be there");
        assert_eq!(maps.processes.get(&executed.0, 0).ok(), None);
        assert_eq!(maps.processes.get(&other.0, 0).ok(), Some(mappings));
    }
}
