//! Where a module's symbol tables are, and how much of them is read.

use heapbpf_base::ids::Pid;
use object::elf as abi;
use tracing::{debug, warn};

use super::elf::{Elf, Section};

/// Of `.dynsym`, its names and its versions, each. Large real ones: 4 MiB of symbols and 8 MiB of names in JavaScript engines, some
/// tens of MiB in libraries of templates for machine learning. A file may be sparse, so that large tables cost only who reads them.
const DYNAMIC_BYTES_MAX: u64 = 1 << 26;
/// Of `.symtab`, and its names. Programs of 200,000 functions have 8 and 30 MiB; what a browser with all symbols defines beyond
/// `.dynsym` is not worth the time.
const STATIC_BYTES_MAX: u64 = 1 << 27;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SymbolSource {
    Dynamic,
    /// `.symtab`: all symbols, including local functions, unless it was stripped.
    Static,
}

impl SymbolSource {
    pub(super) fn bytes_max(self) -> u64 {
        match self {
            Self::Dynamic => DYNAMIC_BYTES_MAX,
            Self::Static => STATIC_BYTES_MAX,
        }
    }
}

/// The sections of a table.
pub(super) struct Sections<'a> {
    pub(super) symbols: &'a Section,
    pub(super) strings: &'a Section,
    pub(super) versions: Option<&'a Section>,
}

impl<'a> Sections<'a> {
    pub(super) fn find(elf: &'a Elf, source: SymbolSource) -> Option<Self> {
        let of_kind = |kind| elf.sections.iter().find(|section| section.kind == kind);
        let (symbols, versions) = match source {
            SymbolSource::Dynamic => (of_kind(abi::SHT_DYNSYM)?, of_kind(abi::SHT_GNU_VERSYM)),
            SymbolSource::Static => (of_kind(abi::SHT_SYMTAB)?, None),
        };
        Some(Self { symbols, strings: elf.sections.get(symbols.link as usize)?, versions })
    }
}

/// Size of the table in which functions are searched. `None` if it exceeds a limit, and is not read.
fn searched_bytes(elf: &Elf) -> Option<u64> {
    let source = if elf.is_static { SymbolSource::Static } else { SymbolSource::Dynamic };
    let Some(Sections { symbols, strings, versions }) = Sections::find(elf, source) else { return Some(0) };
    let sizes = [Some(symbols), Some(strings), versions].into_iter().flatten().map(|section| section.size_bytes);
    sizes.map(|bytes| (bytes <= source.bytes_max()).then_some(bytes)).sum()
}

/// Of the symbol tables of one process in which functions are searched, each several times. Those of a browser, or of a program for
/// machine learning, have less than 100 MiB together.
const SYMBOLS_BYTES_MAX: u64 = 256 << 20;
/// Larger than those of C libraries, which are read in any case.
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// What may still be read for a process.
#[derive(Debug)]
pub(super) struct SymbolBudget {
    left_bytes: u64,
    is_exceeded: bool,
}

impl Default for SymbolBudget {
    fn default() -> Self {
        Self { left_bytes: SYMBOLS_BYTES_MAX, is_exceeded: false }
    }
}

impl SymbolBudget {
    /// Whether the symbol tables of a module may be read. The first that may not is named to the user.
    pub(super) fn take(&mut self, path: &str, pid: Pid, elf: &Elf) -> bool {
        let bytes = searched_bytes(elf);
        if bytes.is_some_and(|bytes| bytes <= SMALL_BYTES_MAX) {
            return true;
        }
        let left = bytes.and_then(|bytes| self.left_bytes.checked_sub(bytes));
        match left {
            Some(left) => self.left_bytes = left,
            None if self.is_exceeded => debug!("`{path}` of process {pid}: its symbol tables are too large"),
            None => warn!(
                "`{path}` of process {pid}: its symbol tables are too large, or those of the process are together: allocators in it \
                 are not found"
            ),
        }
        self.is_exceeded |= left.is_none();
        left.is_some()
    }
}
