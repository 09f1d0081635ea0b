//! The hooks of one target: which there are, which are attached, and why the others are not.

use std::cell::OnceCell;
use std::sync::Arc;

use anyhow::{Context, Result};
use tracing::warn;

use crate::allocator::resolve::ResolvedHook;
use crate::bpf::load::{Kernel, LinkKind};
use crate::guardrail::overhead::CallCosts;
use crate::ids::{HeapId, HookId, ModuleId, Pid};
use crate::keeper::Link;
use crate::ledger::totals::Totals;
use crate::linux::memory;
use crate::linux::proc::stat::Stat;
use crate::model::HookStatus;
use crate::object::module::ModuleStore;
use crate::probe::attach::{Probe, backend_name};
use crate::probe::code::Code;
use crate::probe::cost::Costs;
use crate::probe::leftover::Place;
use crate::probe::place::{Class, Emulation, PlaceError, PlacementMode, place};
use crate::probe::plan::{Plan, PlannedHook};
use crate::snapshot::HeapFacts;

use super::links::Links;
use super::probes::Probes;

#[derive(Default)]
pub(super) struct Hooks {
    states: Vec<HookState>,
    links: Vec<Arc<Link>>,
    backend: &'static str,
}

#[derive(Clone)]
struct HookState {
    id: HookId,
    /// In this target, calls of its name reach it unless something special is done.
    reached: bool,
    /// In this target, the profile is not whole without it.
    required: bool,
    /// The target has its module mapped, or had.
    mapped: bool,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// To be attached.
    Wanted,
    Attached,
    /// Why it is not.
    Failed(String),
}

/// Why a hook that may throw is left alone.
const THROWS: &str = "it may throw a C++ exception, which only session links survive (Linux 6.13)";

impl Hooks {
    /// Adds hooks that are not there yet. Returns the numbers of all that were found.
    pub(super) fn add(
        &mut self,
        found: &[ResolvedHook],
        mode: PlacementMode,
        modules: &ModuleStore,
        plan: &mut Plan,
    ) -> Result<Vec<HookId>> {
        let mut ids = Vec::with_capacity(found.len());
        for hook in found {
            let module = modules.get(hook.module);
            let placed = || {
                let code = Code::read(module, hook.offset, hook.size_bytes)?;
                place(&code.function(), &hook.spec, mode, Emulation::default())
            };
            let id = plan.add(hook, placed)?;
            self.want(id);
            ids.push(id);
            if let Some(state) = self.states.iter_mut().find(|state| state.id == id) {
                (state.reached, state.required) = (hook.reached_by_default, hook.required);
            }
        }
        Ok(ids)
    }

    /// Adds a hook that the plan has already.
    pub(super) fn want(&mut self, id: HookId) {
        if self.states.iter().all(|hook| hook.id != id) {
            self.states.push(HookState { id, reached: false, required: false, mapped: false, state: State::Wanted });
        }
    }

    /// The same hooks for another process, none of them attached.
    pub(super) fn for_child(&self) -> Self {
        let unattached = |hook: &HookState| HookState { state: State::Wanted, ..hook.clone() };
        let mapped = self.states.iter().filter(|hook| hook.mapped);
        Self { states: mapped.map(unattached).collect(), ..Self::default() }
    }

    /// The hooks for the program that this process becomes by exec: links follow the process, and take hold again where the
    /// new program maps the same modules. What was attached stays written here.
    pub(super) fn succeed(&mut self) -> Self {
        let unmapped = |hook: &HookState| HookState { mapped: false, ..hook.clone() };
        Self {
            states: self.states.iter().map(unmapped).collect(),
            links: std::mem::take(&mut self.links),
            backend: self.backend,
        }
    }

    /// Attaches what is wanted, hooks that free first: a block that is tracked can then not be freed unseen. All hooks of
    /// a module go together; when that is refused each goes alone, so that one bad hook does not cost the others.
    ///
    /// # Errors
    ///
    /// When a module has no file. That a hook cannot be attached is noted with it.
    pub(super) fn attach(
        &mut self,
        pid: Pid,
        kernel: &Kernel,
        links: &mut Links,
        modules: &ModuleStore,
        plan: &Plan,
    ) -> Result<()> {
        let kind = kernel.link_kind();
        self.backend = backend_name(kind);
        let limits = OnceCell::new();
        let wanted = self.states.iter().filter(|hook| hook.state == State::Wanted);
        for id in modules_of(wanted, plan) {
            let module = modules.get(id);
            let file = module.file().with_context(|| format!("module `{}` has no file", module.path()))?;
            let (mut hooks, mut probes) = (Vec::new(), Vec::new());
            let wanted = self.states.iter_mut().filter(|hook| hook.state == State::Wanted);
            for hook in wanted.filter(|hook| plan.hook(hook.id).hook.module == id) {
                match probe(plan.hook(hook.id), kind, &limits, pid) {
                    Ok(probe) => {
                        probes.push((hook.id, probe));
                        hooks.push(hook);
                    }
                    Err(reason) => hook.state = State::Failed(reason),
                }
            }
            if probes.is_empty() {
                continue;
            }
            if let Ok(attached) = links.attach(kernel, file, &probes, pid) {
                self.links.extend(attached);
                hooks.iter_mut().for_each(|hook| hook.state = State::Attached);
                continue;
            }
            for (hook, probe) in hooks.iter_mut().zip(&probes) {
                hook.state = match links.attach(kernel, file, std::slice::from_ref(probe), pid) {
                    Ok(attached) => {
                        self.links.extend(attached);
                        State::Attached
                    }
                    Err(error) => {
                        // Who has ended meanwhile is no reason to complain of each function.
                        if Stat::read(pid).is_ok_and(|stat| !stat.has_ended()) {
                            warn!("cannot watch `{}` of process {pid}: {error}", plan.hook(hook.id).hook.spec.function);
                        }
                        State::Failed(error.to_string())
                    }
                };
            }
        }
        Ok(())
    }

    /// These modules are mapped. Of hooks in others nothing is told, but their probes stay, should those be mapped yet.
    pub(super) fn mark_mapped(&mut self, plan: &Plan, mapped: &[ModuleId]) {
        for hook in &mut self.states {
            hook.mapped |= mapped.contains(&plan.hook(hook.id).hook.module);
        }
    }

    /// The modules that these hooks are in.
    pub(super) fn modules(&self, plan: &Plan) -> Vec<ModuleId> {
        modules_of(self.states.iter(), plan)
    }

    /// Their numbers.
    pub(super) fn ids(&self) -> impl Iterator<Item = HookId> {
        self.mapped().map(|hook| hook.id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// How many are attached, in modules that are mapped.
    pub(super) fn attached(&self) -> usize {
        self.mapped().filter(|hook| hook.state == State::Attached).count()
    }

    /// Those that are attached, whether their modules are mapped or not.
    pub(super) fn attached_ids(&self) -> Vec<HookId> {
        self.states.iter().filter(|hook| hook.state == State::Attached).map(|hook| hook.id).collect()
    }

    fn mapped(&self) -> impl Iterator<Item = &HookState> {
        self.states.iter().filter(|hook| hook.mapped)
    }

    /// Why the first one that is not attached is not.
    pub(super) fn first_error(&self) -> Option<&str> {
        self.mapped().find_map(|hook| match &hook.state {
            State::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    /// The instructions in files that its probes are at, or are to be.
    pub(super) fn places<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (HookId, Place)> + 'a {
        self.states.iter().map(|hook| placed(hook, plan))
    }

    /// The same of those that are to be attached.
    pub(super) fn unattached_places<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (HookId, Place)> + 'a {
        self.states.iter().filter(|hook| hook.state == State::Wanted).map(|hook| placed(hook, plan))
    }

    /// What is attached, to be detached.
    pub(super) fn take_links(&mut self) -> Vec<Arc<Link>> {
        std::mem::take(&mut self.links)
    }

    /// The hooks that were found.
    pub(super) fn planned<'a>(&self, plan: &'a Plan) -> impl Iterator<Item = &'a PlannedHook> {
        self.mapped().map(|hook| plan.hook(hook.id))
    }

    /// What calls of its functions cost, allocating and freeing: the mean over those that are attached, of those that few
    /// programs call only where there are no others. `None` when nothing is attached.
    pub(super) fn call_costs(&self, plan: &Plan, costs: &Costs) -> Option<CallCosts> {
        let attached: Vec<&HookState> = self.mapped().filter(|hook| hook.state == State::Attached).collect();
        let mean = |allocates: bool| {
            let all = attached.iter().filter(|hook| plan.hook(hook.id).hook.spec.shape.allocates() == allocates);
            let (required, others): (Vec<&HookState>, Vec<&HookState>) = all.partition(|hook| hook.required);
            let used = if required.is_empty() { others } else { required };
            let each: Vec<f64> = used
                .iter()
                .filter_map(|hook| {
                    let planned = plan.hook(hook.id);
                    let class = planned.placement.as_ref().ok()?.class;
                    Some(costs.expected_ns(class, planned.hook.spec.shape))
                })
                .collect();
            #[expect(clippy::cast_precision_loss, reason = "hooks count by the dozen")]
            let count = each.len() as f64;
            (count > 0.0).then(|| each.iter().sum::<f64>() / count)
        };
        let (alloc_ns, free_ns) = (mean(true), mean(false));
        (alloc_ns.is_some() || free_ns.is_some())
            .then(|| CallCosts { alloc_ns: alloc_ns.unwrap_or(0.0), free_ns: free_ns.unwrap_or(0.0) })
    }

    /// The heaps with their hooks: those with events, then those without.
    pub(super) fn heaps(&self, totals: &[(HeapId, Totals)], probes: &Probes) -> Vec<HeapFacts> {
        let plan = &probes.discovery.plan;
        let heap = |id: HeapId| HeapFacts {
            id,
            name: plan.heaps()[usize::from(id.0)].clone(),
            interval_bytes: u64::from(probes.interval(&plan.heaps()[usize::from(id.0)]).bytes()),
            interval_bytes_max: 0,
            hooks: self
                .mapped()
                .filter(|hook| plan.hook(hook.id).heap == id)
                .flat_map(|hook| self.statuses(hook, plan))
                .collect(),
        };
        self.heap_ids(totals, plan).into_iter().map(heap).collect()
    }

    /// The heaps in that order.
    pub(super) fn heap_ids(&self, totals: &[(HeapId, Totals)], plan: &Plan) -> Vec<HeapId> {
        let mut ids: Vec<HeapId> = totals.iter().map(|(id, _)| *id).collect();
        // One that calls reach in special cases only is in use if it has events.
        for heap in self.mapped().filter(|hook| hook.reached).map(|hook| plan.hook(hook.id).heap) {
            if !ids.contains(&heap) {
                ids.push(heap);
            }
        }
        ids
    }

    /// A hook under each of its names: a reader looks for `memalign`, whatever else the allocator calls it.
    fn statuses(&self, hook: &HookState, plan: &Plan) -> Vec<HookStatus> {
        let planned = plan.hook(hook.id);
        let (found, placement) = (&planned.hook, planned.placement.as_ref().ok());
        let error = match &hook.state {
            State::Attached => None,
            State::Wanted => Some("not attached".to_owned()),
            State::Failed(reason) => Some(reason.clone()),
        };
        let status = |function: &str| HookStatus {
            function: function.to_owned(),
            module: found.path.clone(),
            backend: self.backend.to_owned(),
            offset: planned.offset().0,
            instruction: placement.map(|placement| placement.instruction.clone()),
            emulated: placement.map(|placement| placement.class == Class::Emulated),
            required: hook.required,
            error: error.clone(),
        };
        std::iter::once(found.spec.function).chain(found.aliases.iter().copied()).map(status).collect()
    }
}

fn placed(hook: &HookState, plan: &Plan) -> (HookId, Place) {
    let planned = plan.hook(hook.id);
    (hook.id, (planned.hook.module, planned.offset()))
}

/// The modules that hooks are in, each once.
fn modules_of<'a>(hooks: impl Iterator<Item = &'a HookState>, plan: &Plan) -> Vec<ModuleId> {
    let mut modules: Vec<ModuleId> = hooks.map(|hook| plan.hook(hook.id).hook.module).collect();
    modules.sort_unstable();
    modules.dedup();
    modules
}

fn probe(planned: &PlannedHook, kind: LinkKind, limits: &OnceCell<Option<String>>, pid: Pid) -> Result<Probe, String> {
    if planned.hook.spec.may_throw {
        if kind != LinkKind::Session {
            return Err(THROWS.to_owned());
        }
        if let Some(limit) = limits.get_or_init(|| memory::memory_limit_reason(pid)) {
            return Err(format!("it may throw a C++ exception, which a probe does not survive, and {limit}"));
        }
    }
    let cookie = planned.cookie().map_err(PlaceError::to_string)?;
    Ok(Probe { offset: planned.offset(), cookie })
}
