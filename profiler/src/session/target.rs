//! All that a session keeps of one target.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tracing::{debug, warn};

use crate::allocator::hook_set::HookSet;
use crate::allocator::resolve::{resolve, symbols};
use crate::allocator::selection::HeapSelection;
use crate::bpf::load::Kernel;
use crate::ids::{HeapId, HookId, ModuleId, Pid};
use crate::ingest::event::Event;
use crate::ledger::Ledger;
use crate::ledger::totals::Totals;
use crate::object::module::ModuleStore;
use crate::probe::attach::{Backend, Link, Probe};
use crate::probe::code::Code;
use crate::probe::place::{Class, Emulation, PlaceError, PlacementMode, place};
use crate::probe::plan::{Plan, PlannedHook};
use crate::report::profile::{HeapProfile, HookStatus};
use crate::target::address_space::AddressSpace;
use crate::target::definitions::Definitions;
use crate::target::link_map::LinkMap;
use crate::target::process::{Exit, Process};

/// One target: the process, its code, its books, its probes.
pub(super) struct Target {
    pub(super) process: Process,
    pub(super) space: AddressSpace,
    pub(super) ledger: Ledger,
    pub(super) exit: Option<Exit>,
    hooks: Vec<HookState>,
    links: Vec<Link>,
    backend: &'static str,
    /// A stack had code that no known mapping covers: look at the mappings again.
    space_stale: bool,
    space_read: Instant,
}

/// Mappings are read no more often than this.
const SPACE_PERIOD: Duration = Duration::from_millis(100);

struct HookState {
    id: HookId,
    /// Why it is not attached, if it is not.
    error: Option<String>,
}

impl Target {
    /// Finds a process, its modules and the functions that its calls to the allocator reach.
    pub(super) fn find(pid: Pid, mode: PlacementMode, modules: &mut ModuleStore, plan: &mut Plan) -> Result<Self> {
        let process = Process::open(pid)?;
        let mut space = AddressSpace::new(pid);
        space.refresh(modules)?;
        let set = HookSet::default();
        let mut definitions = Definitions::new(symbols(&set), set.named_modules());
        let candidates = definitions.candidates(&space, modules, LinkMap::read(pid).as_ref());
        let found = resolve(&candidates, &set, &HeapSelection::default())
            .with_context(|| format!("cannot profile process `{pid}`"))?;
        let mut hooks = Vec::new();
        for hook in &found {
            let module = modules.get(hook.module);
            let place = || {
                let code = Code::read(module, hook.offset, hook.size_bytes)?;
                place(&code.function(), &hook.spec, mode, Emulation::default())
            };
            hooks.push(HookState { id: plan.add(hook, place)?, error: Some("not attached".to_owned()) });
        }
        let ledger = Ledger::new(pid);
        Ok(Self {
            process,
            space,
            ledger,
            exit: None,
            hooks,
            links: Vec::new(),
            backend: "",
            space_stale: false,
            space_read: Instant::now(),
        })
    }

    /// Attaches the hooks, those that free first: a block that is tracked can then not be freed unseen. All hooks of a
    /// module go together; when that is refused each goes alone, so that one bad hook does not cost the others.
    pub(super) fn attach(
        &mut self,
        kernel: &mut Kernel,
        modules: &ModuleStore,
        plan: &Plan,
        backend: &dyn Backend,
    ) -> Result<()> {
        self.backend = backend.name();
        let mut ids: Vec<ModuleId> = self.hooks.iter().map(|hook| plan.hook(hook.id).hook.module).collect();
        ids.dedup();
        for id in ids {
            let module = modules.get(id);
            let file = module.file().with_context(|| format!("module `{}` has no file", module.path()))?;
            let (mut hooks, mut probes) = (Vec::new(), Vec::new());
            for hook in self.hooks.iter_mut().filter(|hook| plan.hook(hook.id).hook.module == id) {
                match probe(plan.hook(hook.id)) {
                    Ok(probe) => {
                        hooks.push(hook);
                        probes.push(probe);
                    }
                    Err(error) => hook.error = Some(error.to_string()),
                }
            }
            if let Ok(links) = backend.attach(kernel, file, &probes, self.process.pid) {
                self.links.extend(links);
                hooks.iter_mut().for_each(|hook| hook.error = None);
                continue;
            }
            for (hook, probe) in hooks.iter_mut().zip(&probes) {
                match backend.attach(kernel, file, std::slice::from_ref(probe), self.process.pid) {
                    Ok(links) => {
                        self.links.extend(links);
                        hook.error = None;
                    }
                    Err(error) => {
                        warn!("cannot watch `{}`: {error}", plan.hook(hook.id).hook.spec.function);
                        hook.error = Some(error.to_string());
                    }
                }
            }
        }
        if self.links.is_empty() {
            let error = self.hooks.iter().find_map(|hook| hook.error.as_ref());
            bail!(
                "no probe could be attached to process `{}`: {}",
                self.process.pid,
                error.map_or("it has no hooks", String::as_str)
            );
        }
        Ok(())
    }

    /// What is attached, to be detached.
    pub(super) fn take_links(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.links)
    }

    /// The hooks that were found.
    pub(super) fn planned<'a>(&self, plan: &'a Plan) -> impl Iterator<Item = &'a PlannedHook> {
        self.hooks.iter().map(|hook| plan.hook(hook.id))
    }

    pub(super) fn attached_count(&self) -> usize {
        self.hooks.iter().filter(|hook| hook.error.is_none()).count()
    }

    /// Takes an event of this target to the books.
    pub(super) fn enter(&mut self, event: Event) {
        if let Event::Stack(_, _, stack) = &event {
            self.space_stale |= stack.frames.iter().any(|&frame| !self.space.covers(frame.inside_call()));
        }
        self.ledger.enter(event);
    }

    /// Looks at the mappings again if a stack asked for it: the modules that it names must be opened while they are
    /// there. True when something new is mapped.
    pub(super) fn refresh_space(&mut self, modules: &mut ModuleStore) -> bool {
        // A stack may hold garbage that no mapping will ever cover.
        if !self.space_stale || self.space_read.elapsed() < SPACE_PERIOD {
            return false;
        }
        self.space_stale = false;
        self.space_read = Instant::now();
        match self.space.refresh(modules) {
            Ok(new) => !new.is_empty(),
            Err(error) => {
                debug!("process {}: {error}", self.process.pid);
                false
            }
        }
    }

    /// The heaps of this target with their hooks and totals: those with events in the order of the snapshot, to which
    /// callsites refer, then those without.
    pub(super) fn heaps(&self, plan: &Plan, totals: &[(HeapId, Totals)]) -> Vec<HeapProfile> {
        let mut ids: Vec<HeapId> = totals.iter().map(|(id, _)| *id).collect();
        // A heap that calls reach in special cases only is in use if it has events.
        let reached = self.planned(plan).filter(|planned| planned.hook.reached_by_default);
        for heap in reached.map(|planned| planned.heap) {
            if !ids.contains(&heap) {
                ids.push(heap);
            }
        }
        let heap = |(index, id): (usize, HeapId)| HeapProfile {
            name: plan.heaps()[usize::from(id.0)].clone(),
            hooks: self
                .hooks
                .iter()
                .filter(|hook| plan.hook(hook.id).heap == id)
                .flat_map(|hook| self.statuses(hook, plan))
                .collect(),
            totals: totals.get(index).map(|(_, totals)| *totals).unwrap_or_default(),
        };
        ids.into_iter().enumerate().map(heap).collect()
    }

    /// A hook under each of its names: a reader looks for `memalign`, whatever else the allocator calls it.
    fn statuses(&self, hook: &HookState, plan: &Plan) -> Vec<HookStatus> {
        let planned = plan.hook(hook.id);
        let (found, placement) = (&planned.hook, planned.placement.as_ref().ok());
        let status = |function: &str| HookStatus {
            function: function.to_owned(),
            module: found.path.clone(),
            backend: self.backend.to_owned(),
            offset: planned.offset().0,
            instruction: placement.map(|placement| placement.instruction.clone()),
            emulated: placement.map(|placement| placement.class == Class::Emulated),
            error: hook.error.clone(),
        };
        std::iter::once(found.spec.function).chain(found.aliases.iter().copied()).map(status).collect()
    }
}

fn probe(planned: &PlannedHook) -> Result<Probe, &PlaceError> {
    Ok(Probe { offset: planned.offset(), cookie: planned.cookie()? })
}
