//! Image that is mapped into a target: the stubs' code, the countdowns and the filter.

use std::fs::File;

use anyhow::{Context, Result, ensure};
use heapbpf_base::ids::{HeapId, Pid};
use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::proc::maps::{Region, regions};
use profiler_common::arch::ARGUMENTS;
use profiler_common::hook::{CallShape, HookCookie, ProbeScope};
use profiler_common::limits::LIVE_FILTER_SLOTS;
use tracing::debug;

use super::nothrow::Form;
use super::places::place_of;
use super::previous::Previous;
use super::sealed::code_bytes;
use super::slots::Replaced;
use crate::keeper::control;
use crate::keeper::{FunctionPlace, Site};
use crate::probe::plan::PlannedHook;
use crate::probe::stub::{self, SlotIndex, StubCode, StubFunction, slot};
use crate::process::address_space::AddressSpace;
use crate::session::discovery::Discovery;
use crate::session::target::Target;

/// A hook that a stub can replace.
#[derive(Debug)]
pub(super) struct ReplaceableHook<'a> {
    pub(super) planned: &'a PlannedHook,
    /// Address of the function.
    pub(super) function: u64,
    pub(super) place: FunctionPlace,
    /// Form of the function that does not throw; `None` if the function itself cannot throw.
    nothrow: Option<Form>,
}

impl ReplaceableHook<'_> {
    /// Returns the function with a stub address of zero.
    pub(super) fn unplaced(&self) -> Replaced {
        let hook = &self.planned.hook;
        Replaced {
            heap: self.planned.heap,
            names: std::iter::once(hook.spec.function).chain(hook.aliases.iter().copied()).collect(),
            frees: hook.spec.shape == CallShape::Free,
            address: self.function,
            stub: 0,
        }
    }
}

/// Heap names of C libraries.
const C_LIBRARIES: [&str; 2] = ["libc", "musl"];

/// Hooks of a target that stubs can replace.
pub(super) fn hooks_of<'a>(target: &'a Target, discovery: &'a Discovery) -> impl Iterator<Item = ReplaceableHook<'a>> {
    let ids = target.hooks.attached_ids().into_iter();
    ids.filter_map(|id| replaceable(discovery.plan.hook(id), &target.mappings.space, discovery))
}

fn replaceable<'a>(
    planned: &'a PlannedHook,
    space: &AddressSpace,
    discovery: &Discovery,
) -> Option<ReplaceableHook<'a>> {
    let (hook, spec) = (&planned.hook, &planned.hook.spec);
    let has_stub = matches!(spec.shape, CallShape::Alloc | CallShape::AllocOut | CallShape::Free | CallShape::Realloc);
    // A nested call would be sampled as well. In C libraries, `realloc` calls others only for null, and where it fails otherwise.
    let is_nested = spec.delegates && !(spec.shape == CallShape::Realloc && C_LIBRARIES.contains(&&*hook.heap));
    if !has_stub || is_nested {
        return None;
    }
    let place = place_of(planned, space, discovery)?;
    // The probe in the function decides for each call whether it may be followed.
    let nothrow = if spec.may_throw { Some(Form::find(planned, space, discovery)?) } else { None };
    Some(ReplaceableHook { planned, function: place.address, place, nothrow })
}

/// Layout of an image: its parts follow each other, and each has whole pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) address: u64,
    pub(super) code_bytes: u64,
    pub(super) data_bytes: u64,
    pub(super) heap_bytes: u64,
    /// Size of the countdowns of all heaps. Live countdowns come first, then idle ones.
    pub(super) countdown_bytes: u64,
}

impl Layout {
    pub(super) const FILTER_BYTES: u64 = LIVE_FILTER_SLOTS as u64 * 8;

    /// Returns a layout whose address is zero.
    pub(super) fn new(stubs: usize, heaps: usize, slots_per_heap: u32) -> Self {
        let heap_bytes = u64::from(slots_per_heap) * slot::BYTES as u64;
        let countdown_bytes = heap_bytes * heaps as u64;
        Self {
            address: 0,
            code_bytes: code_bytes(stubs).next_multiple_of(page_bytes()),
            data_bytes: (2 * countdown_bytes + control::BYTES as u64).next_multiple_of(page_bytes()),
            heap_bytes,
            countdown_bytes,
        }
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.code_bytes + self.data_bytes + Self::FILTER_BYTES
    }

    fn filter_address(&self) -> u64 {
        self.address + self.code_bytes + self.data_bytes
    }

    fn control_address(&self) -> u64 {
        self.filter_address() - control::BYTES as u64
    }

    /// Address of the countdowns of the heap with this number.
    pub(super) fn heap_address(&self, number: u64) -> u64 {
        self.address + self.code_bytes + number * self.heap_bytes
    }

    /// Returns the data with these live countdowns, in which stubs are switched off.
    pub(super) fn data(&self, live: &[u8]) -> Vec<u8> {
        let mut data = vec![0; usize::try_from(self.data_bytes).unwrap_or(0)];
        data[..live.len()].copy_from_slice(live);
        let live = self.heap_address(0);
        let idle = live + self.countdown_bytes;
        let at = data.len().saturating_sub(control::BYTES);
        for (field, value) in
            [(control::BASE, idle), (control::BYPASSED, control::BYPASS), (control::LIVE, live), (control::IDLE, idle)]
        {
            data[at + field..at + field + 8].copy_from_slice(&value.to_ne_bytes());
        }
        data
    }
}

pub(super) struct Assembled {
    /// The code, in whole pages.
    pub(super) image: Vec<u8>,
    pub(super) functions: Vec<Replaced>,
    pub(super) places: Vec<FunctionPlace>,
    pub(super) sites: Vec<Site>,
}

/// Assembles the stubs of `hooks`, whose order must have stubs that others jump to first.
pub(super) fn assemble(
    pid: Pid,
    hooks: &[ReplaceableHook<'_>],
    heaps: &[HeapId],
    layout: Layout,
    index: SlotIndex,
) -> Result<Assembled> {
    let mut code = StubCode::new(layout.address, layout.filter_address(), layout.control_address(), index)?;
    let (mut functions, mut places, mut sites) = (Vec::<Replaced>::new(), Vec::new(), Vec::<Site>::new());
    for replaceable in hooks {
        let ReplaceableHook { planned, function, place, nothrow } = replaceable;
        let (spec, heap) = (&planned.hook.spec, planned.heap);
        let stub_of = |name: &str| {
            functions.iter().find(|other| other.names.contains(&name) && other.heap == heap).map(|it| it.stub)
        };
        let simpler = match (spec.shape, spec.count) {
            (CallShape::Realloc, None) => stub_of("malloc"),
            (CallShape::Realloc, Some(_)) => stub_of("realloc"),
            _ => None,
        };
        if spec.shape == CallShape::Realloc && simpler.is_none() {
            continue;
        }
        let number = (0..).zip(heaps).find(|(_, other)| **other == heap).map_or(0, |(number, _)| number);
        let replaced = StubFunction {
            shape: spec.shape,
            size: spec.size,
            count: spec.count,
            pointer: spec.pointer,
            page_rounded: spec.page_rounded,
            nothrow: nothrow.as_ref().map(|form| form.call),
            address: *function,
            prefix: &place.codes[0],
            heap_offset: number * layout.heap_bytes,
            simpler,
        };
        let (stub, stub_sites) = match code.add_stub(&replaced) {
            Ok(added) => added,
            Err(error) => {
                debug!("process {pid}: `{}`: {error}", spec.function);
                continue;
            }
        };
        let register = |argument: usize| ARGUMENTS[argument];
        let cookie = HookCookie {
            size: register(spec.size),
            count: spec.count.map(register),
            pointer: spec.pointer.map(register),
            scope: ProbeScope::Any,
            // The stub calls a form that does not throw.
            may_throw: false,
            ..planned.cookie().map_err(Clone::clone)?
        };
        let site = |found: stub::StubSite| {
            let cookie = HookCookie { site: found.site, ..cookie }.pack();
            Site { offset: found.offset, cookie: Some(cookie), returns: false }
        };
        sites.extend(stub_sites.into_iter().map(site));
        functions.push(Replaced { stub, ..replaceable.unplaced() });
        places.push(place.clone());
        places.extend(nothrow.iter().flat_map(|form| form.places.iter().cloned()));
    }
    let entries: Vec<[u64; 2]> = functions.iter().map(|function| [function.stub, function.address]).collect();
    let mut image = code.finish(&entries)?;
    let size_bytes = usize::try_from(layout.code_bytes)?;
    ensure!(image.len() <= size_bytes, "internal error: the stubs are larger than expected; please report it");
    image.resize(size_bytes, 0);
    Ok(Assembled { image, functions, places, sites })
}

/// Finds a place for stubs. If the process has equal stubs, whose addresses it may have copied, returns their place and
/// their file.
pub(super) fn place(
    pid: Pid,
    layout: Layout,
    previous: &Previous,
    near: u64,
    assembled: impl Fn(Layout) -> Result<Assembled>,
) -> Result<(Layout, Option<File>, Assembled)> {
    for address in previous.addresses() {
        let layout = Layout { address, ..layout };
        let again = assembled(layout).ok();
        let same = again.and_then(|it| {
            let file = previous.file(address, &it.image, layout.data_bytes, Layout::FILTER_BYTES)?;
            Some((it, file.try_clone().ok()?))
        });
        if let Some((again, file)) = same {
            return Ok((layout, Some(file), again));
        }
    }
    let address = free_range(&regions(pid)?, near, layout.size_bytes());
    let layout = Layout { address: address.context("it has no free addresses near the allocator")?, ..layout };
    Ok((layout, None, assembled(layout)?))
}

/// Preferred distance of the stubs from the allocator, so that modules that are loaded later are mapped in between.
const DISTANCE_BYTES: u64 = stub::REACH_BYTES / 8;
/// Maximum distance of the stubs, with space for their data and for an allocator's other functions.
const DISTANCE_BYTES_MAX: u64 = stub::REACH_BYTES - stub::REACH_BYTES / 32;
/// Lowest address that a process may map (`vm.mmap_min_addr` is below), with space for programs at their linked
/// address.
const ADDRESS_MIN: u64 = 1 << 20;
/// First address above those that every process may map. On arm64, most kernels have more.
const ADDRESS_END: u64 = if cfg!(target_arch = "aarch64") { 1 << 39 } else { 0x7fff_ffff_f000 };

/// Finds free addresses near the allocator, preferably below it: the kernel maps new modules downwards from the lowest.
fn free_range(mapped: &[Region], near: u64, size_bytes: u64) -> Option<u64> {
    let page_bytes = page_bytes();
    let page = |address: u64| address / page_bytes * page_bytes;
    let starts = mapped.iter().map(|region| region.start.0).chain([ADDRESS_END]);
    let ends = [ADDRESS_MIN].into_iter().chain(mapped.iter().map(|region| region.end.0));
    let gaps: Vec<(u64, u64)> = ends.zip(starts).filter(|(start, end)| start < end).collect();
    let lowest = near.saturating_sub(DISTANCE_BYTES_MAX);
    let preferred = gaps.iter().rev().find_map(|&(start, end)| {
        let end = end.min(near.saturating_sub(DISTANCE_BYTES));
        // Not next to other mappings, which may grow.
        (end.checked_sub(start)? >= 4 * size_bytes).then(|| page(end - 2 * size_bytes))
    });
    preferred.filter(|address| *address >= lowest).or_else(|| {
        let inside = gaps.iter().filter_map(|&(start, end)| {
            let (start, end) = (start.max(lowest), end.min(near.saturating_add(DISTANCE_BYTES_MAX)));
            let address = page(start + end.checked_sub(start)?.checked_sub(size_bytes)? / 2);
            (address >= start).then_some(address)
        });
        inside.min_by_key(|address| address.abs_diff(near))
    })
}

#[cfg(test)]
mod tests {
    use heapbpf_linux::proc::maps::RegionKind;

    use super::*;

    const MIB: u64 = 1 << 20;
    const NEAR: u64 = 0x7f00_0000_0000;

    fn mapped(ranges: &[(u64, u64)]) -> Vec<Region> {
        let anonymous = || RegionKind::Anonymous { name: None };
        ranges.iter().map(|&(start, end)| Region::synthetic(start, end - start, anonymous())).collect()
    }

    #[test]
    fn stubs_are_below_the_allocator_with_room_for_modules() {
        let libc = (NEAR, NEAR + 2 * MIB);
        assert_eq!(free_range(&mapped(&[libc]), NEAR, 2 * MIB), Some(NEAR - 260 * MIB));
        // Behind what is mapped there already.
        let arena = (NEAR - 512 * MIB, NEAR - 200 * MIB);
        assert_eq!(free_range(&mapped(&[arena, libc]), NEAR, 2 * MIB), Some(NEAR - 516 * MIB));
    }

    #[test]
    fn any_gap_within_reach_of_jumps_is_used_if_there_is_no_better() {
        let below = (NEAR - 4096 * MIB, NEAR - 3 * MIB);
        let libc = (NEAR, NEAR + 2 * MIB);
        let above = (NEAR + 2 * MIB, ADDRESS_END);
        let found = free_range(&mapped(&[below, libc, above]), NEAR, 2 * MIB).expect("3 MiB below");
        assert!((below.1..=NEAR - 2 * MIB).contains(&found), "{found:#x}");
        let full = (below.0, NEAR);
        let found = free_range(&mapped(&[full, libc]), NEAR, 2 * MIB).expect("above");
        assert!(found >= libc.1 && found <= NEAR + DISTANCE_BYTES_MAX, "{found:#x}");
        assert_eq!(free_range(&mapped(&[full, libc, above]), NEAR, 2 * MIB), None);
    }
}
