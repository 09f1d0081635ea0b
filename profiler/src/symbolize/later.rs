//! Adds names to a profile that was read from a report: frames have modules and offsets, and modules have build ids.

use std::sync::Arc;

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use heapbpf_ledger::model::{Frame, FrameId, Profile};
use rustc_hash::FxHashMap;

use super::advice::unnamed_modules;
use super::lacking::Lacking;
use super::names::{Resolve, ResolvedFrame};
use crate::object::module::Modules;

/// Replaces frames without a name or a line by what a resolver finds; one frame can become several, of inlined calls. `modules` are those
/// of the profile, in its order.
pub(crate) fn symbolize(profile: &mut Profile, modules: &Modules, resolver: &dyn Resolve) {
    let ids = ids(profile);
    let open = open_frames(profile, &ids);
    let mut by_module: FxHashMap<ModuleId, Vec<FileOffset>> = FxHashMap::default();
    open.values().for_each(|(module, offset)| by_module.entry(*module).or_default().push(*offset));
    resolver.find_more(&lacking(profile, &ids).wanted(modules));
    let mut answers: FxHashMap<(ModuleId, FileOffset), Arc<[ResolvedFrame]>> = FxHashMap::default();
    for (module, mut offsets) in by_module {
        offsets.sort_unstable();
        offsets.dedup();
        let found = resolver.resolve(module, modules.get(module), &offsets);
        answers.extend(offsets.into_iter().map(|offset| (module, offset)).zip(found));
    }
    let mut chains: FxHashMap<FrameId, Vec<FrameId>> = FxHashMap::default();
    for (id, location) in open {
        let Some(frames) = answers.get(&location).filter(|frames| !frames.is_empty()) else { continue };
        chains.insert(id, replace(&mut profile.frames, id, frames));
    }
    for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
        let known = |id: &FrameId| chains.get(id).cloned().unwrap_or_else(|| vec![*id]);
        callsite.stack = callsite.stack.iter().flat_map(known).collect();
    }
    let known = std::mem::take(&mut profile.health.symbolization.modules);
    let unnamed = unnamed_modules(&lacking(profile, &ids), modules, resolver, &known);
    profile.health.symbolization.modules = unnamed;
    profile.health.symbolization.downloads.extend(resolver.symbolization().downloads);
}

/// Modules by path, without those of which there were several builds: frames do not distinguish these.
fn ids(profile: &Profile) -> FxHashMap<Arc<str>, ModuleId> {
    let mut ids: FxHashMap<Arc<str>, Option<ModuleId>> = FxHashMap::default();
    for (module, id) in profile.modules.iter().zip((0..).map(ModuleId)) {
        ids.entry(Arc::clone(&module.path)).and_modify(|known| *known = None).or_insert(Some(id));
    }
    ids.into_iter().filter_map(|(path, id)| Some((path, id?))).collect()
}

/// Calls without a name or a line, with the offset inside the call.
fn open_frames(profile: &Profile, ids: &FxHashMap<Arc<str>, ModuleId>) -> FxHashMap<FrameId, (ModuleId, FileOffset)> {
    let mut open = FxHashMap::default();
    for (_, callsite) in profile.callsites() {
        let mut is_inlined_before = false;
        for &id in &callsite.stack {
            let frame = profile.frame(id);
            let is_whole = !frame.inlined && !is_inlined_before;
            is_inlined_before = frame.inlined;
            let location = frame.module.as_ref().and_then(|path| ids.get(path)).zip(frame.module_offset);
            if let Some((&module, offset)) = location
                && is_whole
                && (frame.function.is_none() || frame.line.is_none())
            {
                open.insert(id, (module, FileOffset(offset.saturating_sub(1))));
            }
        }
    }
    open
}

fn lacking(profile: &Profile, ids: &FxHashMap<Arc<str>, ModuleId>) -> Lacking {
    let mut by_module: FxHashMap<ModuleId, [u64; 2]> = FxHashMap::default();
    let mut total_bytes: u64 = 0;
    for (_, callsite) in profile.callsites() {
        let bytes = callsite.totals.alloc_bytes.rounded().max(callsite.totals.live_bytes().rounded());
        total_bytes = total_bytes.saturating_add(bytes);
        let mut met: FxHashMap<ModuleId, [bool; 2]> = FxHashMap::default();
        for frame in callsite.stack.iter().map(|&id| profile.frame(id)) {
            let Some(id) = frame.module.as_ref().and_then(|path| ids.get(path)) else { continue };
            let (has_name, has_line) = (frame.function.is_some(), frame.line.is_some());
            let lacks = met.entry(*id).or_default();
            *lacks = [lacks[0] || !has_name, lacks[1] || !has_name || !has_line];
        }
        for (id, lacks) in met {
            let sums = by_module.entry(id).or_default();
            sums.iter_mut()
                .zip(lacks)
                .filter(|(_, lacks)| *lacks)
                .for_each(|(sum, _)| *sum = sum.saturating_add(bytes));
        }
    }
    Lacking::new(total_bytes, by_module)
}

/// The outermost function replaces the frame; inlined ones are added.
fn replace(frames: &mut Vec<Frame>, id: FrameId, found: &[ResolvedFrame]) -> Vec<FrameId> {
    let old = frames[id.0 as usize].clone();
    let is_better = found.iter().any(|frame| frame.function.is_some());
    if old.function.is_some() && !is_better {
        return vec![id];
    }
    let new = |resolved: &ResolvedFrame| Frame {
        function: resolved.function.clone(),
        file: resolved.file.clone(),
        line: resolved.line,
        inlined: resolved.inlined,
        function_start: resolved.start.map(|start| start.0),
        ..old.clone()
    };
    let (outer, inlined) = found.split_last().expect("it is not empty");
    frames[id.0 as usize] = new(outer);
    let mut chain = Vec::new();
    for resolved in inlined {
        chain.push(FrameId(u32::try_from(frames.len()).unwrap_or(u32::MAX)));
        frames.push(new(resolved));
    }
    chain.push(id);
    chain
}
