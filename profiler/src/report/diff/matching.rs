//! Matches the callsites of two profiles: callsites of the same program and heap match if their frames have the same names.
//!
//! A program is identified by its name, not its pid; a frame by its function and its module's name, not by its address or
//! line: a restarted program has other addresses, a rebuilt one has other lines. A frame without a function is identified by
//! its offset in the module's file. Addresses are meaningless in other processes, so all frames without a module match,
//! except where both profiles have the same process.

use rustc_hash::{FxHashMap, FxHashSet};

use super::comparison::{Callsite, Delta, Diff, Program, Side, Stack, largest_interval_bytes};
use crate::ids::Pid;
use crate::ledger::totals::Totals;
use crate::model::base_name;
use crate::model::{CallsiteProfile, Frame, Profile, TargetProfile};

/// Identity of a frame.
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
    /// In a process that both profiles have.
    Address {
        pid: Pid,
        address: u64,
    },
    Nowhere,
}

/// Identity of a module.
#[derive(PartialEq, Eq, Hash)]
enum ModuleKey<'a> {
    /// The module has the name of the program, which can differ between the profiles.
    Program,
    Name(&'a str),
}

/// Identity of a callsite; frames are indices of [`FrameKey`]s.
#[derive(PartialEq, Eq, Hash)]
struct StackKey<'a> {
    program: usize,
    heap: Option<&'a str>,
    inherited: bool,
    end: Option<&'static str>,
    frames: Box<[u32]>,
}

impl<'a> Diff<'a> {
    /// Compares two profiles.
    pub fn new(before: Side<'a>, after: Side<'a>) -> Self {
        let (programs, callsites) = matched(before.profile, after.profile);
        Self { before, after, programs, callsites }
    }
}

/// The programs of both profiles, and their matched callsites: those of `before` in their order, then those of `after` only.
fn matched<'a>(before: &'a Profile, after: &'a Profile) -> (Vec<Program>, Vec<Callsite<'a>>) {
    let sides = [before, after];
    let programs = programs(sides);
    let same: FxHashSet<Pid> = before
        .targets
        .iter()
        .filter(|a| after.targets.iter().any(|b| is_same(before, a, after, b)))
        .map(|target| target.facts.pid)
        .collect();
    let mut matching = Matching {
        intervals: [intervals(before, &programs, 0), intervals(after, &programs, 1)],
        sides,
        programs,
        same,
        frames: FxHashMap::default(),
        indices: FxHashMap::default(),
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

/// Whether both profiles are of one recording: they have a process in common, profiled since the same time.
pub(super) fn is_same_recording(before: &Profile, after: &Profile) -> bool {
    before.targets.iter().any(|a| after.targets.iter().any(|b| is_same(before, a, after, b)))
}

/// Whether both targets are the same process, profiled since the same time.
fn is_same(before: &Profile, a: &TargetProfile, after: &Profile, b: &TargetProfile) -> bool {
    a.facts.pid == b.facts.pid
        && a.facts.command == b.facts.command
        && before.unix_ns(a.facts.beginning.time) == after.unix_ns(b.facts.beginning.time)
}

/// The programs by name, without duplicates, in the order of first occurrence.
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
    // Versions of a program often have different names.
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

/// Identity of a program: base name of its command. Of titles such as `postgres: checkpointer`, the first word.
fn program_name(target: &TargetProfile) -> &str {
    let first = target.facts.command.split_whitespace().next().unwrap_or_default();
    let name = base_name(first).trim_end_matches(':');
    if name.is_empty() { &target.facts.comm } else { name }
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
    /// Processes that both profiles have.
    same: FxHashSet<Pid>,
    intervals: [FxHashMap<(usize, &'a str), u64>; 2],
    frames: FxHashMap<FrameKey<'a>, u32>,
    indices: FxHashMap<StackKey<'a>, usize>,
    callsites: Vec<Callsite<'a>>,
}

impl<'a> Matching<'a> {
    fn add(&mut self, side: usize, target: &'a TargetProfile, program: usize, callsite: &'a CallsiteProfile) {
        let profile = self.sides[side];
        let heap = target.heaps.get(callsite.heap).map(|heap| heap.name.as_str());
        let name = self.programs[program].names[side].clone().unwrap_or_default();
        let frames = callsite.stack.iter().map(|&id| {
            let key = self.key(profile.frame(id), &name, target.facts.pid);
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
            of_same_process: self.same.contains(&target.facts.pid),
            profile,
            frames: &callsite.stack,
        };
        let next = self.callsites.len();
        let index = *self.indices.entry(key).or_insert(next);
        if index == next {
            let interval_bytes = [0, 1].map(|side| self.interval_bytes(side, program, heap));
            let delta = Delta { before: Totals::default(), after: Totals::default(), interval_bytes };
            self.callsites.push(Callsite { stack: Some(stack), delta });
        } else if side == 1 {
            self.callsites[index].stack = Some(stack);
        }
        let delta = &mut self.callsites[index].delta;
        if side == 0 { &mut delta.before } else { &mut delta.after }.add(&callsite.totals);
    }

    /// Adds the exited processes of which only totals are kept.
    fn folded(&mut self) {
        let [before, after] = self.sides.map(|profile| profile.others.folded_totals);
        if self.sides.iter().any(|profile| profile.others.folded_count > 0) {
            let interval_bytes = self
                .sides
                .map(|profile| profile.others.folded_interval_bytes.unwrap_or_else(|| largest_interval_bytes(profile)));
            self.callsites.push(Callsite { stack: None, delta: Delta { before, after, interval_bytes } });
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

    /// The interval of a heap on a side; that of the profile where the heap does not exist.
    fn interval_bytes(&self, side: usize, program: usize, heap: Option<&str>) -> u64 {
        let known = heap.and_then(|heap| self.intervals[side].get(&(program, heap)).copied());
        known.unwrap_or(self.sides[side].interval_bytes)
    }
}

/// Libraries are identified without their version, which changes with an upgrade.
fn module_key<'a>(path: &'a str, program: &str) -> ModuleKey<'a> {
    let name = base_name(path.strip_suffix(" (deleted)").unwrap_or(path));
    if name == program {
        return ModuleKey::Program;
    }
    ModuleKey::Name(name.find(".so.").map_or(name, |at| &name[..at + ".so".len()]))
}
