//! Of [`maps.rs`](../../src/maps.rs): maps as memory of this process, and the process that is walked.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::slice;
use std::collections::BTreeMap;

use profiler_common::counter::Counter;
use profiler_common::hotspot::Hotspot;
use profiler_common::interpreter::Interpreter;
use profiler_common::limits::{CODE_RATES as CODE_RATES_MAX, RULE_CACHE_SLOTS, STACK_BUCKETS, STACK_WAYS};
use profiler_common::mapped::MappingState;
use profiler_common::php::Php;
use profiler_common::ruby::Ruby;
use profiler_common::rule_cache::CachedRule;
use profiler_common::unwind::{PageRows, ProcessMapping, ProcessMappings, RowCell, Rule};
use profiler_common::v8::V8;

use crate::layout::Scratch;
use crate::memory::Memory;
use crate::process::Thread;

pub(crate) static EVENTS: RingBuf = RingBuf;
pub(crate) static STACKS: Array<[u64; STACK_WAYS]> = Array::new(STACK_BUCKETS as usize);
pub(crate) static SCRATCH: Array<Scratch> = Array::new(1);
pub(crate) static ROWS: Array<RowCell> = Array::new(0);
pub(crate) static PAGES: Array<PageRows> = Array::new(0);
pub(crate) static RULES: Array<Rule> = Array::new(0);
pub(crate) static RULE_CACHE: Array<CachedRule> = Array::new(RULE_CACHE_SLOTS as usize);
pub(crate) static MAPPINGS: Array<ProcessMapping> = Array::new(0);
pub(crate) static PROCESSES: One<u32, ProcessMappings> = One::new();
pub(crate) static MAPPING_STATES: One<u32, MappingState> = One::new();
pub(crate) static INTERPRETERS: Array<Interpreter> = Array::new(1);
pub(crate) static JAVA_MACHINES: Array<Hotspot> = Array::new(1);
pub(crate) static JAVASCRIPT_ENGINES: Array<V8> = Array::new(1);
pub(crate) static RUBIES: Array<Ruby> = Array::new(1);
pub(crate) static PHPS: Array<Php> = Array::new(1);
pub(crate) static CODE_RATES: Array<u64> = Array::new(CODE_RATES_MAX as usize);
pub(crate) static CURRENT: Current = Current::new();

pub(crate) fn count(counter: Counter) {
    CURRENT.with(|current| *current.counts.entry(counter as u32).or_default() += 1);
}

/// What is walked, and what the walk has caused. Only the owner of the one [`Process`](crate::Process) uses it.
pub(crate) struct State {
    pub(crate) thread: Thread,
    pub(crate) memory: Memory,
    pub(crate) records: Vec<Vec<u8>>,
    pub(crate) counts: BTreeMap<u32, u64>,
    pub(crate) periods: u64,
    pub(crate) reads: u64,
}

pub(crate) struct Current(UnsafeCell<State>);

// SAFETY: see `State`.
unsafe impl Sync for Current {}

impl Current {
    const fn new() -> Self {
        Self(UnsafeCell::new(State {
            thread: Thread { tgid: 0, tid: 0, pointer: 0, ip: 0, sp: 0, bp: 0 },
            memory: Memory::new(),
            records: Vec::new(),
            counts: BTreeMap::new(),
            periods: 0,
            reads: 0,
        }))
    }

    pub(crate) fn with<R>(&self, of: impl FnOnce(&mut State) -> R) -> R {
        // SAFETY: no other reference exists: see `State`, and `of` calls no walker.
        of(unsafe { &mut *self.0.get() })
    }
}

/// An array of integers in structures.
pub(crate) struct Array<T> {
    values: UnsafeCell<Vec<T>>,
    length: usize,
}

// SAFETY: only the owner of the one `Process` uses it.
unsafe impl<T> Sync for Array<T> {}

impl<T> Array<T> {
    /// Has no elements until it is [cleared](Self::clear) or [filled](Self::fill).
    const fn new(length: usize) -> Self {
        Self { values: UnsafeCell::new(Vec::new()), length }
    }

    /// Sets all elements to 0.
    pub(crate) fn clear(&self) {
        // SAFETY: types of maps are integers in structures.
        self.fill((0..self.length).map(|_| unsafe { MaybeUninit::zeroed().assume_init() }).collect());
    }

    pub(crate) fn fill(&self, values: Vec<T>) {
        // SAFETY: only one thread uses it, and references to elements end with the walk.
        unsafe { *self.values.get() = values };
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        // SAFETY: as above.
        unsafe { &*self.values.get() }.get(index as usize)
    }

    pub(crate) fn get_ptr(&self, index: u32) -> Option<*const T> {
        self.get(index).map(|value| &raw const *value)
    }

    pub(crate) fn get_ptr_mut(&self, index: u32) -> Option<*mut T> {
        // SAFETY: as above.
        unsafe { &mut *self.values.get() }.get_mut(index as usize).map(|value| &raw mut *value)
    }
}

/// A map of at most one element.
pub(crate) struct One<K, V>(UnsafeCell<Option<(K, V)>>);

// SAFETY: only the owner of the one `Process` uses it.
unsafe impl<K, V> Sync for One<K, V> {}

impl<K: PartialEq, V> One<K, V> {
    const fn new() -> Self {
        Self(UnsafeCell::new(None))
    }

    pub(crate) fn set(&self, key: K, value: V) {
        // SAFETY: as of arrays.
        unsafe { *self.0.get() = Some((key, value)) };
    }

    pub(crate) fn get_ptr(&self, key: &K) -> Option<*const V> {
        // SAFETY: as of arrays.
        unsafe { &*self.0.get() }.as_ref().filter(|(found, _)| found == key).map(|(_, value)| &raw const *value)
    }
}

/// A ring buffer that is never full.
pub(crate) struct RingBuf;

impl RingBuf {
    pub(crate) fn reserve<T>(&self, _flags: u64) -> Option<Entry<T>> {
        Some(Entry(Box::new(MaybeUninit::zeroed())))
    }
}

/// A reserved record.
pub(crate) struct Entry<T>(Box<MaybeUninit<T>>);

impl<T> Entry<T> {
    pub(crate) fn submit(self, _flags: u64) {
        // SAFETY: all bytes were 0 at first.
        let bytes = unsafe { slice::from_raw_parts((&raw const *self.0).cast::<u8>(), size_of::<T>()) };
        CURRENT.with(|current| current.records.push(bytes.to_vec()));
    }
}

impl<T> Deref for Entry<T> {
    type Target = MaybeUninit<T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<T> DerefMut for Entry<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}
