//! Which links serve a target: one of its own for each file, or one that all processes share.
//!
//! The kernel's work for a link that is limited to a process grows with the number of links at the same instruction: to close one
//! of N it asks each of the processes that map the file, for each of the others, whether they want the breakpoint. So 2,000
//! processes took 90 s to detach. With `--all` nearly every process that maps an allocator is a target, so one link without such a
//! limit serves them all. The programs sample targets alone.

use std::fs::File;
use std::sync::{Arc, Weak};

use rustc_hash::FxHashMap;

use super::config::SessionConfig;
use crate::bpf::load::{Kernel, LinkKind};
use crate::ids::{HookId, Pid};
use crate::keeper::{Keeper, Link};
use crate::probe::attach::{AttachError, Probe, attach};

#[derive(Debug)]
pub(super) struct Links {
    keeper: Keeper,
    is_shared: bool,
    shared: FxHashMap<HookId, Weak<Link>>,
}

impl Links {
    /// Links are shared where all processes are targets, and nothing asks for one of them to be left alone or detached from.
    pub(super) fn new(keeper: Keeper, config: &SessionConfig, kind: LinkKind) -> Self {
        let selection = &config.selection;
        let is_shared = selection.all
            && selection.exclude.is_empty()
            && selection.min_rss_bytes == 0
            && config.limits.overhead_percent_max.is_none()
            && kind != LinkKind::Perf;
        Self { keeper, is_shared, shared: FxHashMap::default() }
    }

    /// The process that owns them.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Whether a link of all processes has a probe at this hook.
    pub(super) fn is_shared(&self, hook: HookId) -> bool {
        self.shared.get(&hook).is_some_and(|link| link.strong_count() > 0)
    }

    /// Attaches probes of one file, all or none. A function that may throw is probed for each process by itself, because it depends
    /// on the process whether it may be probed at all.
    pub(super) fn attach(
        &mut self,
        kernel: &Kernel,
        file: &File,
        hooks: &[(HookId, Probe)],
        pid: Pid,
    ) -> Result<Vec<Arc<Link>>, AttachError> {
        let (shared, own): (Vec<_>, Vec<_>) =
            hooks.iter().copied().partition(|(_, probe)| self.is_shared && !probe.cookie.may_throw);
        let mut links = Vec::new();
        let (mut missing, mut probes) = (Vec::new(), Vec::new());
        for (id, probe) in shared {
            match self.shared.get(&id).and_then(Weak::upgrade) {
                Some(link) if links.iter().any(|other| Arc::ptr_eq(other, &link)) => {}
                Some(link) => links.push(link),
                None => {
                    missing.push(id);
                    probes.push(probe);
                }
            }
        }
        if !probes.is_empty() {
            let link = Arc::new(attach(&self.keeper, kernel, file, &probes, None)?);
            self.shared.extend(missing.into_iter().map(|id| (id, Arc::downgrade(&link))));
            links.push(link);
        }
        if !own.is_empty() {
            let probes: Vec<Probe> = own.iter().map(|&(_, probe)| probe).collect();
            links.push(Arc::new(attach(&self.keeper, kernel, file, &probes, Some(pid))?));
        }
        Ok(links)
    }
}
