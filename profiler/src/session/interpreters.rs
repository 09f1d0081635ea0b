//! Interpreters in targets.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use profiler_common::counter::Counter;
use profiler_common::hotspot::Hotspot;
use profiler_common::interpreter::Interpreter;
use rustc_hash::{FxHashMap, FxHashSet};
use tracing::{debug, info};

use crate::bpf::counters::Counters;
use crate::ids::{ModuleId, Pid};
use crate::ingest::event::Event;
use crate::interpreter::cpython::Cpython;
use crate::interpreter::hotspot::{self, Machine};
use crate::linux::patience::within_a_second;
use crate::linux::process_memory;
use crate::model::InterpreterFrames;
use crate::object::interpreted::lines::Lines;
use crate::object::interpreted::{Code, CodeBody, CodeLines, Function, JavaCode, LongTable, PseudoModule};
use crate::object::module::{Module, ModuleStore};
use crate::process::address_space::{AddressSpace, Interpreted};
use crate::process::jvm::is_machine;

/// Number of processes with interpreters from which on those in no report are forgotten.
const PROCESSES_MAX: usize = 4096;
/// Time to read the memory of one process, and of all: at once, and as a part of the time since the first read. Real ones take some
/// milliseconds in all; those that pretend must not keep the agent busy.
const PROCESS_TIME: (Duration, u32) = (Duration::from_secs(2), 20);
const SESSION_TIME: (Duration, u32) = (Duration::from_secs(4), 8);
/// Code that waits to be read.
const PENDING_MAX: usize = 1 << 16;
/// Then a virtual machine that does not start is read when its mappings change.
const STARTING_READS_MAX: u32 = 100;

/// Finds interpreters and virtual machines, once per module, and keeps the code that their stacks contain.
#[derive(Default)]
pub(super) struct Interpreters {
    known: FxHashMap<ModuleId, Option<Known>>,
    /// Why processes have no frames of their interpreters.
    unsupported: BTreeMap<(Pid, PseudoModule), String>,
    codes_dropped: u64,
    /// With frames of their interpreters.
    supported: FxHashSet<(Pid, PseudoModule)>,
    /// Where their code is, and what reads it.
    machines: FxHashMap<Pid, (Hotspot, Arc<Mutex<Machine>>)>,
    /// Reads of their memory do not end.
    waiting: FxHashSet<Pid>,
    /// Code that stacks contain, to be read while no process is stopped.
    pending: VecDeque<(Pid, JavaCode)>,
    session_time: Spent,
    process_times: FxHashMap<Pid, Spent>,
    /// Virtual machines that had not generated their interpreters when they were last read, and how often they were.
    starting: FxHashMap<Pid, u32>,
}

/// Time that reads have taken.
#[derive(Clone, Copy)]
struct Spent {
    since: Instant,
    time: Duration,
}

impl Default for Spent {
    fn default() -> Self {
        Self { since: Instant::now(), time: Duration::ZERO }
    }
}

impl Spent {
    fn exceeds(&self, (at_once, part): (Duration, u32)) -> bool {
        self.time > at_once + self.since.elapsed() / part
    }
}

/// What a module contains.
enum Known {
    Python(Cpython),
    Java(hotspot::Library),
}

/// What a process contains, for the kernel side.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    pub(super) interpreter: Option<Interpreter>,
    pub(super) machine: Option<Hotspot>,
}

impl Interpreters {
    /// The runtimes of a process, which become parts of its address space.
    pub(super) fn find(&mut self, space: &mut Arc<AddressSpace>, modules: &mut ModuleStore) -> Found {
        let mut found = Found::default();
        for (id, bias) in self.modules_of(space, modules) {
            let pid = space.pid();
            let (pseudo, result) = match self.known.get(&id).and_then(Option::as_ref) {
                _ if self.waiting.contains(&pid) => continue,
                Some(Known::Python(cpython)) if found.interpreter.is_none() => {
                    let (cpython, is_musl) = (cpython.clone(), uses_musl(space, modules));
                    let result = self.read(pid, move || cpython.in_process(pid, bias, is_musl));
                    found.interpreter = result.as_ref().ok().copied();
                    (PseudoModule::Python, result.map(|_| true))
                }
                Some(&Known::Java(library)) if found.machine.is_none() => {
                    let result = self.read(pid, move || library.in_process(pid, bias));
                    (PseudoModule::Java, result.map(|machine| self.enter_machine(pid, machine, &mut found)))
                }
                _ => continue,
            };
            match result {
                Ok(false) => {}
                Ok(true) => {
                    self.unsupported.remove(&(pid, pseudo));
                    self.supported.insert((pid, pseudo));
                    let [start, end] = pseudo.words();
                    let interpreted = Interpreted { start, end, code: modules.pseudo_module(pseudo), interpreter: id };
                    if !space.interpreted().contains(&interpreted) {
                        Arc::make_mut(space).set_interpreted(interpreted);
                    }
                }
                Err(reason) => {
                    self.supported.remove(&(pid, pseudo));
                    info!("process {pid}: stacks lack {pseudo:?} functions: {reason}");
                    self.unsupported.insert((pid, pseudo), reason);
                }
            }
        }
        found
    }

    /// Reads a process's memory. A process that makes this wait is not read again.
    fn read<T: Send + 'static, E: ToString + Send + 'static>(
        &mut self,
        pid: Pid,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, String> {
        let own = self.process_times.entry(pid).or_default();
        if own.exceeds(PROCESS_TIME) || self.session_time.exceeds(SESSION_TIME) {
            return Err("reading its code takes too much time".to_owned());
        }
        let started = Instant::now();
        let result = within_a_second(work);
        own.time += started.elapsed();
        self.session_time.time += started.elapsed();
        let Some(result) = result else {
            self.waiting.insert(pid);
            return Err("reads of its memory do not end".to_owned());
        };
        result.map_err(|reason| reason.to_string())
    }

    /// Modules with runtimes, and their load biases.
    fn modules_of(&mut self, space: &AddressSpace, modules: &ModuleStore) -> Vec<(ModuleId, u64)> {
        let mut found: Vec<(ModuleId, u64)> = Vec::new();
        for mapped in space.mappings() {
            let Some(id) = mapped.module.filter(|id| found.iter().all(|(known, _)| known != id)) else { continue };
            let module = modules.get(id);
            if self.known.entry(id).or_insert_with(|| Known::of(module)).is_some()
                && let Some(bias) = module.bias(mapped.mapping.start, mapped.mapping.offset)
            {
                found.push((id, bias));
            }
        }
        found
    }

    /// Returns whether there is a machine.
    fn enter_machine(&mut self, pid: Pid, machine: Option<Machine>, found: &mut Found) -> bool {
        match machine {
            Some(machine) => {
                found.machine = Some(*machine.place());
                self.starting.remove(&pid);
                // The names of one that is known are kept.
                if self.machines.get(&pid).is_none_or(|(place, _)| place != machine.place()) {
                    self.machines.insert(pid, (*machine.place(), Arc::new(Mutex::new(machine))));
                }
                true
            }
            None => {
                *self.starting.entry(pid).or_default() += 1;
                false
            }
        }
    }

    /// Whether the process has a virtual machine that had not generated its interpreter when it was last read.
    pub(super) fn is_starting(&self, pid: Pid) -> bool {
        self.starting.get(&pid).is_some_and(|&reads| reads < STARTING_READS_MAX)
    }

    /// `None` without interpreters.
    pub(super) fn frames(&self, counters: &Counters) -> Option<InterpreterFrames> {
        if self.supported.is_empty() && self.unsupported.is_empty() {
            return None;
        }
        let mut unsupported = BTreeMap::new();
        for reason in self.unsupported.values() {
            *unsupported.entry(reason.clone()).or_default() += 1;
        }
        let processes: FxHashSet<Pid> = self.supported.iter().map(|(pid, _)| *pid).collect();
        Some(InterpreterFrames {
            processes: processes.len() as u64,
            unsupported,
            no_thread: counters.get(Counter::InterpreterNoThread),
            unreadable: counters.get(Counter::InterpreterUnreadable),
            unnamed: self.codes_dropped,
        })
    }

    /// Returns the event unless it is code.
    pub(super) fn enter(&mut self, event: Event, modules: &ModuleStore) -> Option<Event> {
        let (pid, code) = match event {
            Event::Code(pid, code) if is_cut(&code) && !self.waiting.contains(&pid) => {
                let cut = Arc::clone(&code);
                let read = self.read(pid, move || Ok::<_, String>(completed(pid, cut)));
                (pid, Some(read.unwrap_or(code)))
            }
            Event::Code(pid, code) => (pid, Some(code)),
            Event::JavaCode(pid, code) => {
                if self.pending.len() < PENDING_MAX {
                    self.pending.push_back((pid, code));
                } else {
                    self.codes_dropped += 1;
                }
                return None;
            }
            other => return Some(other),
        };
        self.add(pid, code, modules);
        None
    }

    /// Reads the code that waits for it. Targets can make this slow: no process should be stopped meanwhile.
    pub(super) fn read_pending(&mut self, modules: &ModuleStore) {
        while let Some((pid, code)) = self.pending.pop_front() {
            let code = self.read_java(pid, code);
            self.add(pid, code, modules);
        }
    }

    fn add(&mut self, pid: Pid, code: Option<Arc<Code>>, modules: &ModuleStore) {
        let is_added = code.is_some_and(|code| modules.codes().add(pid, code));
        self.codes_dropped += u64::from(!is_added);
    }

    fn read_java(&mut self, pid: Pid, code: JavaCode) -> Option<Arc<Code>> {
        let (_, machine) = self.machines.get(&pid).filter(|_| !self.waiting.contains(&pid))?;
        let machine = Arc::clone(machine);
        let work = move || machine.lock().unwrap_or_else(PoisonError::into_inner).read(pid, &code);
        match self.read(pid, move || Ok::<_, String>(work())) {
            Ok(code) => code.map(Arc::new),
            Err(reason) => {
                self.unsupported.insert((pid, PseudoModule::Java), reason);
                None
            }
        }
    }

    /// Frees the code of processes that are in no report, if there is much. `kept` returns the others.
    pub(super) fn forget_others(&mut self, modules: &ModuleStore, kept: impl FnOnce() -> FxHashSet<Pid>) {
        if modules.codes().is_filling() || self.unsupported.len() + self.supported.len() > PROCESSES_MAX {
            let kept = kept();
            self.unsupported.retain(|(pid, _), _| kept.contains(pid));
            self.supported.retain(|(pid, _)| kept.contains(pid));
            self.machines.retain(|pid, _| kept.contains(pid));
            self.waiting.retain(|pid| kept.contains(pid));
            self.process_times.retain(|pid, _| kept.contains(pid));
            self.starting.retain(|pid, _| kept.contains(pid));
            modules.codes().keep(&kept);
        }
    }
}

/// Longer line tables are not read: they would have 100,000 lines.
const TABLE_BYTES_MAX: usize = 1 << 20;

/// Whether the record has only the beginning of its line table.
fn is_cut(code: &Code) -> bool {
    let CodeBody::Function(function) = &code.body else { return false };
    matches!(function.lines, CodeLines::Cpython(_, Some(_)))
}

/// Reads the whole of a long line table. Its beginning, which the kernel side has sent, verifies that it is still there.
fn completed(pid: Pid, code: Arc<Code>) -> Arc<Code> {
    let read = || {
        let CodeBody::Function(function) = &code.body else { return None };
        let CodeLines::Cpython(lines, Some(LongTable { address, length })) = &function.lines else { return None };
        let length = usize::try_from(*length).ok().filter(|&length| length <= TABLE_BYTES_MAX)?;
        let mut table = vec![0; length];
        let count = process_memory::read(pid, &[(address.0, table.len())], &mut table).ok()?;
        let is_same = count == table.len() && table.starts_with(&lines.table);
        let lines = Lines { table: table.into(), ..lines.clone() };
        let function = Function { lines: CodeLines::Cpython(lines, None), ..function.clone() };
        is_same.then(|| Arc::new(Code { body: CodeBody::Function(function), ..*code }))
    };
    read().unwrap_or(code)
}

impl Known {
    fn of(module: &Module) -> Option<Self> {
        let found = if is_machine(module.path()) {
            hotspot::Library::of(module).map(|found| found.map(Self::Java))
        } else {
            Cpython::of(module).map(|found| found.map(Self::Python))
        };
        found.inspect_err(|error| debug!("module {}: {error}", module.path())).ok().flatten()
    }
}

fn uses_musl(space: &AddressSpace, modules: &ModuleStore) -> bool {
    let is_musl = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
    };
    space.modules().into_iter().any(|id| is_musl(modules.get(id).path()))
}
