//! Tests of the layout of a fold in the file. A reader of the same major version must understand it.

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use heapbpf_base::units::Cubes;
use heapbpf_ledger::model::{Inventory, MemoryFacts};
use heapbpf_ledger::timeline::TimelinePoint;
use heapbpf_linux::rights::Rights;

use super::*;
use crate::recording::block::VERSION_MAJOR;
use crate::recording::entry::{MappedRange, ModuleFacts, ThreadFacts};
use heapbpf_ledger::model::Program;

/// A replay with a value of every kind that a fold can hold.
fn replay() -> Replay {
    let mut replay = Replay::default().by_thread(true);
    let ledger = LedgerId(1);
    let frames = [TargetAddr(0x1010), TargetAddr(0x1020)].into();
    let module = ModuleFacts {
        id: ModuleId(0),
        path: "/bin/seven".to_owned(),
        build_id: Some(vec![7; 20]),
        file: None,
        code: Vec::new(),
    };
    let mapped = MappedRange {
        start: TargetAddr(0x1000),
        end: TargetAddr(0x2000),
        offset: FileOffset(0),
        module: Some(ModuleId(0)),
    };
    let mapping = Remap {
        pid: Pid(7),
        tid: Tid(8),
        old_address: TargetAddr(0),
        old_bytes: 0,
        new_address: TargetAddr(0x9000),
        new_bytes: 4096,
        began: MonotonicNanos(3000),
        ended: MonotonicNanos(4000),
        stack: StackId(2),
        hook: HookId(3),
        heap: HeapId(2),
    };
    let entries = [
        fact(Fact::Module(module)),
        Entry::Step(Step::Mapped { ledger, mappings: vec![mapped] }),
        fact(Fact::Thread(ledger, ThreadFacts { tid: Tid(8), name: "eight".into() })),
        Entry::Event(Event::Stack(Pid(7), StackId(1), Stack { frames, end: StackEnd::Complete })),
        Entry::Event(Event::Alloc(allocation(0x4001, 100, 1000))),
        Entry::Event(Event::Alloc(allocation(0x4006, 200, 2000))),
        Entry::Event(Event::Remap(mapping)),
        Entry::Step(Step::Sampled { ledger, point: TimelinePoint { time: MonotonicNanos(5000), trigger: None } }),
        Entry::Event(free(0x4001, 6000)),
    ];
    beginning().into_iter().chain(entries).for_each(|entry| replay.enter(entry));
    replay.fold();
    replay
}

/// If this test fails, readers of this major version would misread what is written now, and take what was written before for
/// damage: raise `VERSION_MAJOR`, once for all changes before a release, and make the golden file anew.
#[test]
fn the_layout_of_a_fold_is_that_of_its_version() {
    let bytes = postcard::to_allocvec(&replay()).expect("it can be written");
    let name = format!("src/recording/testdata/fold.{VERSION_MAJOR}.bin");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, &bytes).expect("testdata can be written to");
    }
    let golden = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(bytes == golden, "folds are laid out otherwise: see this test's comment");
    // The golden file is of minor version 0, which has no third cumulants.
    let again = Replay::from_bytes(&golden).expect("it is of this version");
    let told =
        |replay: &Replay| format!("{:?}", replay.snapshot(None, Modules::default(), MonotonicNanos(9000)).targets);
    let mut without_cubes = replay();
    without_cubes.cubes_mut().for_each(|cubes| *cubes = Cubes::default());
    assert_eq!(told(&again), told(&without_cubes));

    let bytes = replay().serialized().expect("it can be written");
    let again = Replay::from_bytes(&bytes).expect("it was written now");
    assert_eq!(told(&again), told(&replay()));
    assert_ne!(told(&again), told(&without_cubes));
    assert!(bytes.starts_with(&golden) && postcard::from_bytes::<Replay>(&bytes).is_ok(), "the cumulants follow");
    assert!(Replay::from_bytes(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn an_inventory_follows_a_fold() {
    let inventory =
        Inventory { blocks: 7, bytes: 700, pause_ns: 5, gaps: vec!["a gap".to_owned()], ..Inventory::default() };
    let facts = MemoryFacts { inventory: Some(inventory.clone()), ..MemoryFacts::default() };
    let with = |entries: Vec<Entry>| {
        let mut replay = replay();
        entries.into_iter().for_each(|entry| replay.enter(entry));
        replay.serialized().expect("it can be written")
    };
    let (bytes, without) = (with(vec![fact(Fact::Memory(LedgerId(1), facts))]), with(Vec::new()));
    let read = |bytes: &[u8]| {
        let replay = Replay::from_bytes(bytes).expect("it was written now");
        let snapshot = replay.snapshot(None, Modules::default(), MonotonicNanos(9000));
        snapshot.targets[0].memory.inventory().cloned()
    };
    assert_eq!((read(&bytes), read(&without)), (Some(inventory), None));
    // Minor version 1 ends before the list of inventories.
    assert_eq!(read(&without[..without.len() - 6]), None);
    assert!(Replay::from_bytes(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn a_fold_has_the_rights_of_a_program_and_the_name_that_it_was_started_by() {
    let program = Program { path: "/bin/seven".into(), started_as: "/bin/link".into() };
    let facts = TargetFacts::running(Pid(7), "seven", "seven", Beginning::running(MonotonicNanos(1)));
    let rights = Some(Rights::of_nobody());
    let facts = TargetFacts { program: Some(program.clone()), rights: rights.clone(), ..facts };
    let record = TargetRecord { facts, begun: true, heaps: Vec::new() };
    let text = serde_json::to_string(&record).expect("it is written as JSON");
    assert_eq!(serde_json::from_str::<TargetRecord>(&text).expect("it is read"), record);
    let mut replay = replay();
    replay.enter(fact(Fact::Target(LedgerId(1), record)));
    let bytes = replay.serialized().expect("it can be written");
    let again = Replay::from_bytes(&bytes).expect("it was written now");
    let targets = again.snapshot(None, Modules::default(), MonotonicNanos(9000)).targets;
    assert_eq!((&targets[0].facts.program, &targets[0].facts.rights), (&Some(program), &rights));
}
