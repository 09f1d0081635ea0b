//! The comparison of two profiles: matched callsites, and how much they grew.
//! Profiles are neither scaled to the same duration nor corrected for losses.
//! Callsites of the same program and heap match if their frames have the same names. Addresses, lines and pids are not
//! compared, because a restarted or rebuilt program has others: a program is identified by its name, a frame by its
//! function and module name, or without a function, by its offset in the module's file. All frames without a module
//! match, except where both profiles have the same process.

use heapbpf_base::ids::Pid;
use heapbpf_base::units::Amounts;
use heapbpf_ledger::confidence::Z_95;
use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile, base_name};
use heapbpf_ledger::totals::Totals;
use profiler_common::interval::Interval;
use profiler_common::stack::StackEnd;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::View;

#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    pub name: &'a str,
    pub profile: &'a Profile,
}

#[derive(Clone, Debug)]
pub struct Diff<'a> {
    pub before: Side<'a>,
    pub after: Side<'a>,
    pub programs: Vec<Program>,
    pub callsites: Vec<Callsite<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name before and after. They differ only if neither profile has another program.
    pub names: [Option<String>; 2],
    pub targets: [usize; 2],
}

#[derive(Clone, Debug)]
pub struct Callsite<'a> {
    /// `None` for the exited processes of which only totals are kept.
    pub stack: Option<Stack<'a>>,
    pub delta: Delta,
}

/// A stack of one program. Where both profiles have it, its frames are those of the later one.
#[derive(Clone, Debug)]
pub struct Stack<'a> {
    /// Index into [`Diff::programs`].
    pub program: usize,
    pub heap: Option<&'a str>,
    /// The blocks were allocated by the parent, before a fork.
    pub inherited: bool,
    pub end: Option<StackEnd>,
    /// Both profiles have the process of the stack.
    pub of_same_process: bool,
    pub profile: &'a Profile,
    /// Leaf first.
    pub frames: &'a [FrameId],
}

impl<'a> Stack<'a> {
    pub fn frames(&self) -> impl DoubleEndedIterator<Item = &'a Frame> + use<'a> {
        let profile = self.profile;
        self.frames.iter().map(|&id| profile.frame(id))
    }
}

impl<'a> Diff<'a> {
    /// Compares two profiles. The callsites are those of `before` in their order, then those of `after` only.
    pub fn new(before: Side<'a>, after: Side<'a>) -> Self {
        let sides = [before.profile, after.profile];
        let programs = programs(sides);
        let is_of_both = |target: &&TargetProfile| {
            let others = &after.profile.targets;
            others.iter().any(|other| is_same(before.profile, target, after.profile, other))
        };
        let mut matching = Matching {
            intervals: [0, 1].map(|side| intervals(sides[side], &programs, side)),
            sides,
            programs,
            same: before.profile.targets.iter().filter(is_of_both).map(|target| target.facts.pid).collect(),
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
        Self { before, after, programs: matching.programs, callsites: matching.callsites }
    }

    pub fn total(&self) -> Delta {
        let mut sides = [Totals::default(); 2];
        for callsite in &self.callsites {
            sides[0].add(&callsite.delta.before);
            sides[1].add(&callsite.delta.after);
        }
        let [before, after] = [self.before, self.after].map(|side| largest_interval_bytes(side.profile));
        Delta { before: sides[0], after: sides[1], interval_bytes: [before, after] }
    }

    pub fn is_exact(&self) -> bool {
        self.before.profile.is_exact() && self.after.profile.is_exact()
    }

    pub fn incomplete(&self) -> bool {
        self.before.profile.incomplete() || self.after.profile.incomplete()
    }

    /// The callsites with an amount in the view, by falling absolute growth. The sort is stable.
    pub(super) fn by_growth(&self, view: View) -> Vec<&Callsite<'a>> {
        let mut callsites: Vec<_> = self.callsites.iter().filter(|callsite| !callsite.delta.is_zero(view)).collect();
        callsites.sort_by(|a, b| b.delta.growth(view).abs().total_cmp(&a.delta.growth(view).abs()));
        callsites
    }
}

impl Program {
    pub(super) fn name(&self) -> String {
        match &self.names {
            [Some(before), Some(after)] if before != after => format!("{before} → {after}"),
            [Some(name), _] | [None, Some(name)] => name.clone(),
            [None, None] => String::new(),
        }
    }
}

const INTERVAL_BYTES_MAX: u32 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    pub before: Totals,
    pub after: Totals,
    /// Largest interval of either side, in bytes.
    pub interval_bytes: [u64; 2],
}

impl Delta {
    pub fn is_zero(&self, view: View) -> bool {
        view.estimate(&self.before) == 0.0 && view.estimate(&self.after) == 0.0
    }

    /// Growth of the view's quantity, in bytes or blocks; negative for shrinkage.
    pub fn growth(&self, view: View) -> f64 {
        let [before, after] = [&self.before, &self.after].map(|totals| view.amounts(totals));
        if view.is_bytes() { (after.bytes - before.bytes).to_f64() } else { (after.count - before.count).to_f64() }
    }

    /// 95 %, for independent samples. Conservative for profiles of one recording, where blocks in both were sampled once,
    /// so their errors cancel. A margin is that of the sum of both variances, where each side counts one more sample
    /// because variances are estimated from the samples; or, if that is wider, the margin that follows from the intervals
    /// of both sides, which are not symmetric (Zou and Donner, 2008).
    pub fn confidence(&self, view: View) -> [f64; 2] {
        let sides = [(&self.before, self.interval_bytes[0]), (&self.after, self.interval_bytes[1])];
        let one_more = sides.map(|(side, interval_bytes)| self.variance_of_one(view, side, interval_bytes));
        let estimated = view.variance(&self.before).to_f64() + view.variance(&self.after).to_f64();
        let margin = Z_95 * (estimated + one_more[0] + one_more[1]).max(0.0).sqrt();
        let distances = |side: usize| {
            let totals = sides[side].0;
            let [low, high] = view.with_error(&view.amounts(totals)).interval_95(one_more[side].sqrt());
            let estimate = view.estimate(totals);
            [estimate - low, high - estimate]
        };
        let ([before_low, before_high], [after_low, after_high]) = (distances(0), distances(1));
        let growth = self.growth(view);
        [growth - after_low.hypot(before_high).max(margin), growth + after_high.hypot(before_low).max(margin)]
    }

    /// The variance that one more sample adds on a side: one of the mean size of both, or of the weight that causes most
    /// of the side's variance if that is more. The mean size is that of large blocks where these outweigh small ones.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates")]
    fn variance_of_one(&self, view: View, side: &Totals, interval_bytes: u64) -> f64 {
        let weight = view.with_error(&view.amounts(side)).weight();
        let mut both = view.amounts(&self.before);
        both += view.amounts(&self.after);
        let (bytes, blocks) = (both.bytes.to_f64(), both.count.to_f64());
        if blocks <= 0.0 {
            return weight * weight;
        }
        let interval = Interval::nearest(
            u32::try_from(interval_bytes).map_or(INTERVAL_BYTES_MAX, |bytes| bytes.min(INTERVAL_BYTES_MAX)),
        );
        let variance = Amounts::of((bytes / blocks).max(0.0) as u64, interval).variance;
        let variance = if view.is_bytes() { variance.bytes.to_f64() } else { variance.count.to_f64() };
        variance.max(weight * weight)
    }

    pub fn is_noise(&self, view: View) -> bool {
        let [low, high] = self.confidence(view);
        low <= 0.0 && high >= 0.0
    }

    pub fn is_exact(&self) -> bool {
        self.interval_bytes.iter().all(|&bytes| bytes <= 1)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.before.add(&other.before);
        self.after.add(&other.after);
        for (mine, others) in self.interval_bytes.iter_mut().zip(other.interval_bytes) {
            *mine = others.max(*mine);
        }
    }
}

/// The largest interval of the profile's heaps; that of the profile without heaps.
pub(super) fn largest_interval_bytes(profile: &Profile) -> u64 {
    let heaps = profile.targets.iter().flat_map(|target| &target.heaps).map(|heap| heap.interval_bytes);
    heaps.chain(profile.others.folded_interval_bytes).max().unwrap_or(profile.interval_bytes)
}

#[derive(PartialEq, Eq, Hash)]
enum FrameKey<'a> {
    Function {
        name: &'a str,
        module: Option<ModuleKey<'a>>,
    },
    Module {
        path: &'a str,
        offset: Option<u64>,
    },
    /// An address in a process that both profiles have; `None` in others.
    Address(Option<(Pid, u64)>),
}

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

/// Whether both profiles are of one recording: they have a process in common, profiled since the same time.
pub(super) fn is_same_recording(before: &Profile, after: &Profile) -> bool {
    before.targets.iter().any(|a| after.targets.iter().any(|b| is_same(before, a, after, b)))
}

fn is_same(before: &Profile, a: &TargetProfile, after: &Profile, b: &TargetProfile) -> bool {
    a.facts.pid == b.facts.pid
        && a.facts.command == b.facts.command
        && before.unix_ns(a.facts.beginning.time) == after.unix_ns(b.facts.beginning.time)
}

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
        match (frame.function.as_deref(), module) {
            (Some(name), module) => FrameKey::Function { name, module: module.map(|path| module_key(path, program)) },
            (None, Some(path)) => FrameKey::Module { path, offset: frame.function_start.or(frame.module_offset) },
            (None, None) => FrameKey::Address(self.same.contains(&pid).then_some((pid, frame.address))),
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
