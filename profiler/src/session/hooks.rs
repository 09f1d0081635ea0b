//! Hooks of one target and their state.

use std::cell::LazyCell;

use anyhow::{Context, Result};
use heapbpf_base::ids::{HeapId, HookId, ModuleId};
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{HookKind, HookStatus};
use heapbpf_ledger::totals::Totals;
use heapbpf_linux::memory;
use heapbpf_linux::proc::stat::Stat;
use heapbpf_linux::rights::Rights;
use profiler_common::hook::{CallShape, ProbeScope};
use tracing::warn;

use super::links::{Links, OwnLink, scoped};
use super::rates::Rates;
use crate::allocator::no_return;
use crate::allocator::resolve::ResolvedHook;
use crate::bpf::load::{Kernel, LinkKind};
use crate::guardrail::CallCosts;
use crate::object::module::ModuleStore;
use crate::probe::attach::{Probe, addresses};
use crate::probe::code::{Code, PlaceError};
use crate::probe::cost::Costs;
use crate::probe::cost::expected_ns;
use crate::probe::leftover::CodeLocation;
use crate::probe::place::{Class, Emulation, PlacementMode, place};
use crate::probe::plan::{Plan, PlannedHook};
use crate::probe::presence::{self, Absence};
use crate::process::address_space::AddressSpace;
use crate::snapshot::HeapFacts;

#[derive(Default)]
pub(super) struct Hooks {
    states: Vec<HookState>,
    links: Vec<OwnLink>,
    backend: &'static str,
    /// Whether the links of the target are those that all processes share.
    shares: bool,
}

#[derive(Clone)]
struct HookState {
    id: HookId,
    /// Whether ordinary calls of the function reach the hook in this target.
    reached: bool,
    /// Whether the target's profile is incomplete without the hook.
    required: bool,
    /// Whether the target maps the hook's module, or did.
    mapped: bool,
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Wanted,
    Attached,
    Failed(String),
}

impl Hooks {
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
                place(&code, &hook.spec, mode, Emulation::default())
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

    /// Chooses between shared links and the target's own, for a target that has no links yet.
    pub(super) fn set_shared(&mut self, shares: bool) {
        self.shares = shares;
    }

    pub(super) fn want(&mut self, id: HookId) {
        if self.states.iter().all(|hook| hook.id != id) {
            self.states.push(HookState { id, reached: false, required: false, mapped: false, state: State::Wanted });
        }
    }

    pub(super) fn for_child(&self) -> Self {
        let unattached = |hook: &HookState| HookState { state: State::Wanted, ..hook.clone() };
        let mapped = self.states.iter().filter(|hook| hook.mapped);
        Self { states: mapped.map(unattached).collect(), shares: self.shares, ..Self::default() }
    }

    /// Whether the kernel side is to record the target by shared probes.
    pub(super) fn are_shared(&self) -> bool {
        self.shares
    }

    /// Returns the hooks after an exec: links take effect again where the same modules are mapped. `self` keeps its
    /// states.
    pub(super) fn succeed(&mut self) -> Self {
        let unmapped = |hook: &HookState| HookState { mapped: false, ..hook.clone() };
        Self {
            states: self.states.iter().map(unmapped).collect(),
            links: std::mem::take(&mut self.links),
            backend: self.backend,
            shares: self.shares,
        }
    }

    /// Whether all links had been attached by this time.
    pub(super) fn were_attached_by(&self, time: MonotonicNanos) -> bool {
        self.links.iter().all(|link| link.was_attached_by(time))
    }

    /// Attaches freeing functions first, to miss no free of a tracked block. All hooks of a module are attached at
    /// once; if that fails, one by one. Fails when a module has no file; a hook keeps the reason of its failure.
    pub(super) fn attach(
        &mut self,
        space: &AddressSpace,
        kernel: &Kernel,
        links: &mut Links,
        modules: &ModuleStore,
        plan: &Plan,
    ) -> Result<()> {
        let (pid, kind) = (space.pid(), kernel.link_kind());
        self.backend = kind.into();
        let throws = LazyCell::new(|| refusal_of_throwing(kernel));
        let of = (!self.shares).then_some(pid);
        let wanted = self.states.iter().filter(|hook| hook.state == State::Wanted);
        for id in modules_of(wanted, plan) {
            let module = modules.get(id);
            let file = module.file().with_context(|| format!("module `{}` has no file", module.path()))?;
            let (mut hooks, mut probes) = (Vec::new(), Vec::new());
            let wanted = self.states.iter_mut().filter(|hook| hook.state == State::Wanted);
            for hook in wanted.filter(|hook| plan.hook(hook.id).hook.module == id) {
                let planned = plan.hook(hook.id);
                let probe = match presence::ensure(space, modules, id, planned.offset()) {
                    // The hook is attached when the file is mapped.
                    Err(Absence::Unmapped) => continue,
                    Err(Absence::Refused(reason)) => Err(reason.to_owned()),
                    Ok(()) => probe(planned, || throws.clone()),
                };
                match probe {
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
            if let Ok(attached) = links.attach(kernel, file, &probes, of) {
                self.links.extend(attached);
                hooks.iter_mut().for_each(|hook| hook.state = State::Attached);
                continue;
            }
            for (hook, probe) in hooks.iter_mut().zip(&probes) {
                hook.state = match links.attach(kernel, file, std::slice::from_ref(probe), of) {
                    Ok(attached) => {
                        self.links.extend(attached);
                        State::Attached
                    }
                    Err(error) => {
                        // An exited process is not worth a warning per function.
                        if Stat::of_process(pid).is_ok_and(|stat| !stat.has_ended()) {
                            let function = &plan.hook(hook.id).hook.spec.function;
                            warn!("cannot attach to `{function}` of process {pid}: {error}");
                        }
                        State::Failed(error.to_string())
                    }
                };
            }
        }
        Ok(())
    }

    /// Attaches shared links in place of the target's own. Returns the replaced links, which have no effect once the
    /// kernel side is informed. On errors, nothing changes.
    pub(super) fn share(
        &mut self,
        kernel: &Kernel,
        links: &mut Links,
        modules: &ModuleStore,
        plan: &Plan,
        rights: Option<&Rights>,
    ) -> Result<Vec<OwnLink>> {
        let mut shared = Vec::new();
        let attached = || self.states.iter().filter(|hook| hook.state == State::Attached);
        for id in modules_of(attached(), plan) {
            let module = modules.get(id);
            let file = module.file().with_context(|| format!("module `{}` has no file", module.path()))?;
            let mut probes = Vec::new();
            for hook in attached() {
                let planned = plan.hook(hook.id);
                if planned.hook.module == id && !planned.hook.spec.may_throw {
                    module.image().map_or(Ok(()), |image| image.prefetch(rights, planned.offset()))?;
                    let cookie = planned.cookie().map_err(Clone::clone)?;
                    probes.push((hook.id, Probe { offset: planned.offset(), cookie }));
                }
            }
            shared.extend(links.attach_shared(kernel, file, &probes, ProbeScope::Shared)?);
        }
        let own = self.links.extract_if(.., |own| own.is_of_process()).collect();
        self.links.extend(shared);
        self.shares = true;
        Ok(own)
    }

    /// Sets the addresses of the target's probes, for kernels without cookies.
    pub(super) fn set_addresses(&self, kernel: &Kernel, space: &AddressSpace, plan: &Plan) -> Result<()> {
        if kernel.has_cookies() {
            return Ok(());
        }
        let mut found = Vec::new();
        for hook in self.states.iter().map(|hook| plan.hook(hook.id)) {
            let Ok(cookie) = hook.cookie() else { continue };
            let probe = scoped(Probe { offset: hook.offset(), cookie }, ProbeScope::Process);
            let mapped = space.mappings().iter().filter(|mapped| mapped.module == Some(hook.hook.module));
            found.extend(addresses(&[probe], mapped.map(|mapped| &mapped.mapping)));
        }
        Ok(kernel.set_probes(space.pid(), &found)?)
    }

    /// Marks hooks in these modules as mapped. Hooks in other modules are not reported, but their probes stay in case
    /// the modules are mapped later.
    pub(super) fn mark_mapped(&mut self, plan: &Plan, mapped: &[ModuleId]) {
        for hook in &mut self.states {
            hook.mapped |= mapped.contains(&plan.hook(hook.id).hook.module);
        }
    }

    pub(super) fn modules(&self, plan: &Plan) -> Vec<ModuleId> {
        modules_of(self.states.iter(), plan)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = HookId> {
        self.mapped().map(|hook| hook.id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    pub(super) fn attached_count(&self) -> usize {
        self.mapped().filter(|hook| hook.state == State::Attached).count()
    }

    pub(super) fn attached_ids(&self) -> Vec<HookId> {
        self.states.iter().filter(|hook| hook.state == State::Attached).map(|hook| hook.id).collect()
    }

    fn mapped(&self) -> impl Iterator<Item = &HookState> {
        self.states.iter().filter(|hook| hook.mapped)
    }

    pub(super) fn first_error(&self) -> Option<&str> {
        self.mapped().find_map(|hook| match &hook.state {
            State::Failed(reason) => Some(reason.as_str()),
            _ => None,
        })
    }

    pub(super) fn places<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (HookId, CodeLocation)> + 'a {
        self.states.iter().map(|hook| place_of(hook, plan))
    }

    pub(super) fn attached_places<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = CodeLocation> + 'a {
        self.mapped().filter(|hook| hook.state == State::Attached).map(|hook| place_of(hook, plan).1)
    }

    pub(super) fn unattached_places<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = (HookId, CodeLocation)> + 'a {
        self.states.iter().filter(|hook| hook.state == State::Wanted).map(|hook| place_of(hook, plan))
    }

    /// Detaches all probes soon: the keeper closes the links.
    pub(super) fn detach(&mut self) {
        self.links.clear();
    }

    pub(super) fn planned<'a>(&self, plan: &'a Plan) -> impl Iterator<Item = &'a PlannedHook> {
        self.mapped().map(|hook| plan.hook(hook.id))
    }

    /// Mean costs of calls; rarely called functions count only if there are no others. `None` when nothing is attached.
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
                    Some(expected_ns(costs, class, planned.hook.spec.shape))
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

    pub(super) fn heaps(&self, totals: &[(HeapId, Totals)], plan: &Plan, rates: &Rates) -> Vec<HeapFacts> {
        let heap = |id: HeapId| HeapFacts {
            id,
            name: plan.heaps()[usize::from(id.0)].clone(),
            interval_bytes: rates.interval_bytes(id),
            interval_bytes_max: rates.interval_bytes_max(id),
            hooks: self
                .mapped()
                .filter(|hook| plan.hook(hook.id).heap == id)
                .flat_map(|hook| self.statuses(hook, plan))
                .collect(),
        };
        self.heap_ids(totals, plan).into_iter().map(heap).collect()
    }

    pub(super) fn heap_ids(&self, totals: &[(HeapId, Totals)], plan: &Plan) -> Vec<HeapId> {
        let mut ids: Vec<HeapId> = totals.iter().map(|(id, _)| *id).collect();
        if let Some(pages) = plan.pages().filter(|pages| !ids.contains(pages)) {
            ids.push(pages);
        }
        // A heap that is reached only in special cases is in use if it has events.
        for heap in self.mapped().filter(|hook| hook.reached).map(|hook| plan.hook(hook.id).heap) {
            if !ids.contains(&heap) {
                ids.push(heap);
            }
        }
        ids
    }

    /// Status of a hook under each of its names: readers of a report search for `memalign`, whatever its alias.
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
            kind: kind(found),
        };
        std::iter::once(found.spec.function).chain(found.aliases.iter().copied()).map(status).collect()
    }
}

fn kind(hook: &ResolvedHook) -> HookKind {
    match (hook.spec.shape, hook.spec.pointer) {
        (CallShape::Entry, None) => HookKind::WithoutAddress,
        (CallShape::Free, _) => HookKind::Freeing,
        (shape, _) if hook.is_custom && shape.allocates() => HookKind::CustomReturn,
        _ => HookKind::Other,
    }
}

fn place_of(hook: &HookState, plan: &Plan) -> (HookId, CodeLocation) {
    let planned = plan.hook(hook.id);
    (hook.id, (planned.hook.module, planned.offset()))
}

fn modules_of<'a>(hooks: impl Iterator<Item = &'a HookState>, plan: &Plan) -> Vec<ModuleId> {
    let mut modules: Vec<ModuleId> = hooks.map(|hook| plan.hook(hook.id).hook.module).collect();
    modules.sort_unstable();
    modules.dedup();
    modules
}

/// Reason why functions that may throw cannot be probed. Where they can be, the kernel side compares sampled calls with
/// the process's limits.
fn refusal_of_throwing(kernel: &Kernel) -> Option<String> {
    if kernel.link_kind() != LinkKind::Session {
        return Some("it may throw a C++ exception, which only session links survive (Linux 6.13)".to_owned());
    }
    let reason = kernel.limits_error().or_else(|| memory::overcommit_reason().map(str::to_owned))?;
    Some(format!("it may throw a C++ exception, which a probe does not survive, and {reason}"))
}

fn probe(planned: &PlannedHook, throws: impl Fn() -> Option<String>) -> Result<Probe, String> {
    if planned.hook.spec.may_throw
        && let Some(reason) = throws()
    {
        return Err(reason);
    }
    if planned.hook.is_go && planned.hook.spec.shape.allocates() && no_return::is_go(planned.hook.spec.function) {
        return Err(no_return::refusal(planned.hook.spec.function, no_return::GO));
    }
    let cookie = planned.cookie().map_err(PlaceError::to_string)?;
    Ok(Probe { offset: planned.offset(), cookie })
}
