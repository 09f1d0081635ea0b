//! Walks stacks of a copied process.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use profiler_common::arch::CALL_BYTES;
use profiler_common::hotspot::Hotspot;
use profiler_common::interpreter::{Interpreter, Runtime};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::php::Php;
use profiler_common::ruby::Ruby;
use profiler_common::rule_cache::CacheKey;
use profiler_common::stack::{StackEnd, StackHasher};
use profiler_common::unwind::{ProcessMapping, ProcessMappings, Rule};
use profiler_common::v8::V8;
use serde::{Deserialize, Serialize};

use crate::maps::{
    CODE_RATES, CURRENT, INTERPRETERS, JAVA_MACHINES, JAVASCRIPT_ENGINES, MAPPINGS, PHPS, PROCESSES, RUBIES,
    RULE_CACHE, SCRATCH, STACKS,
};
use crate::memory::Memory;
use crate::walk;

/// A thread, as it has entered a hooked function.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Thread {
    pub tgid: u32,
    pub tid: u32,
    /// The register that refers to the thread's data.
    pub pointer: u64,
    /// Registers behind the call.
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
}

/// The runtimes of a process: one of each kind.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Runtimes {
    pub cpython: Option<Interpreter>,
    pub ruby: Option<Ruby>,
    pub php: Option<Php>,
    pub hotspot: Option<Hotspot>,
    pub v8: Option<V8>,
}

/// A stack.
pub struct Walked {
    /// Return addresses, and words of [`InterpretedFrame`](profiler_common::interpreter::InterpretedFrame).
    pub frames: Vec<u64>,
    pub end: StackEnd,
    /// What was sent for the agent, record by record.
    pub records: Vec<Vec<u8>>,
    /// Counters that are not 0, by number.
    pub counts: BTreeMap<u32, u64>,
    /// Calls of `bpf_probe_read_user`.
    pub reads: u64,
    pub memory: Memory,
}

/// The kernel side for one process: the only one that exists, because its maps are statics.
pub struct Process {
    _only: MutexGuard<'static, ()>,
    tgid: u32,
}

static ONLY: Mutex<()> = Mutex::new(());
/// Of the mappings.
const SERIAL: u32 = 1;

impl Process {
    /// `mappings` are those with code, by address. Unwind rules are those of the given addresses: a walk looks up that before a return
    /// address.
    pub fn new(
        tgid: u32,
        runtimes: &Runtimes,
        mappings: impl IntoIterator<Item = (u64, u64)>,
        rules: impl IntoIterator<Item = (u64, Rule)>,
    ) -> Self {
        let only = ONLY.lock().unwrap_or_else(PoisonError::into_inner);
        STACKS.clear();
        SCRATCH.clear();
        RULE_CACHE.clear();
        CODE_RATES.clear();
        let number = |runtime: Runtime, is_there: bool| if is_there { runtime.number(0) } else { 0 };
        let interpreter = number(Runtime::Cpython, runtimes.cpython.is_some())
            .max(number(Runtime::Ruby, runtimes.ruby.is_some()))
            .max(number(Runtime::Php, runtimes.php.is_some()));
        let machine =
            number(Runtime::Hotspot, runtimes.hotspot.is_some()).max(number(Runtime::V8, runtimes.v8.is_some()));
        INTERPRETERS.fill(runtimes.cpython.into_iter().collect());
        RUBIES.fill(runtimes.ruby.into_iter().collect());
        PHPS.fill(runtimes.php.into_iter().collect());
        JAVA_MACHINES.fill(runtimes.hotspot.into_iter().collect());
        JAVASCRIPT_ENGINES.fill(runtimes.v8.into_iter().collect());
        let mappings: Vec<ProcessMapping> =
            mappings.into_iter().map(|(start, end)| ProcessMapping { start, end, ..ProcessMapping::NONE }).collect();
        let count = u32::try_from(mappings.len()).expect("a process has fewer");
        MAPPINGS.fill(mappings);
        PROCESSES.set(tgid, ProcessMappings { count, serial: SERIAL, interpreter, machine, ..ProcessMappings::NONE });
        for (address, rule) in rules {
            let key = CacheKey::new(SERIAL, address);
            let slot = RULE_CACHE.get_ptr_mut(key.slot()).expect("it was cleared");
            // SAFETY: the array's own element, which nothing else refers to now.
            unsafe { *slot = key.entry(rule) };
        }
        Self { _only: only, tgid }
    }

    /// Walks the stack of a thread of the process.
    pub fn walk(&mut self, thread: Thread, memory: Memory) -> Walked {
        CURRENT.with(|current| {
            (current.thread, current.memory) = (Thread { tgid: self.tgid, ..thread }, memory);
            (current.records, current.counts, current.reads) = (Vec::new(), BTreeMap::new(), 0);
        });
        let scratch = SCRATCH.get_ptr_mut(0).expect("it was cleared");
        // SAFETY: the array's own element, which nothing else refers to now.
        unsafe { (*scratch).window_words = 0 };
        let entry = (thread.sp.wrapping_sub(CALL_BYTES), thread.bp, Some(thread.ip));
        let end = walk::unwind(scratch, 0, self.tgid, entry, StackHasher::new(1, self.tgid));
        // SAFETY: as above.
        let depth = usize::try_from(unsafe { (*scratch).walk.depth }).expect("a depth fits").min(STACK_FRAMES_MAX);
        // SAFETY: as above.
        let frames = unsafe { &(*scratch).record.frames }[..depth].to_vec();
        CURRENT.with(|current| Walked {
            frames,
            end,
            records: std::mem::take(&mut current.records),
            counts: std::mem::take(&mut current.counts),
            reads: current.reads,
            memory: std::mem::take(&mut current.memory),
        })
    }
}
