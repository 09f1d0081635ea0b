//! Results of the checks for probes of other tools in one recording.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use heapbpf_report::text::{counted, printable};
use tracing::warn;

use crate::object::module::ModuleStore;
use crate::probe::foreign::{self, Found};
use crate::probe::leftover::CodeLocation;
use crate::probe::plan::PlannedHook;

#[derive(Debug, Default)]
pub(super) struct ForeignProbes {
    /// Breakpoints that targets had before heapbpf attached.
    breakpoints: BTreeSet<CodeLocation>,
    is_checked: bool,
    count_max: Option<u64>,
}

impl ForeignProbes {
    pub(super) fn add_breakpoints(&mut self, found: Vec<CodeLocation>) {
        self.breakpoints.extend(found);
    }

    pub(super) fn is_checked(&self) -> bool {
        self.is_checked
    }

    /// Maximum number of foreign probes in any check; `None` where the kernel does not list probes.
    pub(super) fn count_max(&self) -> Option<u64> {
        self.count_max
    }

    /// Checks for foreign probes, and warns when it finds the first ones. `own` are heapbpf's programs.
    pub(super) fn check<'a>(
        &mut self,
        own: &[BorrowedFd<'_>],
        hooks: impl Iterator<Item = &'a PlannedHook>,
        modules: &ModuleStore,
    ) {
        self.is_checked = true;
        let found = foreign::find(own, hooks, modules, &self.breakpoints);
        if found.count > 0 && self.count_max.is_none_or(|before| before == 0) {
            warn!(
                "other tools have {} on hooked functions ({}): each slows down the targets' calls; find the tools with \
                 `bpftool link show` or `perf probe --list`, and end those that are not needed",
                counted(found.count, "probe"),
                functions(&found)
            );
        }
        self.count_max = self.count_max.max(found.known_count());
    }
}

fn functions(found: &Found<'_>) -> String {
    let of_file = |(path, functions): (&&str, &Vec<&str>)| format!("{} of `{}`", names(functions), printable(path));
    found.functions.iter().map(of_file).collect::<Vec<_>>().join("; ")
}

const NAMES_MAX: usize = 4;

fn names(functions: &[&str]) -> String {
    let named: Vec<String> = functions.iter().take(NAMES_MAX).map(|function| format!("`{function}`")).collect();
    match functions.len().saturating_sub(NAMES_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_functions_are_cut() {
        assert_eq!(names(&["malloc", "free"]), "`malloc`, `free`");
        assert_eq!(names(&["a", "b", "c", "d", "e", "f"]), "`a`, `b`, `c`, `d` and 2 more");
    }
}
