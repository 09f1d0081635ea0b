//! Which hooks a program that has just begun will need, before its modules are mapped: probes can be attached to a file
//! for a process that has not mapped it yet, and are there when it does.

use std::collections::HashMap;

use super::hooks::Hooks;
use crate::ids::HookId;
use crate::linux::proc::maps::FileIdentity;
use crate::probe::plan::Plan;

/// What programs needed that were seen before; for others, the C libraries.
#[derive(Debug, Default)]
pub(super) struct Predictions {
    by_executable: HashMap<FileIdentity, Vec<HookId>>,
    c_libraries: Vec<Vec<HookId>>,
}

/// Heaps that a program has unless it brings its own.
const C_LIBRARIES: [&str; 2] = ["libc", "musl"];

/// C libraries that a program which was never seen before may have: each costs a link.
const C_LIBRARIES_MAX: usize = 2;

/// Executables that are remembered.
const EXECUTABLES_MAX: usize = 4096;

impl Predictions {
    /// A program has turned out to need these.
    pub(super) fn learn(&mut self, executable: Option<FileIdentity>, hooks: &Hooks, plan: &Plan) {
        let of_libraries: Vec<HookId> =
            hooks.ids().filter(|&id| C_LIBRARIES.contains(&plan.hook(id).hook.heap.as_str())).collect();
        if !of_libraries.is_empty() {
            // The latest first: programs that begin one after the other mostly use the same.
            self.c_libraries.retain(|known| *known != of_libraries);
            self.c_libraries.insert(0, of_libraries);
            self.c_libraries.truncate(C_LIBRARIES_MAX);
        }
        if let Some(executable) = executable {
            if self.by_executable.len() >= EXECUTABLES_MAX {
                self.by_executable.clear();
            }
            self.by_executable.insert(executable, hooks.ids().collect());
        }
    }

    /// What this program will need.
    pub(super) fn of(&self, executable: Option<FileIdentity>) -> Vec<HookId> {
        let known = executable.and_then(|executable| self.by_executable.get(&executable));
        known.cloned().unwrap_or_else(|| self.c_libraries.concat())
    }
}
