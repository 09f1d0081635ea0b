//! Which callsites of two profiles are the same: those of the same program and heap whose frames have the same names.
//!
//! A program is known by its name and not by its pid, a frame by its function and its module's name and not by its address or
//! line: a program that was started again has other addresses, one that was built again has other lines. A frame without a
//! function is known by its place in its module's file. An address alone says nothing of another process, so frames that are
//! in no module are all alike, except where both profiles are of one and the same process.

use rustc_hash::{FxHashMap, FxHashSet};

use super::change::{Change, largest_interval_bytes};
use super::{Callsite, Place, Program, Stack};
use crate::ids::Pid;
use crate::ledger::totals::Totals;
use crate::model::base_name;
use crate::model::{CallsiteProfile, Frame, Profile, TargetProfile};

/// What a frame is known by.
#[derive(PartialEq, Eq, Hash)]
enum FrameKey<'a> {
    Function {
        name: &'a str,
        module: Option<ModuleKey<'a>>,
    },
    Offset {
        path: &'a str,
        offset: u64,
    },
    Module {
        path: &'a str,
    },
    /// In the same process.
    Address {
        pid: Pid,
        address: u64,
    },
    Nowhere,
}

/// What a module is known by.
#[derive(PartialEq, Eq, Hash)]
enum ModuleKey<'a> {
    /// It is called as the program is, whatever that is called in the other profile.
    Program,
    Name(&'a str),
}

/// What a callsite is known by; frames are numbers of [`FrameKey`]s.
#[derive(PartialEq, Eq, Hash)]
struct StackKey<'a> {
    program: usize,
    heap: Option<&'a str>,
    inherited: bool,
    end: Option<&'static str>,
    frames: Box<[u32]>,
}

/// The programs of both profiles, and their callsites, matched: those of `before` in their order, then those of `after` alone.
pub(super) fn matched<'a>(before: &'a Profile, after: &'a Profile) -> (Vec<Program>, Vec<Callsite<'a>>) {
    let sides = [before, after];
    let programs = programs(sides);
    let same: FxHashSet<Pid> = before
        .targets
        .iter()
        .filter(|a| after.targets.iter().any(|b| is_same(before, a, after, b)))
        .map(|target| target.pid)
        .collect();
    let mut matching = Matching {
        intervals: [intervals(before, &programs, 0), intervals(after, &programs, 1)],
        sides,
        programs,
        same,
        frames: FxHashMap::default(),
        places: FxHashMap::default(),
        callsites: Vec::new(),
    };
    for (side, profile) in sides.into_iter().enumerate() {
        for target in &profile.targets {
            let program = program_of(&matching.programs, target, side);
            target.callsites.iter().for_each(|callsite| matching.add(side, target, program, callsite));
        }
    }
    matching.folded();
    (matching.programs, matching.callsites)
}

/// Whether both targets are one and the same process, watched since the same moment: of one recording.
pub(super) fn is_same(before: &Profile, a: &TargetProfile, after: &Profile, b: &TargetProfile) -> bool {
    a.pid == b.pid && a.command == b.command && before.unix_ns(a.beginning.time) == after.unix_ns(b.beginning.time)
}

/// The programs by name, each once, in the order in which they come.
fn programs(sides: [&Profile; 2]) -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    let mut numbers: FxHashMap<&str, usize> = FxHashMap::default();
    for (side, profile) in sides.into_iter().enumerate() {
        for target in &profile.targets {
            let name = program_name(target);
            let next = programs.len();
            let program = *numbers.entry(name).or_insert(next);
            if program == next {
                programs.push(Program { names: [None, None], targets: [0, 0] });
            }
            programs[program].names[side] = Some(name.to_owned());
            programs[program].targets[side] += 1;
        }
    }
    // Two versions of a program are often called differently.
    if let [before, after] = programs.as_mut_slice()
        && before.targets[1] == 0
        && after.targets[0] == 0
    {
        (before.names[1], before.targets[1]) = (after.names[1].take(), after.targets[1]);
        programs.truncate(1);
    }
    programs
}

fn program_of(programs: &[Program], target: &TargetProfile, side: usize) -> usize {
    let name = program_name(target);
    programs.iter().position(|program| program.names[side].as_deref() == Some(name)).unwrap_or_default()
}

/// What a program is known by: its command's name without its folders. Of titles such as `postgres: checkpointer`, the
/// first word.
pub(super) fn program_name(target: &TargetProfile) -> &str {
    let first = target.command.split_whitespace().next().unwrap_or_default();
    let name = base_name(first).trim_end_matches(':');
    if name.is_empty() { &target.comm } else { name }
}

/// The largest interval by program and heap.
fn intervals<'a>(profile: &'a Profile, programs: &[Program], side: usize) -> FxHashMap<(usize, &'a str), u64> {
    let mut intervals: FxHashMap<(usize, &str), u64> = FxHashMap::default();
    for target in &profile.targets {
        let program = program_of(programs, target, side);
        for heap in &target.heaps {
            let interval = intervals.entry((program, &heap.name)).or_default();
            *interval = heap.interval_bytes.max(*interval);
        }
    }
    intervals
}

struct Matching<'a> {
    sides: [&'a Profile; 2],
    programs: Vec<Program>,
    /// Processes that are in both.
    same: FxHashSet<Pid>,
    intervals: [FxHashMap<(usize, &'a str), u64>; 2],
    frames: FxHashMap<FrameKey<'a>, u32>,
    places: FxHashMap<StackKey<'a>, usize>,
    callsites: Vec<Callsite<'a>>,
}

impl<'a> Matching<'a> {
    fn add(&mut self, side: usize, target: &'a TargetProfile, program: usize, callsite: &'a CallsiteProfile) {
        let profile = self.sides[side];
        let heap = target.heaps.get(callsite.heap).map(|heap| heap.name.as_str());
        let name = self.programs[program].names[side].clone().unwrap_or_default();
        let frames = callsite.stack.iter().map(|&id| {
            let key = self.key(profile.frame(id), &name, target.pid);
            let next = u32::try_from(self.frames.len()).expect("profiles number their frames in 32 bits");
            *self.frames.entry(key).or_insert(next)
        });
        let frames = frames.collect();
        let end = callsite.end.map(|end| end.counter().name());
        let key = StackKey { program, heap, inherited: callsite.inherited, end, frames };
        let stack = Stack {
            program,
            heap,
            inherited: callsite.inherited,
            end: callsite.end,
            of_same_process: self.same.contains(&target.pid),
            profile,
            frames: &callsite.stack,
        };
        let next = self.callsites.len();
        let place = *self.places.entry(key).or_insert(next);
        if place == next {
            let interval_bytes = [0, 1].map(|side| self.interval_bytes(side, program, heap));
            let change = Change { before: Totals::default(), after: Totals::default(), interval_bytes };
            self.callsites.push(Callsite { place: Place::Stack(stack), change });
        } else if side == 1 {
            self.callsites[place].place = Place::Stack(stack);
        }
        let change = &mut self.callsites[place].change;
        if side == 0 { &mut change.before } else { &mut change.after }.add(&callsite.totals);
    }

    /// Ended processes of which sums alone are kept have no stacks, and yet a part in the whole.
    fn folded(&mut self) {
        let [before, after] = self.sides.map(|profile| profile.others.folded_totals);
        if self.sides.iter().any(|profile| profile.others.folded_count > 0) {
            let interval_bytes = self
                .sides
                .map(|profile| profile.others.folded_interval_bytes.unwrap_or_else(|| largest_interval_bytes(profile)));
            self.callsites.push(Callsite { place: Place::Folded, change: Change { before, after, interval_bytes } });
        }
    }

    fn key(&self, frame: &'a Frame, program: &str, pid: Pid) -> FrameKey<'a> {
        let module = frame.module.as_deref();
        match (frame.function.as_deref(), module, frame.module_offset) {
            (Some(name), module, _) => {
                FrameKey::Function { name, module: module.map(|path| module_key(path, program)) }
            }
            (None, Some(path), Some(offset)) => FrameKey::Offset { path, offset },
            (None, Some(path), None) => FrameKey::Module { path },
            (None, None, _) if self.same.contains(&pid) => FrameKey::Address { pid, address: frame.address },
            (None, None, _) => FrameKey::Nowhere,
        }
    }

    /// The interval of a heap on a side; where it is not there, the one that it would have had.
    fn interval_bytes(&self, side: usize, program: usize, heap: Option<&str>) -> u64 {
        let known = heap.and_then(|heap| self.intervals[side].get(&(program, heap)).copied());
        known.unwrap_or(self.sides[side].interval_bytes)
    }
}

/// A library is known without its version, which changes with an upgrade.
fn module_key<'a>(path: &'a str, program: &str) -> ModuleKey<'a> {
    let name = base_name(path.strip_suffix(" (deleted)").unwrap_or(path));
    if name == program {
        return ModuleKey::Program;
    }
    ModuleKey::Name(name.find(".so.").map_or(name, |at| &name[..at + ".so".len()]))
}
