//! The kernel's unwind maps, as the table store writes them.

use std::io;

use aya::maps::{HashMap, Map, MapData};
use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};

use super::load::{Kernel, LoadError};
use crate::ids::Pid;
use crate::sys::map_batch::write_array;
use crate::sys::map_memory::write_mapped;
use crate::unwind::store::UnwindMaps;

/// The five maps. Taken from the kernel once.
#[derive(Debug)]
pub struct KernelUnwindMaps {
    rows: MapData,
    pages: MapData,
    rules: MapData,
    mappings: MapData,
    processes: HashMap<MapData, u32, ProcessMappings>,
}

impl KernelUnwindMaps {
    /// Takes the maps.
    ///
    /// # Errors
    ///
    /// When they were taken before, or the object is of another version.
    pub fn take(kernel: &mut Kernel) -> Result<Self, LoadError> {
        let processes = kernel.take_map("PROCESSES")?;
        let failed = |source| LoadError::Map { name: "PROCESSES", source };
        Ok(Self {
            rows: array(kernel, "ROWS")?,
            pages: array(kernel, "PAGES")?,
            rules: array(kernel, "RULES")?,
            mappings: array(kernel, "MAPPINGS")?,
            processes: HashMap::try_from(processes).map_err(failed)?,
        })
    }
}

fn array(kernel: &mut Kernel, name: &'static str) -> Result<MapData, LoadError> {
    match kernel.take_map(name)? {
        Map::Array(data) => Ok(data),
        _ => Err(LoadError::Missing(name)),
    }
}

/// Through the map's memory where that can be had: rows count by the million.
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

    fn set_process(&mut self, pid: Pid, mappings: ProcessMappings) -> io::Result<()> {
        self.processes.insert(pid.0, mappings, 0).map_err(io::Error::other)
    }

    fn remove_process(&mut self, pid: Pid) -> io::Result<()> {
        self.processes.remove(&pid.0).map_err(io::Error::other)
    }
}
