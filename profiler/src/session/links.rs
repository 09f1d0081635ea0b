//! Links that attach probes: of single targets, or shared by all processes that map a file.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use heapbpf_base::ids::{HookId, Pid};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_linux::clock;
use profiler_common::hook::{HookCookie, ProbeScope};
use rustc_hash::FxHashMap;

use super::scope::Scope;
use crate::bpf::load::Kernel;
use crate::keeper::{Keeper, Link};
use crate::probe::attach::{AttachError, Probe, attach};

/// A link as one of its targets has it.
#[derive(Debug)]
pub(super) struct OwnLink {
    #[expect(dead_code, reason = "dropping the last clone detaches it")]
    link: Arc<Link>,
    scope: ProbeScope,
    /// Time by which the link was attached.
    attached: MonotonicNanos,
}

impl OwnLink {
    fn new(link: Arc<Link>, scope: ProbeScope) -> Self {
        Self { link, scope, attached: clock::now().monotonic }
    }

    /// Whether the link belongs to this process alone, and so is replaced when the target shares probes.
    pub(super) fn is_of_process(&self) -> bool {
        self.scope == ProbeScope::Process
    }

    pub(super) fn was_attached_by(&self, time: MonotonicNanos) -> bool {
        self.attached <= time
    }
}

/// Links of single targets, or shared by all processes that map a file.
///
/// The kernel's work for a link of a single process grows with the number of links at the same instruction, both at a
/// hit (see [`Scope`]) and at closing, which checks each process that maps the file. Detaching from 2,000 took 90 s.
#[derive(Debug)]
pub(super) struct Links {
    pub(super) keeper: Keeper,
    pub(super) scope: Scope,
    shared: FxHashMap<HookId, Weak<Link>>,
    /// Hooks that have been attached at any time.
    attached: BTreeSet<HookId>,
    /// Links that were replaced by shared ones, with the times. Calls that they have recorded at the entry may not have
    /// returned yet.
    pub(super) replaced: Vec<(Instant, OwnLink)>,
}

const REPLACED_DURATION: Duration = Duration::from_millis(200);

impl Links {
    pub(super) fn new(keeper: Keeper, scope: Scope) -> Self {
        Self { keeper, scope, shared: FxHashMap::default(), attached: BTreeSet::new(), replaced: Vec::new() }
    }

    pub(super) fn attached(&self) -> impl Iterator<Item = HookId> {
        self.attached.iter().copied()
    }

    pub(super) fn is_shared(&self, hook: HookId) -> bool {
        self.shared.get(&hook).is_some_and(|link| link.strong_count() > 0)
    }

    pub(super) fn replace(&mut self, links: Vec<OwnLink>) {
        self.replaced.extend(links.into_iter().map(|link| (Instant::now(), link)));
    }

    pub(super) fn detach_replaced(&mut self) {
        self.replaced.retain(|(since, _)| since.elapsed() < REPLACED_DURATION);
    }

    /// Attaches hooks of a file, all or none, for one process or for all that map the file. Links of functions that may
    /// throw are of all processes: one of a single process lets the kernel replace returns in other processes that have
    /// a breakpoint there, such as other targets, without asking the program whether the call may throw
    /// (`uprobe_multi_link_handler` in kernel/trace/bpf_trace.c, up to 7.3).
    pub(super) fn attach(
        &mut self,
        kernel: &Kernel,
        file: &File,
        hooks: &[(HookId, Probe)],
        pid: Option<Pid>,
    ) -> Result<Vec<OwnLink>, AttachError> {
        let (throwing, others): (Vec<_>, Vec<_>) = hooks.iter().copied().partition(|(_, probe)| probe.cookie.may_throw);
        let mut links = match pid {
            Some(pid) => self.attach_own(kernel, file, &others, pid)?.into_iter().collect(),
            None => self.attach_shared(kernel, file, &others, ProbeScope::Shared)?,
        };
        links.extend(self.attach_shared(kernel, file, &throwing, ProbeScope::Any)?);
        self.attached.extend(hooks.iter().map(|(id, _)| *id));
        Ok(links)
    }

    fn attach_own(
        &self,
        kernel: &Kernel,
        file: &File,
        hooks: &[(HookId, Probe)],
        pid: Pid,
    ) -> Result<Option<OwnLink>, AttachError> {
        let probes: Vec<Probe> = hooks.iter().map(|&(_, probe)| scoped(probe, ProbeScope::Process)).collect();
        let link = || attach(&self.keeper, kernel, file, &probes, Some(pid)).map(Arc::new);
        Ok(if probes.is_empty() { None } else { Some(OwnLink::new(link()?, ProbeScope::Process)) })
    }

    pub(super) fn attach_shared(
        &mut self,
        kernel: &Kernel,
        file: &File,
        hooks: &[(HookId, Probe)],
        scope: ProbeScope,
    ) -> Result<Vec<OwnLink>, AttachError> {
        let mut links: Vec<Arc<Link>> = Vec::new();
        let (mut missing, mut probes) = (Vec::new(), Vec::new());
        for &(id, probe) in hooks {
            match self.shared.get(&id).and_then(Weak::upgrade) {
                Some(link) if links.iter().any(|other| Arc::ptr_eq(other, &link)) => {}
                Some(link) => links.push(link),
                None => {
                    missing.push(id);
                    probes.push(scoped(probe, scope));
                }
            }
        }
        if !probes.is_empty() {
            let link = Arc::new(attach(&self.keeper, kernel, file, &probes, None)?);
            self.shared.extend(missing.into_iter().map(|id| (id, Arc::downgrade(&link))));
            links.push(link);
        }
        Ok(links.into_iter().map(|link| OwnLink::new(link, scope)).collect())
    }
}

/// Returns the probe for a link of this scope.
pub(super) fn scoped(probe: Probe, scope: ProbeScope) -> Probe {
    Probe { cookie: HookCookie { scope, ..probe.cookie }, ..probe }
}
