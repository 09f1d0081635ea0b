//! Which heaps are recorded, and at which interval.

use std::fmt;
use std::str::FromStr;

use heapbpf_base::units::parse_bytes;
use heapbpf_ledger::model::HeapProfile;
use profiler_common::limits::INTERVAL_BYTES_MAX;
use thiserror::Error;

/// Name of the heap of mappings. It is recorded on request only: other heaps allocate most of the mapped memory.
pub(crate) const MMAP: &str = "mmap";
/// Name of the heap of resident pages. Beside other heaps, it has those that have none of their memory.
pub(crate) const PAGES: &str = HeapProfile::PAGES;
/// Name of the heap of Go programs, as their runtime samples it. It is recorded on request only: by default, its memory is in the pages.
pub(crate) const GO: &str = HeapProfile::GO;
pub(crate) const ALL: &str = "all";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapSelection {
    /// Names of the only heaps to record; empty means [`ALL`], which may also stand beside others (`all`, `mmap`).
    pub only: Vec<String>,
    pub excluded: Vec<String>,
    pub intervals: Vec<HeapInterval>,
    /// Whether resident pages are recorded beside all other heaps, where they can be.
    pub has_pages: bool,
}

impl HeapSelection {
    pub fn wants(&self, heap: &str) -> bool {
        let named = |name: &str| self.only.iter().any(|only| only == name);
        let default = match heap {
            MMAP | GO => false,
            PAGES => self.has_pages && self.only.is_empty(),
            _ => self.only.is_empty() || named(ALL),
        };
        (default || named(heap)) && !self.excluded.iter().any(|excluded| excluded == heap)
    }

    /// Whether the user has named the heap of pages.
    pub(crate) fn requires_pages(&self) -> bool {
        self.wants(PAGES) && !self.only.is_empty()
    }

    /// Whether no function is hooked: only resident pages are recorded.
    pub(crate) fn is_pages_alone(&self) -> bool {
        self.requires_pages() && self.only.iter().all(|only| only == PAGES)
    }

    /// Whether no function is hooked: only what the runtime of Go has sampled is recorded.
    pub(crate) fn is_go_alone(&self) -> bool {
        self.wants(GO) && self.only.iter().all(|only| only == GO)
    }

    /// Fails if heaps or intervals were named that exclude each other.
    pub fn check(&self) -> Result<(), SelectionError> {
        match self.interval_bytes(GO) {
            Some(_) => Err(SelectionError::GoInterval),
            None if self.wants(GO) && self.wants(PAGES) => Err(SelectionError::GoAndPages),
            None => Ok(()),
        }
    }

    /// The heap's own interval in bytes, if it has one. The last interval given counts.
    pub fn interval_bytes(&self, heap: &str) -> Option<u32> {
        self.intervals.iter().rev().find(|interval| interval.heap == heap).map(|interval| interval.bytes)
    }
}

/// Writes the selection as in `` `libc`, `cuda` `` or `` all but `jemalloc` ``.
impl fmt::Display for HeapSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.only.as_slice() {
            [] => f.write_str(ALL)?,
            only => write!(f, "`{}`", only.join("`, `"))?,
        }
        match self.excluded.as_slice() {
            [] => Ok(()),
            excluded => write!(f, " but `{}`", excluded.join("`, `")),
        }
    }
}

/// Why a selection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SelectionError {
    #[error("`--heap-interval go=…`: the program's own runtime samples heap `go`, at its `runtime.MemProfileRate`")]
    GoInterval,
    #[error("`--heap go` and `--heap pages`: the pages of Go's heap would count twice; name one of the two")]
    GoAndPages,
}

/// A heap's own interval, written `NAME=BYTES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapInterval {
    pub heap: String,
    /// Mean bytes between samples, at least 1.
    pub bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IntervalError {
    #[error("`{0}` is not `NAME=BYTES`; write it like `libc=64KiB`")]
    Form(String),
    #[error("`{0}` is not an interval; write a size from 1 to 1GiB like 4096, 64KiB or 1M")]
    Size(String),
}

impl FromStr for HeapInterval {
    type Err = IntervalError;

    fn from_str(text: &str) -> Result<Self, IntervalError> {
        let parts = text.split_once('=').filter(|(heap, bytes)| !heap.is_empty() && !bytes.is_empty());
        let (heap, bytes) = parts.ok_or_else(|| IntervalError::Form(text.to_owned()))?;
        Ok(Self { heap: heap.to_owned(), bytes: interval_bytes(bytes)? })
    }
}

pub fn interval_bytes(text: &str) -> Result<u32, IntervalError> {
    let bytes = parse_bytes(text).filter(|bytes| (1..=INTERVAL_BYTES_MAX).contains(bytes));
    bytes.and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(|| IntervalError::Size(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(only: &[&str], excluded: &[&str]) -> HeapSelection {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        HeapSelection { only: owned(only), excluded: owned(excluded), ..HeapSelection::default() }
    }

    #[test]
    fn heaps_are_selected_by_name() {
        let check = |only: &[&str], excluded: &[&str], heap: &str, expected: bool| {
            assert_eq!(selection(only, excluded).wants(heap), expected, "{only:?} {excluded:?} {heap}");
        };
        check(&[], &[], "libc", true);
        check(&[], &[], MMAP, false);
        check(&["cuda"], &[], "libc", false);
        check(&["cuda", "libc"], &[], "libc", true);
        check(&["all", "mmap"], &[], "libc", true);
        check(&["all", "mmap"], &[], MMAP, true);
        check(&["all"], &[], MMAP, false);
        check(&[], &[], PAGES, false);
        check(&["all"], &[], PAGES, false);
        check(&["pages"], &[], PAGES, true);
        check(&["pages"], &[], "libc", false);
        check(&[], &[], GO, false);
        check(&["all"], &[], GO, false);
        check(&["go"], &[], GO, true);
        check(&[], &["libc"], "libc", false);
        check(&["libc"], &["libc"], "libc", false);
    }

    #[test]
    fn pages_complete_the_default_selection() {
        let with_pages =
            |only: &[&str], excluded: &[&str]| HeapSelection { has_pages: true, ..selection(only, excluded) };
        assert!(with_pages(&[], &[]).wants(PAGES) && !with_pages(&[], &[]).requires_pages());
        assert!(!with_pages(&[], &[PAGES]).wants(PAGES));
        assert!(!with_pages(&["libc"], &[]).wants(PAGES));
        assert!(with_pages(&[PAGES], &[]).is_pages_alone() && !with_pages(&[], &[]).is_pages_alone());
        assert!(!with_pages(&["all", PAGES], &[]).is_pages_alone());
    }

    #[test]
    fn the_heap_of_go_has_its_own_interval_and_no_pages() {
        assert!(selection(&["go"], &[]).is_go_alone() && !selection(&["go", "all"], &[]).is_go_alone());
        assert_eq!(selection(&["go", "all"], &[]).check(), Ok(()));
        assert_eq!(selection(&["go", PAGES], &[]).check(), Err(SelectionError::GoAndPages));
        let intervals = vec![HeapInterval { heap: GO.to_owned(), bytes: 4096 }];
        let selection = HeapSelection { intervals, ..HeapSelection::default() };
        assert_eq!(selection.check(), Err(SelectionError::GoInterval));
    }

    #[test]
    fn intervals_are_sizes_of_at_least_one_byte() {
        let check = |text: &str, expected: Option<(&str, u32)>| {
            let parsed = text.parse::<HeapInterval>().ok();
            assert_eq!(parsed.as_ref().map(|parsed| (&*parsed.heap, parsed.bytes)), expected, "{text}");
        };
        check("libc=64KiB", Some(("libc", 65_536)));
        check("cuda=1", Some(("cuda", 1)));
        for bad in ["libc", "=1", "libc=", "libc=0", "libc=-1", "libc=2GiB", "libc=many", "libc=9999999999999999999999"]
        {
            check(bad, None);
        }
    }

    #[test]
    fn the_last_interval_of_a_heap_counts() {
        let intervals = ["libc=1", "cuda=2", "libc=3"].map(|text| text.parse().expect("well formed")).to_vec();
        let selection = HeapSelection { intervals, ..HeapSelection::default() };
        assert_eq!(selection.interval_bytes("libc"), Some(3));
        assert_eq!(selection.interval_bytes("cuda"), Some(2));
        assert_eq!(selection.interval_bytes("jemalloc"), None);
    }
}
