//! Counts the objects in the heaps of a process's runtimes by type, while the process runs.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_base::language::Language;
use heapbpf_ledger::model::ObjectTypes;
use heapbpf_linux::clock;
use heapbpf_linux::patience::within;

use crate::interpreter::implementation::Found;
use crate::interpreter::memory::PresentMemory;
use crate::interpreter::{self, Process};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;

/// A count that takes longer waits for memory that the process withholds.
const COUNT_TIME: Duration = Duration::from_secs(60);

/// What was counted of a runtime, or why it was not.
pub(crate) struct Counted {
    pub(crate) language: Language,
    /// `None` if heapbpf does not know how.
    pub(crate) types: Option<Result<ObjectTypes, String>>,
}

/// The runtimes of a process, whose objects are to be counted.
pub(crate) struct Objects {
    pid: Pid,
    /// Runtimes, and the load biases of their modules.
    runtimes: Vec<(Found, u64)>,
    /// Of the program that runs now: not of one that it executes.
    memory: PresentMemory,
}

impl Objects {
    pub(crate) fn open(pid: Pid) -> Result<Self> {
        let mut modules = ModuleStore::default();
        let mut space = AddressSpace::new(pid);
        space.refresh(&mut modules).with_context(|| format!("cannot read the mappings of process `{pid}`"))?;
        let runtime = |id: ModuleId| {
            let module = modules.get(id);
            let mapped = space.mappings().iter().find(|mapped| mapped.module == Some(id))?;
            let bias = module.bias(mapped.mapping.start, mapped.mapping.offset)?;
            Some((interpreter::find(module).ok()??, bias))
        };
        let runtimes = space.modules().into_iter().filter_map(runtime).collect();
        let memory = PresentMemory::open(pid).with_context(|| format!("cannot read the memory of process `{pid}`"))?;
        Ok(Self { pid, runtimes, memory })
    }

    /// Counts the objects of all runtimes. Reads only what is in memory, and neither stops nor changes the process.
    pub(crate) fn count(&self) -> Result<Vec<Counted>> {
        let pid = self.pid;
        let memory = self.memory.again(pid).with_context(|| format!("cannot read the memory of process `{pid}`"))?;
        let runtimes = self.runtimes.clone();
        let count = move || {
            let counted = runtimes.into_iter().map(|(Found { language, runtime, .. }, bias)| {
                let process = Process { pid, bias, uses_musl: false, control_block: None, code: Vec::new() };
                let types = runtime.heap().map(|heap| heap.count(&process, &memory, clock::now().monotonic));
                Counted { language, types }
            });
            counted.collect()
        };
        match within(COUNT_TIME, count) {
            Some(counted) => Ok(counted),
            None => bail!("cannot count the objects of process `{pid}`: reads of its memory do not end"),
        }
    }
}
