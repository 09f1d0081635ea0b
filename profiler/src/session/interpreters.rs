//! Interpreters in targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use profiler_common::counter::Counter;
use profiler_common::interpreter::Interpreter;
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::{debug, info};

use crate::bpf::counters::Counters;
use crate::ids::{ModuleId, Pid};
use crate::ingest::event::Event;
use crate::interpreter::cpython::{Cpython, Unsupported};
use crate::linux::process_memory;
use crate::model::InterpreterFrames;
use crate::object::interpreted::lines::Lines;
use crate::object::interpreted::{Code, LongTable};
use crate::object::module::ModuleStore;
use crate::process::address_space::{AddressSpace, Interpreted};

/// Number of processes with interpreters from which on those in no report are forgotten.
const PROCESSES_MAX: usize = 4096;

/// Finds interpreters, once per module, and keeps the code that their stacks contain.
#[derive(Default)]
pub(super) struct Interpreters {
    known: FxHashMap<ModuleId, Option<Cpython>>,
    /// Why processes have no frames of their interpreters.
    unsupported: BTreeMap<Pid, Unsupported>,
    codes_dropped: u64,
    /// With frames of their interpreters.
    supported: FxHashSet<Pid>,
}

impl Interpreters {
    /// The interpreter of a process, which becomes part of its address space.
    pub(super) fn find(&mut self, space: &mut Arc<AddressSpace>, modules: &mut ModuleStore) -> Option<Interpreter> {
        let (id, bias) = space.mappings().iter().find_map(|mapped| {
            let id = mapped.module?;
            let module = modules.get(id);
            self.known
                .entry(id)
                .or_insert_with(|| {
                    let found = Cpython::of(module);
                    found.inspect_err(|error| debug!("module {}: {error}", module.path())).ok().flatten()
                })
                .as_ref()?;
            Some((id, module.bias(mapped.mapping.start, mapped.mapping.offset)?))
        })?;
        let cpython = self.known.get(&id)?.as_ref()?;
        let pid = space.pid();
        match cpython.in_process(pid, bias, uses_musl(space, modules)) {
            Ok(interpreter) => {
                self.unsupported.remove(&pid);
                self.supported.insert(pid);
                let interpreted = Interpreted { code: modules.interpreted(), interpreter: id };
                if space.interpreted() != Some(interpreted) {
                    Arc::make_mut(space).set_interpreted(interpreted);
                }
                Some(interpreter)
            }
            Err(reason) => {
                self.supported.remove(&pid);
                info!("process {pid}: stacks lack Python functions: {reason}");
                self.unsupported.insert(pid, reason);
                None
            }
        }
    }

    /// `None` without interpreters.
    pub(super) fn frames(&self, counters: &Counters) -> Option<InterpreterFrames> {
        if self.supported.is_empty() && self.unsupported.is_empty() {
            return None;
        }
        let mut unsupported = BTreeMap::new();
        for reason in self.unsupported.values() {
            *unsupported.entry(reason.to_string()).or_default() += 1;
        }
        Some(InterpreterFrames {
            processes: self.supported.len() as u64,
            unsupported,
            no_thread: counters.get(Counter::InterpreterNoThread),
            unreadable: counters.get(Counter::InterpreterUnreadable),
            unnamed: self.codes_dropped,
        })
    }

    /// Returns the event unless it is code.
    pub(super) fn enter(&mut self, event: Event, modules: &ModuleStore) -> Option<Event> {
        let Event::Code(pid, code) = event else { return Some(event) };
        let code = completed(pid, code);
        self.codes_dropped += u64::from(!modules.codes().add(pid, code));
        None
    }

    /// Frees the code of processes that are in no report, if there is much. `kept` returns the others.
    pub(super) fn forget_others(&mut self, modules: &ModuleStore, kept: impl FnOnce() -> FxHashSet<Pid>) {
        if modules.codes().is_filling() || self.unsupported.len() + self.supported.len() > PROCESSES_MAX {
            let kept = kept();
            self.unsupported.retain(|pid, _| kept.contains(pid));
            self.supported.retain(|pid| kept.contains(pid));
            modules.codes().keep(&kept);
        }
    }
}

/// Longer line tables are not read: they would have 100,000 lines.
const TABLE_BYTES_MAX: u64 = 1 << 20;

/// Reads the whole of a long line table. Its beginning, which the kernel side has sent, verifies that it is still there.
fn completed(pid: Pid, code: Arc<Code>) -> Arc<Code> {
    let read = || {
        let LongTable { address, length } = code.long_table.filter(|table| table.length <= TABLE_BYTES_MAX)?;
        let mut table = vec![0; usize::try_from(length).ok()?];
        let count = process_memory::read(pid, &[(address.0, table.len())], &mut table).ok()?;
        let is_same = count == table.len() && table.starts_with(&code.lines.table);
        is_same
            .then(|| Arc::new(Code { lines: Lines { table: table.into(), ..code.lines.clone() }, ..(*code).clone() }))
    };
    read().unwrap_or(code)
}

fn uses_musl(space: &AddressSpace, modules: &ModuleStore) -> bool {
    let is_musl = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
    };
    space.modules().into_iter().any(|id| is_musl(modules.get(id).path()))
}
