//! Which hooks a program that has just begun will need, before its modules are mapped: probes can be attached to a file
//! for a process that has not mapped it yet, and are there when it does.

use std::collections::HashMap;

use super::hooks::Hooks;
use crate::ids::HookId;
use crate::probe::plan::Plan;
use crate::proc::executable::FileIdentity;

/// What programs needed that were seen before; for others, the C libraries.
#[derive(Debug, Default)]
pub(super) struct Predictions {
    by_executable: HashMap<FileIdentity, Vec<HookId>>,
    c_libraries: Vec<HookId>,
}

/// Heaps that a program has unless it brings its own.
const C_LIBRARIES: [&str; 2] = ["libc", "musl"];

/// Executables that are remembered.
const EXECUTABLES_MAX: usize = 4096;

impl Predictions {
    /// A program has turned out to need these.
    pub(super) fn learn(&mut self, executable: Option<FileIdentity>, hooks: &Hooks, plan: &Plan) {
        for id in hooks.ids().filter(|&id| C_LIBRARIES.contains(&plan.hook(id).hook.heap.as_str())) {
            if !self.c_libraries.contains(&id) {
                self.c_libraries.push(id);
            }
        }
        if let Some(executable) = executable {
            if self.by_executable.len() >= EXECUTABLES_MAX {
                self.by_executable.clear();
            }
            self.by_executable.insert(executable, hooks.ids().collect());
        }
    }

    /// What this program will need.
    pub(super) fn of(&self, executable: Option<FileIdentity>) -> &[HookId] {
        executable.and_then(|executable| self.by_executable.get(&executable)).unwrap_or(&self.c_libraries)
    }
}
