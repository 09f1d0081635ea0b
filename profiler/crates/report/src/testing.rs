//! Synthetic profiles for the tests of all formats.

mod code;

use std::collections::BTreeMap;
use std::sync::Arc;

use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use heapbpf_base::units::{Amounts, MappedAmounts, MonotonicNanos, Rounding};
use heapbpf_ledger::details::Details;
use heapbpf_ledger::model::{
    Beginning, CallsiteProfile, ChangeReason, Download, End, Frame, FrameId, FrameKind, Guardrails, Health, HeapBlocks,
    HeapProfile, History, HookKind, HookStatus, InlineEngine, InlinedHeap, InterpreterFrames, IntervalChange,
    Inventory, LanguageFunctions, Loss, MemoryAccount, MemoryClass, MemoryFacts, MemoryMapping, MemoryPart,
    MemoryPoint, NamesFrom, ObjectType, ObjectTypes, Origin, Others, Profile, Rights, Skipped, SymbolSource,
    Symbolization, SymbolizationFailure, TargetFacts, TargetProfile, Unaccounted, UnfoundHook, UnnamedModule,
};
use heapbpf_ledger::totals::Totals;
use profiler_common::stack::StackEnd;

const STARTED_UNIX_NS: u64 = 1_795_255_200_000_000_000;
const STARTED_MONOTONIC_NS: u64 = 5_000_000_000;

/// A server in C, every allocation sampled, no losses, all frames named.
pub fn exact() -> Profile {
    let mut frames = Frames::default();
    let main = frames.placed("main", "/usr/bin/cached", "/src/main.c", 12);
    let handle = frames.placed("handle_request", "/usr/bin/cached", "/src/server.c", 88);
    let insert = frames.placed("cache_insert", "/usr/bin/cached", "/src/cache.c", 42);
    // Its line sorts between the two of `cache_insert`, which a test of the flame graph needs.
    let copy = frames.placed("cache_insert.part.0", "/usr/bin/cached", "/src/cache.c", 61);
    let strdup = frames.add("strdup", "/usr/lib/x86_64-linux-gnu/libc.so.6");
    let start = frames.add("__libc_start_call_main", "/usr/lib/x86_64-linux-gnu/libc.so.6");
    let outer = [handle, main, start];
    let complete = Some(StackEnd::Complete);
    let mut callsites = vec![
        callsite(&[&[insert], &outer[..]].concat(), complete, 0, taken(1, 1000, 64, 400)),
        callsite(&[&[strdup, insert], &outer[..]].concat(), complete, 0, taken(1, 1000, 17, 400)),
        callsite(&[&[copy], &outer[..]].concat(), complete, 0, taken(1, 3, 1 << 20, 1)),
        callsite(&[main, start], complete, 0, taken(1, 1, 72_704, 0)),
        callsite(&outer, complete, 0, taken(1, 500, 8192, 500)),
    ];
    for (callsite, (size_bytes, age_s)) in
        callsites.iter_mut().zip([(64, 2), (17, 2), (1 << 20, 25), (72_704, 30), (8192, 0)])
    {
        callsite.details = details(&callsite.totals, size_bytes, age_s);
    }
    let heaps = vec![heap("libc", &[("malloc", None), ("calloc", None), ("realloc", None), ("free", None)])];
    let health = Health {
        events: 4_012,
        lost: vec![],
        unwind: vec![("complete".to_owned(), 5)],
        frame_pointer_modules: Vec::new(),
        unfound: Vec::new(),
        inlined_heaps: Vec::new(),
        resyncs: 0,
        interval_changes: Vec::new(),
        agent_cpu_ns: 120_000_000,
        memory_sampling_ns: 0,
        agent_rss_bytes_max: 23 << 20,
        guardrails: Guardrails::default(),
        scope: None,
        inline_engine: None,
        interpreters: None,
        unaccounted: Unaccounted::default(),
        symbolization: Symbolization::default(),
    };
    let mut target = target(4711, "cached", "/usr/bin/cached", heaps, callsites);
    target.facts.rights = Some(Rights::of_nobody());
    code::group(&mut target);
    code::grow(&mut target);
    profile(1, vec![target], frames, health)
}

/// A program of Node, some of whose functions are interpreted, generated or its runtime's.
pub fn kinds() -> Profile {
    let mut profile = exact();
    let mut account = MemoryAccount::default();
    account.extend(MemoryFacts { runtimes: vec![Language::JavaScript], ..MemoryFacts::default() });
    profile.targets[0].memory = Arc::new(account);
    for frame in &mut profile.frames {
        let (kind, module) = match frame.function.as_deref() {
            Some("cache_insert") => (FrameKind::Jitted, Some("[jit]".into())),
            Some("handle_request") => (FrameKind::Interpreted, None),
            Some("main") => (FrameKind::Runtime, frame.module.clone()),
            _ => continue,
        };
        *frame = Frame { kind, module, module_offset: None, ..frame.clone() };
    }
    profile
}

/// Two processes, sampled, with everything that can be wrong: names that would break formats, frames without names,
/// lost and incomplete stacks, lost events, a hook that is not attached.
pub fn sampled() -> Profile {
    let mut frames = Frames::default();
    let app = "/opt/app/bin/app";
    let main = frames.placed("main", app, "/src/main.cc", 5);
    let map = frames.add("std::map<int, std::pair<std::string, Foo> >::insert(std::pair<int const, Foo>&&)", app);
    let less = frames.inlined("Set<\"a;b\" & 'c'>::operator<(Set const&) const", app, "/src/set.h", 7);
    let rust = frames.inlined("app::cache::Cache<K,V>::insert::{{closure}}", app, "/src/cache.rs", 31);
    let array = frames.add("<[u8; 8] as app::Key>::hash 12", app);
    let vec = frames.inlined("alloc::vec::Vec<T,A>::push", app, "/rustc/library/alloc/src/vec/mod.rs", 2000);
    let lines = frames.add("two\nlines\u{1b}[31m", app);
    let nameless = frames.nameless(Some(app), Some(0x1234));
    let unmapped = frames.nameless(None, None);
    let vdso = frames.nameless(Some("[vdso]"), Some(0xa10));
    let new = frames.add("operator new(unsigned long)", "/usr/lib/libstdc++.so.6");
    let first = vec![
        callsite(&[new, map, less, main], Some(StackEnd::Complete), 0, taken(4096, 40, 100, 10)),
        callsite(&[vec, rust, array, main], Some(StackEnd::Complete), 1, taken(4096, 7, 8192, 0)),
        callsite(&[nameless, lines, unmapped], Some(StackEnd::Truncated), 0, taken(4096, 12, 512, 4)),
        callsite(&[nameless, vdso], Some(StackEnd::BrokenChain), 0, taken(4096, 3, 64, 0)),
        callsite(&[nameless], Some(StackEnd::NoScratch), 0, taken(4096, 1, 32, 1)),
        callsite(&[], None, 0, taken(4096, 5, 2000, 1)),
    ];
    let second = vec![
        callsite(&[map, main], Some(StackEnd::Complete), 0, taken(4096, 2, 1 << 20, 1)),
        callsite(&[main, main, main], Some(StackEnd::Unreadable), 0, taken(4096, 2, 5000, 1)),
    ];
    let memalign = "the entry is patched; run `heapbpf doctor --pid 900`";
    let heaps = vec![
        heap("libc", &[("malloc", None), ("free", None), ("memalign", Some(memalign))]),
        heap("jemalloc", &[("mallocx", None), ("dallocx", None)]),
    ];
    let health = Health {
        events: 1_234_567,
        unaccounted: Unaccounted { alloc_bytes: 70_000, alloc_count: 900, ..Unaccounted::default() },
        lost: [("missed_free", 1), ("ring_full", 12_345), ("brand_new", 2)]
            .map(|(name, count)| (Loss::from(name.to_owned()), count))
            .to_vec(),
        unwind: [("complete", 49), ("truncated", 12), ("broken_chain", 3), ("no_scratch", 1)]
            .map(|(end, count)| (end.to_owned(), count))
            .to_vec(),
        frame_pointer_modules: vec!["/usr/lib/chromium/chromium".to_owned()],
        unfound: vec![unfound("pool", "pool_get", "libpool.so*", true), unfound("cuda", "cudaMalloc", "*", false)],
        inlined_heaps: vec![inlined()],
        resyncs: 1,
        interval_changes: changes(),
        agent_cpu_ns: 4_200_000_000,
        agent_rss_bytes_max: 61 << 20,
        inline_engine: Some(inline_engine()),
        interpreters: Some(interpreters()),
        symbolization: symbolization(),
        ..Health::default()
    };
    let mut gone = target(901, "#work;er <&>", "/opt/app/bin/app", vec![heap("libc", &[("malloc", None)])], second);
    gone.facts.end = Some(End::Exited { code: Some(137) });
    gone.facts.beginning = Beginning {
        origin: Origin::Forked(Pid(900)),
        time: MonotonicNanos(STARTED_MONOTONIC_NS + 12_000_000),
        delay_ns: Some(3_400_000),
        from_first_call: false,
    };
    let app = target(900, "app", "/opt/app/bin/app --flag", heaps, first);
    let targets = vec![TargetProfile { memory: Arc::new(memory()), ..app }, gone];
    let mut profile = profile(4096, targets, frames, health);
    profile.others.skipped_count = 3;
    profile.others.short_lived_count = 17;
    profile.others.skipped = vec![Skipped { pid: Pid(77), command: "dockerd".into(), reason: "a Go program".into() }];
    profile
}

fn changes() -> Vec<IntervalChange> {
    vec![change(3, 4096, 65_536, ChangeReason::RingFull), change(9, 65_536, 32_768, ChangeReason::Quiet)]
}

fn change(seconds: u64, from_bytes: u64, to_bytes: u64, reason: ChangeReason) -> IntervalChange {
    let unix_ns = STARTED_UNIX_NS + seconds * 1_000_000_000;
    IntervalChange { unix_ns, heap: "libc".to_owned(), from_bytes, to_bytes, reason }
}

/// Two processes. One has a sampled heap and an exact one; all heaps of the
/// other are exact.
pub fn mixed() -> Profile {
    let mut frames = Frames::default();
    let main = frames.add("main", "/usr/bin/pooled");
    let get = frames.add("get", "/usr/bin/pooled");
    let complete = Some(StackEnd::Complete);
    let callsites = vec![
        callsite(&[main], complete, 0, taken(4096, 40, 100, 10)),
        callsite(&[get, main], complete, 1, taken(1, 10, 100, 5)),
    ];
    let heaps = vec![heap("libc", &[("malloc", None), ("free", None)]), heap("pool", &[("get", None)])];
    let both = target(21, "pooled", "pooled", heaps, callsites);
    let heaps = vec![heap("pool", &[("get", None)])];
    let one = target(22, "pooled", "pooled", heaps, vec![callsite(&[get, main], complete, 0, taken(1, 2, 100, 0))]);
    let mut profile = profile(1, vec![both, one], frames, Health::default());
    profile.targets[0].heaps[0].interval_bytes = 4096;
    profile
}

/// Like `exact`, of a program without symbols.
pub fn nameless() -> Profile {
    let mut profile = exact();
    for (i, frame) in profile.frames.iter_mut().enumerate() {
        (frame.function, frame.file, frame.line) = (None, None, None);
        frame.module_offset = Some(0x1000 + 0x20 * i as u64);
    }
    profile
}

/// A process that did nothing.
pub fn empty() -> Profile {
    let heaps = vec![heap("libc", &[("malloc", None), ("free", None)])];
    profile(4096, vec![target(7, "sleep", "sleep", heaps, vec![])], Frames::default(), Health::default())
}

/// A process none of whose hooks could be attached.
pub fn unhooked() -> Profile {
    let mut profile = empty();
    for hook in &mut profile.targets[0].heaps[0].hooks {
        hook.error = Some("not permitted; run as root".to_owned());
    }
    profile
}

/// A process that freed everything.
pub fn freed() -> Profile {
    let mut frames = Frames::default();
    let main = frames.add("main", "/usr/bin/tidy");
    let callsites = vec![callsite(&[main], Some(StackEnd::Complete), 0, taken(1, 10, 100, 10))];
    let heaps = vec![heap("libc", &[("malloc", None), ("free", None)])];
    profile(1, vec![target(8, "tidy", "tidy", heaps, callsites)], frames, Health::default())
}

/// All profiles.
pub fn all() -> [Profile; 8] {
    named().map(|(_, profile)| profile)
}

/// All profiles with their names.
pub fn named() -> [(&'static str, Profile); 8] {
    [
        ("exact", exact()),
        ("sampled", sampled()),
        ("mixed", mixed()),
        ("nameless", nameless()),
        ("empty", empty()),
        ("unhooked", unhooked()),
        ("freed", freed()),
        ("nobody", nobody()),
    ]
}

/// A session that found no process.
pub fn nobody() -> Profile {
    profile(4096, vec![], Frames::default(), Health::default())
}

/// Totals of `blocks` samples of one size, the first `freed` of them freed.
pub fn taken(interval_bytes: u32, blocks: u64, size_bytes: u64, freed: u64) -> Totals {
    let weight = Amounts::of(size_bytes, profiler_common::interval::Interval::nearest(interval_bytes));
    let mut totals = Totals::default();
    for i in 0..blocks {
        totals.allocate(weight, MonotonicNanos(STARTED_MONOTONIC_NS + (i + 1) * 1_000_000));
    }
    totals.at_peak = totals.live();
    for _ in 0..freed {
        totals.free(weight);
    }
    totals
}

/// Details of blocks of one size that are live for some seconds, or lived for 3 ms, the first of them temporary.
fn details(totals: &Totals, size_bytes: u64, age_s: u64) -> Details {
    let mut details = Details { temporary_count: Some(totals.free_count.rounded().min(1)), ..Details::default() };
    details.sizes.add(size_bytes, totals.alloc_count);
    details.lifetimes.add(3000, totals.free_count);
    details.lifetime_total = totals.free_count.lasting(3000);
    details.ages.total = totals.live_count().lasting(age_s * 1_000_000);
    details.ages.histogram.add(age_s * 1_000_000, totals.live_count());
    details.ages.oldest_ns = (totals.live_samples > 0).then_some(age_s * 1_000_000_000);
    details
}

pub fn callsite(stack: &[FrameId], end: Option<StackEnd>, heap: usize, totals: Totals) -> CallsiteProfile {
    CallsiteProfile {
        index: 0,
        stack: stack.to_vec(),
        end,
        heap,
        thread: None,
        history: Vec::new(),
        inherited: false,
        totals,
        older: None,
        details: Details::default(),
        rounding: Rounding::default(),
    }
}

/// Grows by 40 MiB, of which hooked heaps explain 4 MiB.
fn memory() -> MemoryAccount {
    let part = |class, name: Option<&str>, mebibytes: u64| MemoryPart {
        class,
        name: name.map(Into::into),
        bytes: mebibytes << 20,
    };
    let point = |seconds: u64, live, overhead, other, unexplained| MemoryPoint {
        time: MonotonicNanos(STARTED_MONOTONIC_NS + seconds * 1_000_000_000),
        pss_bytes: 9 << 20,
        swap_bytes: 4096,
        parts: vec![
            part(MemoryClass::LiveBlocks, Some("libc"), live),
            part(MemoryClass::HeapOverhead, Some("libc"), overhead),
            part(MemoryClass::OtherAllocator, Some("v8<&>"), other),
            part(MemoryClass::Files, None, 5),
            part(MemoryClass::Unexplained, None, unexplained),
        ],
    };
    let mut account = MemoryAccount::default();
    account.extend(MemoryFacts {
        points: vec![point(0, 1, 1, 2, 3), point(1, 2, 2, 4, 20), point(2, 3, 3, 8, 33)],
        runtimes: vec![Language::Python, Language::JavaScript],
        mappings: vec![mapping(0x1000, "/usr/bin/<app>", true), mapping(0x7f00_0000_0000, "", false)],
        inventory: Some(Inventory {
            blocks: 1234,
            bytes: 567_890,
            interval_bytes: 17,
            pause_ns: 25_000_000,
            gaps: vec!["heap v8<&> cannot be walked".to_owned()],
            error: None,
        }),
        undecided_bytes: Some(1_234_567),
        objects: vec![objects()],
    });
    account
}

/// Sessions grew while rows became fewer; the name of a type is hostile.
fn objects() -> ObjectTypes {
    let one = |name: &str, objects: u64, bytes: u64, grown_objects: i64, grown_bytes: i64| ObjectType {
        name: name.into(),
        objects,
        bytes,
        large_bytes: if name == "dict" { 3 << 20 } else { 0 },
        grown_objects,
        grown_bytes,
    };
    ObjectTypes {
        language: Language::Python,
        time: MonotonicNanos(STARTED_MONOTONIC_NS + 2_000_000_000),
        since: Some(MonotonicNanos(STARTED_MONOTONIC_NS)),
        types: vec![
            one("dict", 120, 96 << 10, 0, 1 << 20),
            one("app.Session<&>", 40_000, 2 << 20, 30_000, 1 << 20),
            one("app.Row\u{1b}[31m", 10, 640, -5, -320),
        ],
        more_types: 2,
        blocks: HeapBlocks { blocks: 41_000, bytes: 5 << 20 },
        other: HeapBlocks { blocks: 80, bytes: 4096 },
        unread: HeapBlocks { blocks: 2, bytes: 1024 },
        reserved_bytes: 8 << 20,
        one_of: 1,
    }
}

fn mapping(start: u64, name: &str, executable: bool) -> MemoryMapping {
    let amounts = MappedAmounts {
        pss_bytes: 10 << 10,
        private_clean_bytes: 4 << 10,
        private_dirty_bytes: if executable { 0 } else { 4 << 10 },
        shared_clean_bytes: 8 << 10,
        shared_dirty_bytes: 1 << 10,
        swap_bytes: 2 << 10,
    };
    let name = name.into();
    MemoryMapping { start, size_bytes: 64 << 10, readable: true, writable: !executable, executable, name, amounts }
}

/// A target whose totals, and those of its heaps, are the sums over its callsites.
pub fn target(
    pid: u32,
    comm: &str,
    command: &str,
    mut heaps: Vec<HeapProfile>,
    mut callsites: Vec<CallsiteProfile>,
) -> TargetProfile {
    (0..).zip(&mut callsites).for_each(|(index, callsite)| callsite.index = index);
    for (i, heap) in heaps.iter_mut().enumerate() {
        heap.totals = sum(callsites.iter().filter(|callsite| callsite.heap == i));
    }
    TargetProfile {
        facts: TargetFacts::running(Pid(pid), command, comm, Beginning::running(MonotonicNanos(STARTED_MONOTONIC_NS))),
        mappings: Vec::new(),
        threads: Vec::new(),
        history: History::default(),
        memory: Arc::default(),
        leaks: None,
        totals: sum(callsites.iter()),
        heaps,
        callsites,
    }
}

fn sum<'a>(callsites: impl Iterator<Item = &'a CallsiteProfile> + Clone) -> Totals {
    let mut totals = Totals::default();
    callsites.clone().for_each(|callsite| totals.add(&callsite.totals));
    callsites.clone().for_each(|callsite| totals.at_peak += callsite.totals.at_peak);
    totals.peak_bytes = callsites.clone().map(|callsite| callsite.totals.peak_bytes).sum();
    totals.peak_count = callsites.clone().map(|callsite| callsite.totals.peak_count).sum();
    totals.peak_time = callsites.filter_map(|callsite| callsite.totals.peak_time).max();
    totals
}

fn unfound(heap: &str, function: &str, modules: &str, required: bool) -> UnfoundHook {
    UnfoundHook { heap: heap.to_owned(), function: function.to_owned(), modules: vec![modules.to_owned()], required }
}

pub fn heap(name: &str, hooks: &[(&str, Option<&str>)]) -> HeapProfile {
    let hooks = hooks.iter().zip(1_u64..).map(|(&(function, error), i)| HookStatus {
        function: function.to_owned(),
        module: format!("/usr/lib/x86_64-linux-gnu/{name}.so.6"),
        backend: "perf".to_owned(),
        offset: 0x8_0000 + 0x100 * i,
        instruction: error.is_none().then(|| "push %r12".to_owned()),
        emulated: error.is_none().then_some(true),
        required: true,
        error: error.map(str::to_owned),
        kind: HookKind::default(),
    });
    let hooks = hooks.collect();
    HeapProfile { name: name.to_owned(), interval_bytes: 1, interval_bytes_max: 1, hooks, totals: Totals::default() }
}

/// A profile whose heaps all have the profile's interval.
pub fn profile(interval_bytes: u64, mut targets: Vec<TargetProfile>, frames: Frames, health: Health) -> Profile {
    for heap in targets.iter_mut().flat_map(|target| &mut target.heaps) {
        heap.interval_bytes = interval_bytes;
    }
    let mut profile = Profile {
        older_than_ns: None,
        unreachable: false,
        filter: None,
        strict: false,
        interval_bytes,
        started_unix_ns: STARTED_UNIX_NS,
        ended_unix_ns: STARTED_UNIX_NS + 30_500_000_000,
        started_monotonic_ns: STARTED_MONOTONIC_NS,
        window: None,
        targets,
        others: Others::default(),
        frames: frames.frames,
        modules: Vec::new(),
        sources: Vec::new(),
        health,
    };
    code::place(&mut profile);
    profile.round_sums();
    profile
}

/// A builder of frames.
#[derive(Default)]
pub struct Frames {
    pub frames: Vec<Frame>,
}

impl Frames {
    pub fn add(&mut self, function: &str, module: &str) -> FrameId {
        let id = self.nameless(Some(module), None);
        let frame = self.last();
        frame.function = Some(function.into());
        frame.module_offset = Some(frame.address - 0x5555_5555_0000);
        id
    }

    pub fn placed(&mut self, function: &str, module: &str, file: &str, line: u32) -> FrameId {
        let id = self.add(function, module);
        let frame = self.last();
        (frame.file, frame.line) = (Some(file.into()), Some(line));
        id
    }

    pub fn inlined(&mut self, function: &str, module: &str, file: &str, line: u32) -> FrameId {
        let id = self.placed(function, module, file, line);
        self.last().inlined = true;
        id
    }

    pub fn nameless(&mut self, module: Option<&str>, module_offset: Option<u64>) -> FrameId {
        let id = u32::try_from(self.frames.len()).expect("a handful of frames");
        self.frames.push(Frame {
            function: None,
            module: module.map(Arc::from),
            file: None,
            line: None,
            inlined: false,
            address: 0x5555_5555_4000 + u64::from(id) * 0x10,
            module_offset,
            ..Frame::default()
        });
        FrameId(id)
    }

    fn last(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("one was just added")
    }
}

fn interpreters() -> InterpreterFrames {
    let unnamed_reasons = BTreeMap::from([("replaced before they were read".to_owned(), 2_000_000)]);
    let functions =
        LanguageFunctions { functions: 50_000_000, unnamed: 2_000_000, unnamed_reasons: unnamed_reasons.clone() };
    InterpreterFrames {
        processes: 3,
        unsupported: [("CPython 3.15 is not supported (3.8 to 3.14 are)".to_owned(), 2)].into(),
        no_thread: 7,
        unreadable: 1,
        unnamed: 2_000_000,
        unnamed_reasons,
        deferred: 12,
        languages: [("JavaScript".to_owned(), functions)].into(),
    }
}

fn inline_engine() -> InlineEngine {
    InlineEngine {
        targets: 2,
        passed_calls: 123_456,
        trapped_calls: 44,
        stop_ns_max: 1_200_000,
        refused: BTreeMap::from([("none of its functions can be replaced by a stub".to_owned(), 1)]),
    }
}

/// Names of a module are missing, and the isolation is partial.
fn symbolization() -> Symbolization {
    Symbolization {
        isolation: ["files", "capabilities", "limits"].map(|part| (part.to_owned(), true)).to_vec(),
        failures: vec![SymbolizationFailure {
            module: "/usr/lib/libhostile.so".to_owned(),
            reason: "the symbolizer crashed: SIGBUS".to_owned(),
            names: NamesFrom::SymbolTable,
        }],
        crashes: 1,
        modules: vec![
            UnnamedModule {
                module: "/usr/bin/git".to_owned(),
                build_id: Some("12ab34".to_owned()),
                share: 0.423,
                symbols: SymbolSource::UnwindTables,
                package: Some("git-dbgsym".to_owned()),
            },
            UnnamedModule {
                module: "/opt/\x1bapp".to_owned(),
                build_id: Some("56cd".to_owned()),
                share: 0.01,
                symbols: SymbolSource::MiniDebugInfo,
                package: None,
            },
        ],
        downloads: vec![Download {
            module: "/opt/\x1bapp".to_owned(),
            build_id: "56cd".to_owned(),
            bytes: 0,
            failure: Some("no server has it".to_owned()),
        }],
    }
}

fn inlined() -> InlinedHeap {
    InlinedHeap {
        heap: "cpython".to_owned(),
        module: "/usr/bin/python3.11".to_owned(),
        function: "PyObject_Malloc".to_owned(),
        copies: 160,
        advice: "run it with `PYTHONMALLOC=malloc`".to_owned(),
    }
}
