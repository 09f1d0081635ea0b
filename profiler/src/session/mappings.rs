//! Mappings of one target, and when they are read again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use heapbpf_ledger::ingest::event::Stack;
use heapbpf_ledger::ingest::record::Mapped;
use profiler_common::mapped::Changes;
use tracing::{debug, trace};

use super::generated_code::GeneratedCode;
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::process::link_map::LinkMap;

pub(super) struct Mappings {
    pub(super) space: Arc<AddressSpace>,
    pub(super) generated: GeneratedCode,
    /// The dynamic linker's list when the mappings were last read.
    pub(super) link_map: Option<LinkMap>,
    /// A stack contains code outside all known mappings.
    is_stale: bool,
    pub(super) is_unsearched: bool,
    /// Version of the address space that the kernel side knows.
    registered: u64,
    /// The process has mapped code that the kernel side cannot unwind yet.
    has_new: bool,
    /// What the kernel side knows lacks changes, also if the mappings are those of before.
    is_outdated: bool,
    read: Instant,
    /// When the mappings were last searched for allocators.
    searched: Instant,
    /// Time between searches for allocators due to stale stacks.
    period: Duration,
    /// Time that the last read for cut stacks took.
    reload: Duration,
}

/// Time between reads due to stale stacks. Doubles while reads find nothing new: stacks may contain garbage.
const READ_PERIOD: Duration = Duration::from_millis(100);
const READ_PERIOD_MAX: Duration = Duration::from_secs(5);

/// Minimum time between reloads for cut stacks, in multiples of the time that reading takes, and its maximum. Tables are
/// built once per module, so they do not count; and the process may exit while its stacks wait.
const RELOAD_PAUSE: u32 = 9;
const RELOAD_PAUSE_MAX: Duration = Duration::from_millis(50);

impl Mappings {
    pub(super) fn new(space: AddressSpace) -> Self {
        Self {
            space: Arc::new(space),
            generated: GeneratedCode::default(),
            link_map: None,
            is_stale: false,
            is_unsearched: false,
            registered: 0,
            has_new: false,
            is_outdated: false,
            read: Instant::now(),
            searched: Instant::now(),
            period: READ_PERIOD,
            reload: Duration::ZERO,
        }
    }

    pub(super) fn of_child(space: AddressSpace, generated: GeneratedCode) -> Self {
        Self { generated, ..Self::new(space) }
    }

    pub(super) fn is_due(&self) -> bool {
        (self.is_stale || self.is_unsearched) && self.searched.elapsed() >= self.period
    }

    /// Whether to read the mappings again for stacks that wait for that.
    pub(super) fn is_reload_due(&self) -> bool {
        self.read.elapsed() >= (self.reload * RELOAD_PAUSE).min(RELOAD_PAUSE_MAX)
    }

    pub(super) fn note_reload(&mut self, took: Duration) {
        self.reload = took;
    }

    /// Whether the kernel side knows other mappings than the latest.
    pub(super) fn is_unregistered(&self) -> bool {
        self.is_outdated || self.registered != self.space.version()
    }

    pub(super) fn note_registered(&mut self) {
        self.registered = self.space.version();
        self.is_outdated = false;
    }

    /// Notes what the process has just mapped.
    pub(super) fn map(&mut self, mapped: &Mapped) {
        let space = Arc::make_mut(&mut self.space);
        let is_new = !mapped.is_corrected && (mapped.has_replaced || space.replaces(mapped));
        space.map(mapped);
        trace!("{mapped:?}");
        if is_new {
            self.note_changes();
        }
    }

    /// Notes that the mappings have changed since they were read: they are to be registered again.
    pub(super) fn note_changes(&mut self) {
        (self.has_new, self.is_outdated) = (true, true);
    }

    /// Whether to read the mappings again because the process has mapped code.
    pub(super) fn is_new_due(&self) -> bool {
        self.has_new && self.is_reload_due()
    }

    pub(super) fn note_search(&mut self) {
        self.searched = Instant::now();
    }

    pub(super) fn has_changed(&self) -> bool {
        self.link_map.as_ref().is_some_and(LinkMap::changed)
    }

    pub(super) fn check(&mut self, stack: &Stack) {
        self.generated.observe(stack, &self.space);
        self.is_stale |= stack.frames.iter().any(|&frame| !self.space.covers(frame.inside_call()));
    }

    /// `changes` counts the changes of the mappings that the kernel side has seen.
    pub(super) fn refresh(
        &mut self,
        pid: Pid,
        is_gone: bool,
        changes: impl Fn() -> Changes,
        modules: &mut ModuleStore,
    ) {
        self.is_stale = false;
        self.has_new = false;
        self.read = Instant::now();
        if is_gone {
            return;
        }
        self.link_map = LinkMap::read(pid);
        let version = self.space.version();
        match Arc::make_mut(&mut self.space).refresh_watched(changes, modules) {
            Ok(added) => {
                self.is_unsearched |= !added.is_empty();
                let longer = (self.period * 2).min(READ_PERIOD_MAX);
                self.period = if self.space.version() == version { longer } else { READ_PERIOD };
            }
            Err(error) => debug!("process {pid}: {error}"),
        }
    }
}
