//! This program as something to be probed: where in its file the functions are that were made for it.

use std::fs::File;
use std::path::Path;

use crate::address::{FileOffset, TargetAddr};
use crate::ids::Pid;
use crate::linux::feature::Spot;
use crate::linux::proc::maps::{self, Mapping};

/// The file that this process runs, whatever became of its name.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// This program's file and the mapping of its functions.
pub(crate) struct Subject {
    file: File,
    mapping: Mapping,
}

impl Subject {
    /// Finds the functions.
    pub(crate) fn find() -> Result<Self, String> {
        let address = TargetAddr(Spot::Emulated.address());
        let mappings = maps::executable_mappings(Pid(std::process::id())).map_err(|error| error.to_string())?;
        let mapping = mappings.into_iter().find(|mapping| (mapping.start..mapping.end).contains(&address));
        let mapping = mapping.ok_or("heapbpf's own code is not where it should be")?;
        let file = File::open(Path::new(PROGRAM)).map_err(|error| format!("cannot open `{PROGRAM}`: {error}"))?;
        Ok(Self { file, mapping })
    }

    /// The file, open.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// A function's first instruction in the file.
    pub(crate) fn offset_of(&self, spot: Spot) -> FileOffset {
        FileOffset(spot.address().wrapping_sub(self.mapping.start.0).wrapping_add(self.mapping.offset.0))
    }

    /// Any instruction in the file that can be probed.
    pub(crate) fn offset(&self) -> u64 {
        self.offset_of(Spot::Emulated).0
    }
}
