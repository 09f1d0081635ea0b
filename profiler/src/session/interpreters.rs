//! Interpreters in targets.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_base::language::Language;
use heapbpf_base::language::facts::Role;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::ingest::field::DecodeError;
use heapbpf_ledger::ingest::record::RawCode;
use heapbpf_ledger::model::{InterpreterFrames, LanguageFunctions, ObjectTypes};
use heapbpf_ledger::snapshot::Stack;
use heapbpf_linux::patience::within_a_second;
use heapbpf_linux::{clock, process_memory};
use profiler_common::counter::Counter;
use profiler_common::interpreter::InterpretedFrame;
use rustc_hash::{FxHashMap, FxHashSet};
use thiserror::Error;
use tracing::{debug, info};

use crate::bpf::counters::Counters;
use crate::interpreter::implementation::{self, NamedCode, Reader, Sent};
use crate::interpreter::memory::HeapMemory;
use crate::interpreter::{self, CodeMapping, Process, control_block, may_define_threads};
use crate::object::interpreted::{Code, CodeBody, Function, PlacedCode};
use crate::object::module::{Module, ModuleStore};
use crate::process::address_space::{AddressSpace, Interpreted, MappedModule};
use crate::unwind::runtimes::RuntimePlace;

/// Number of processes with interpreters from which on those in no report are forgotten.
const PROCESSES_MAX: usize = 4096;
/// Time to read the memory of one process, and of all: at once, and as a part of the time since the first read. Real ones take some
/// milliseconds in all; those that pretend must not keep the agent busy.
const PROCESS_TIME: (Duration, u32) = (Duration::from_secs(2), 20);
const SESSION_TIME: (Duration, u32) = (Duration::from_secs(4), 8);
/// Environment variable: a number that these limits are multiplied by, for tests on emulated processors.
const SLOWNESS_VARIABLE: &str = "HEAPBPF_SLOWNESS";
/// Reads that wait for the processor, which the target uses too, count as this part of their time.
const WAITING_PART: u32 = 4;
/// Code that waits to be read.
const PENDING_MAX: usize = 1 << 16;
/// Code without a name that is counted once: of more of it, some counts as never sent, too.
const UNREAD_MAX: usize = 1 << 20;
/// Codes that a thread reads one after the other, and the time after which it reads no more of them.
const BATCH_MAX: usize = 64;
const BATCH_TIME: Duration = Duration::from_millis(50);
/// Then a virtual machine that does not start is read when its mappings change.
const STARTING_READS_MAX: u32 = 100;

/// Finds interpreters and virtual machines, once per module, and keeps the code that their stacks contain.
#[derive(Default)]
pub(super) struct Interpreters {
    known: FxHashMap<ModuleId, Option<implementation::Found>>,
    /// What C libraries show of threads.
    control_blocks: FxHashMap<ModuleId, Option<u64>>,
    /// Why processes have no frames of their interpreters.
    unsupported: BTreeMap<(Pid, Language), String>,
    /// Functions that stacks contain.
    functions: BTreeMap<Language, Functions>,
    /// With frames of their interpreters.
    supported: FxHashSet<(Pid, Language)>,
    /// Their heaps.
    heaps: FxHashMap<Pid, Vec<RuntimeHeap>>,
    /// Where their code is, and what reads it.
    readers: FxHashMap<(Pid, Language), KnownReader>,
    /// Reads of their memory do not end.
    waiting: FxHashSet<Pid>,
    /// Code that stacks contain, to be read while no process is stopped.
    pending: FxHashMap<Pid, VecDeque<PlacedCode>>,
    pending_count: usize,
    /// Code that was sent and has no name.
    unread: FxHashSet<u64>,
    session_time: Spent,
    process_times: FxHashMap<Pid, Spent>,
    /// Virtual machines that had not generated their interpreters when they were last read, and how often they were.
    starting: FxHashMap<Pid, u32>,
}

/// Functions of a language: their number, and the number of those without names.
#[derive(Clone, Default)]
struct Functions {
    count: u64,
    unnamed: BTreeMap<Unnamed, u64>,
}

impl Functions {
    fn count(&mut self, lacks: Option<Unnamed>) {
        self.count += 1;
        if let Some(reason) = lacks {
            *self.unnamed.entry(reason).or_default() += 1;
        }
    }

    fn to_model(&self) -> LanguageFunctions {
        LanguageFunctions {
            functions: self.count,
            unnamed: self.unnamed.values().sum(),
            unnamed_reasons: self.unnamed.iter().map(|(reason, count)| (reason.to_string(), *count)).collect(),
        }
    }
}

/// What reads the names of a process's runtime, as long as its structures are there.
struct KnownReader {
    place: RuntimePlace,
    reader: Arc<Mutex<Box<dyn Reader>>>,
}

/// Why a function has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
enum Unnamed {
    #[error("replaced before they were read")]
    Replaced,
    #[error("more than are kept")]
    TooMany,
    #[error("more new ones at once than are sent")]
    Unsent,
    #[error("not read before the process ended")]
    Ended,
    #[error("not read: reading its memory takes too much time")]
    NotRead,
    #[error("their names are not texts that can be read")]
    Unreadable,
    /// The function itself has a name.
    #[error("inlined into compiled code that was freed before it was read")]
    Inlined,
}

static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
    let given = env::var(SLOWNESS_VARIABLE).ok();
    given.and_then(|number| number.parse().ok()).unwrap_or(1)
});

/// Why a process's memory was not read.
#[derive(Debug, Error)]
enum Unread {
    #[error("reading its code takes too much time")]
    TooMuchTime,
    #[error("reads of its memory do not end")]
    Endless,
    #[error("{0}")]
    Failed(String),
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
        self.time > (at_once + self.since.elapsed() / part).saturating_mul(*SLOWNESS)
    }
}

/// A runtime's own heap in a process.
#[derive(Clone, Debug)]
pub(super) struct RuntimeHeap {
    pub(super) language: Language,
    runtime: Arc<dyn implementation::Runtime>,
    bias: u64,
}

impl RuntimeHeap {
    /// Whether it is in the same place of the same module.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.runtime, &other.runtime) && self.bias == other.bias
    }

    /// Whether heapbpf knows how its objects are counted.
    pub(super) fn has_types(&self) -> bool {
        self.runtime.heap().is_some()
    }

    /// Counts its objects by type.
    pub(super) fn count(&self, pid: Pid, memory: &dyn HeapMemory, time: MonotonicNanos) -> Result<ObjectTypes, String> {
        let heap = self.runtime.heap().ok_or("its objects have no types that are known")?;
        let process = Process { pid, bias: self.bias, uses_musl: false, control_block: None, code: Vec::new() };
        heap.count(&process, memory, time)
    }
}

/// What a process contains, for the kernel side.
#[derive(Clone, Default)]
pub(super) struct Found {
    pub(super) interpreter: Option<RuntimePlace>,
    pub(super) machine: Option<RuntimePlace>,
}

impl Found {
    /// Of these, a process has one.
    fn slot(&mut self, role: Role) -> &mut Option<RuntimePlace> {
        match role {
            Role::Interpreter => &mut self.interpreter,
            Role::Machine => &mut self.machine,
        }
    }
}

impl Interpreters {
    /// The runtimes of a process, which become parts of its address space.
    pub(super) fn find(&mut self, space: &mut Arc<AddressSpace>, modules: &mut ModuleStore) -> Found {
        let mut found = Found::default();
        let pid = space.pid();
        for (id, bias) in self.modules_of(space, modules) {
            let Some(in_module) = self.known.get(&id).and_then(Option::as_ref).cloned() else { continue };
            let implementation::Found { language, functions, runtime } = in_module;
            if self.waiting.contains(&pid) || found.slot(functions.role).is_some() {
                continue;
            }
            let code = code_mappings(space, modules, id);
            let control_block = self.control_block(space, modules, id);
            let process = Process { pid, bias, uses_musl: uses_musl(space, modules), control_block, code };
            let heap = RuntimeHeap { language, runtime: Arc::clone(&runtime), bias };
            let heaps = self.heaps.entry(pid).or_default();
            heaps.retain(|known| known.language != language);
            heaps.push(heap);
            match self.read(pid, move || runtime.enter(&process)) {
                Ok(None) => *self.starting.entry(pid).or_default() += 1,
                Ok(Some(entered)) => {
                    let place = RuntimePlace { language, functions, value: entered.place };
                    *found.slot(functions.role) = Some(place.clone());
                    self.enter_reader(pid, language, place, entered.reader);
                    self.unsupported.remove(&(pid, language));
                    self.supported.insert((pid, language));
                    let [start, end] = functions.words();
                    let code = modules.functions_module(functions);
                    let interpreted = Interpreted { start, end, code, interpreter: id };
                    if !space.interpreted().contains(&interpreted) {
                        Arc::make_mut(space).set_interpreted(interpreted);
                    }
                }
                Err(reason) => {
                    self.supported.remove(&(pid, language));
                    info!("process {pid}: stacks lack {} functions: {reason}", language.name());
                    self.unsupported.insert((pid, language), reason.to_string());
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
    ) -> Result<T, Unread> {
        if !self.may_read(pid) {
            return Err(Unread::TooMuchTime);
        }
        let started = Instant::now();
        let result = within_a_second(move || {
            let result = work();
            (result, clock::thread_cpu())
        });
        let elapsed = started.elapsed();
        let spent = result.as_ref().map_or(elapsed, |(_, cpu)| (*cpu).max(elapsed / WAITING_PART));
        self.process_times.entry(pid).or_default().time += spent;
        self.session_time.time += spent;
        let Some((result, _)) = result else {
            self.waiting.insert(pid);
            return Err(Unread::Endless);
        };
        result.map_err(|reason| Unread::Failed(reason.to_string()))
    }

    fn may_read(&self, pid: Pid) -> bool {
        let own = self.process_times.get(&pid);
        !own.is_some_and(|own| own.exceeds(PROCESS_TIME)) && !self.session_time.exceeds(SESSION_TIME)
    }

    /// Modules with runtimes, and their load biases.
    fn modules_of(&mut self, space: &AddressSpace, modules: &ModuleStore) -> Vec<(ModuleId, u64)> {
        let mut found: Vec<(ModuleId, u64)> = Vec::new();
        for mapped in space.mappings() {
            let Some(id) = mapped.module.filter(|id| found.iter().all(|(known, _)| known != id)) else { continue };
            let module = modules.get(id);
            if self.known.entry(id).or_insert_with(|| runtime_of(module)).is_some()
                && let Some(bias) = module.bias(mapped.mapping.start, mapped.mapping.offset)
            {
                found.push((id, bias));
            }
        }
        found
    }

    /// As the C library has it, which may be a part of the runtime's module.
    fn control_block(&mut self, space: &AddressSpace, modules: &ModuleStore, runtime: ModuleId) -> Option<u64> {
        let libraries = space.modules().into_iter().filter(|&id| may_define_threads(modules.get(id).path()));
        libraries
            .chain([runtime])
            .find_map(|id| *self.control_blocks.entry(id).or_insert_with(|| control_block(modules.get(id))))
    }

    /// The names that the reader of an unchanged runtime has read are kept.
    fn enter_reader(&mut self, pid: Pid, language: Language, place: RuntimePlace, reader: Option<Box<dyn Reader>>) {
        self.starting.remove(&pid);
        let Some(reader) = reader else { return };
        if self.readers.get(&(pid, language)).is_none_or(|known| known.place != place) {
            self.readers.insert((pid, language), KnownReader { place, reader: Arc::new(Mutex::new(reader)) });
        }
    }

    /// Heaps of the runtimes that a process has.
    pub(super) fn heaps(&self, pid: Pid) -> &[RuntimeHeap] {
        self.heaps.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Whether the process has a virtual machine that had not generated its interpreter when it was last read.
    pub(super) fn is_starting(&self, pid: Pid) -> bool {
        self.starting.get(&pid).is_some_and(|&reads| reads < STARTING_READS_MAX)
    }

    /// `None` without interpreters. `stacks` are those of all processes.
    pub(super) fn frames<'a>(
        &self,
        counters: &Counters,
        stacks: impl Iterator<Item = &'a Stack>,
        modules: &ModuleStore,
    ) -> Option<InterpreterFrames> {
        if self.supported.is_empty() && self.unsupported.is_empty() {
            return None;
        }
        let mut unsupported = BTreeMap::new();
        for reason in self.unsupported.values() {
            *unsupported.entry(reason.clone()).or_default() += 1;
        }
        let processes: FxHashSet<Pid> = self.supported.iter().map(|(pid, _)| *pid).collect();
        let mut functions = self.functions.clone();
        for (pid, codes) in &self.pending {
            let reason = if process_memory::has_memory(*pid) { Unnamed::NotRead } else { Unnamed::Ended };
            codes.iter().for_each(|code| functions.entry(code.language).or_default().count(Some(reason)));
        }
        if counters.get(Counter::CodeRefused) > 0 {
            for language in self.unsent(stacks, modules) {
                functions.entry(language).or_default().count(Some(Unnamed::Unsent));
            }
        }
        let languages: BTreeMap<String, LanguageFunctions> =
            functions.iter().map(|(language, it)| (language.name().to_owned(), it.to_model())).collect();
        let mut unnamed_reasons = BTreeMap::new();
        for (reason, count) in languages.values().flat_map(|language| &language.unnamed_reasons) {
            *unnamed_reasons.entry(reason.clone()).or_default() += count;
        }
        Some(InterpreterFrames {
            processes: processes.len() as u64,
            unsupported,
            no_thread: counters.get(Counter::InterpreterNoThread),
            unreadable: counters.get(Counter::InterpreterUnreadable),
            unnamed: languages.values().map(|language| language.unnamed).sum(),
            unnamed_reasons,
            deferred: counters.get(Counter::CodeRefused),
            languages,
        })
    }

    /// Languages of the code in stacks that was never sent, because its process had too much of it at once.
    fn unsent<'a>(&self, stacks: impl Iterator<Item = &'a Stack>, modules: &ModuleStore) -> Vec<Language> {
        let mut known: FxHashSet<u64> = self.pending.values().flatten().map(|code| code.id).collect();
        let words = stacks.flat_map(|stack| stack.frames.iter());
        let frames = words.filter_map(|word| InterpretedFrame::from_word(word.0));
        let unsent = frames.filter(|frame| {
            let is_new = !self.unread.contains(&frame.code) && known.insert(frame.code);
            is_new && !modules.codes().contains(frame.code)
        });
        unsent.filter_map(|frame| Language::of_kind(frame.kind)).collect()
    }

    pub(super) fn enter(&mut self, record: &RawCode, modules: &ModuleStore) -> Result<(), DecodeError> {
        let pid = record.pid;
        match interpreter::decode(record)? {
            Sent::Named(language, NamedCode { code, whole }) => {
                let whole = whole.filter(|_| !self.waiting.contains(&pid));
                let read = whole.and_then(|whole| self.read(pid, move || Ok::<_, String>(whole.read(&pid))).ok());
                self.add(pid, language, Arc::new(read.flatten().unwrap_or(code)), modules);
            }
            Sent::Placed(code) if self.pending_count < PENDING_MAX => {
                self.pending_count += 1;
                self.pending.entry(pid).or_default().push_back(code);
            }
            Sent::Placed(code) => self.count_unread(&code, Unnamed::TooMany),
        }
        Ok(())
    }

    /// Reads the code that waits for it, as far as the limits of time allow. Targets can make this slow: no process should be stopped
    /// meanwhile.
    pub(super) fn read_pending(&mut self, modules: &ModuleStore) {
        let pids: Vec<Pid> = self.pending.keys().copied().collect();
        for pid in pids {
            let Some(mut codes) = self.pending.remove(&pid) else { continue };
            while self.may_read(pid) && !codes.is_empty() {
                self.pending_count -= self.read_some(pid, &mut codes, modules);
            }
            if !codes.is_empty() {
                self.pending.insert(pid, codes);
            }
        }
    }

    /// Reads the first of these codes, and others of the same language. Returns how many it has removed.
    fn read_some(&mut self, pid: Pid, codes: &mut VecDeque<PlacedCode>, modules: &ModuleStore) -> usize {
        let Some(language) = codes.front().map(|code| code.language) else { return 0 };
        let batch: Vec<PlacedCode> =
            codes.iter().take(BATCH_MAX).take_while(|code| code.language == language).copied().collect();
        let read = self.read_placed(pid, language, batch.clone());
        let count = read.as_ref().map_or(batch.len(), Vec::len);
        codes.drain(..count);
        match read {
            Ok(read) => {
                // Asked once for all: it costs a system call.
                let is_there = read.iter().all(Option::is_some) || process_memory::has_memory(pid);
                let missing = if is_there { Unnamed::Replaced } else { Unnamed::Ended };
                for (code, placed) in read.into_iter().zip(&batch) {
                    match code {
                        Some(code) => self.add(pid, language, Arc::new(code), modules),
                        None => self.count_unread(placed, missing),
                    }
                }
            }
            Err(reason) => batch.iter().for_each(|code| self.count_unread(code, reason)),
        }
        count
    }

    fn add(&mut self, pid: Pid, language: Language, code: Arc<Code>, modules: &ModuleStore) {
        let lacks = match &code.body {
            CodeBody::Function(Function { name: None, .. }) => Some(Unnamed::Unreadable),
            CodeBody::Compiled(compiled) if compiled.may_lack_inlined => Some(Unnamed::Inlined),
            _ => None,
        };
        let id = code.id;
        let lacks = if modules.codes().add(pid, code) {
            lacks
        } else {
            self.note_unread(id);
            Some(Unnamed::TooMany)
        };
        self.count(language, lacks);
    }

    fn count_unread(&mut self, code: &PlacedCode, reason: Unnamed) {
        self.note_unread(code.id);
        self.count(code.language, Some(reason));
    }

    fn note_unread(&mut self, id: u64) {
        if self.unread.len() < UNREAD_MAX {
            self.unread.insert(id);
        }
    }

    /// Counts a function, and why it has no name.
    fn count(&mut self, language: Language, lacks: Option<Unnamed>) {
        self.functions.entry(language).or_default().count(lacks);
    }

    /// What reads the names of a process with a virtual machine.
    #[cfg(test)]
    pub(super) fn take_reader(&mut self, pid: Pid) -> Option<Box<dyn Reader>> {
        let key = *self.readers.keys().find(|(of, _)| *of == pid)?;
        let reader = Arc::into_inner(self.readers.remove(&key)?.reader)?;
        Some(reader.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads codes in their order: all of them, or at least the first one. `None` for code that is not there any more.
    fn read_placed(
        &mut self,
        pid: Pid,
        language: Language,
        codes: Vec<PlacedCode>,
    ) -> Result<Vec<Option<Code>>, Unnamed> {
        let reader = self.readers.get(&(pid, language)).filter(|_| !self.waiting.contains(&pid));
        let Some(KnownReader { reader, .. }) = reader else {
            return Err(if process_memory::has_memory(pid) { Unnamed::NotRead } else { Unnamed::Ended });
        };
        let reader = Arc::clone(reader);
        let work = move || {
            let (mut reader, started) = (reader.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
            let mut read = Vec::with_capacity(codes.len());
            for code in &codes {
                read.push(reader.read(&pid, code));
                if started.elapsed() > BATCH_TIME {
                    break;
                }
            }
            read
        };
        self.read(pid, move || Ok::<_, String>(work())).map_err(|reason| {
            self.unsupported.insert((pid, language), reason.to_string());
            Unnamed::NotRead
        })
    }

    /// Frees the code of processes that are in no report, if there is much. `kept` returns the others.
    pub(super) fn forget_others(&mut self, modules: &ModuleStore, kept: impl FnOnce() -> FxHashSet<Pid>) {
        if modules.codes().is_filling() || self.unsupported.len() + self.supported.len() > PROCESSES_MAX {
            let kept = kept();
            self.unsupported.retain(|(pid, _), _| kept.contains(pid));
            self.supported.retain(|(pid, _)| kept.contains(pid));
            self.readers.retain(|(pid, _), _| kept.contains(pid));
            self.waiting.retain(|pid| kept.contains(pid));
            let dropped: Vec<Pid> = self.pending.keys().filter(|pid| !kept.contains(pid)).copied().collect();
            let dropped: Vec<PlacedCode> =
                dropped.iter().filter_map(|pid| self.pending.remove(pid)).flatten().collect();
            for code in dropped {
                self.pending_count -= 1;
                self.count_unread(&code, Unnamed::NotRead);
            }
            self.process_times.retain(|pid, _| kept.contains(pid));
            self.heaps.retain(|pid, _| kept.contains(pid));
            self.starting.retain(|pid, _| kept.contains(pid));
            modules.codes().keep(&kept);
        }
    }
}

fn runtime_of(module: &Module) -> Option<implementation::Found> {
    let found = interpreter::find(module);
    found.inspect_err(|error| debug!("module {}: {error}", module.path())).ok().flatten()
}

/// Mappings of code, for the runtime in this module.
fn code_mappings(space: &AddressSpace, modules: &ModuleStore, runtime: ModuleId) -> Vec<CodeMapping> {
    let mapping = |mapped: &MappedModule| {
        let mapping = &mapped.mapping;
        let own = mapped.module.filter(|&id| id == runtime);
        CodeMapping {
            range: mapping.start.0..mapping.end.0,
            own_bias: own.and_then(|id| modules.get(id).bias(mapping.start, mapping.offset)),
            is_generated: mapped.module.is_none(),
        }
    };
    space.mappings().iter().map(mapping).collect()
}

fn uses_musl(space: &AddressSpace, modules: &ModuleStore) -> bool {
    let is_musl = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        name.starts_with("ld-musl-") || name.starts_with("libc.musl-")
    };
    space.modules().into_iter().any(|id| is_musl(modules.get(id).path()))
}

#[cfg(test)]
mod tests;
