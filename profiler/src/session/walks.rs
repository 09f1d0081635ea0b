//! Snapshots of threads that wait in nested functions of an interpreter: the kernel side's walkers, compiled for this machine, find the
//! functions that the interpreter itself has described. `cargo xtask snapshot` makes them.
//!
//! A snapshot has registers, the agent's description of the runtime, and those pages of memory that the walk reads.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use heapbpf_base::address::{LinkAddr, TargetAddr};
use heapbpf_base::ids::{ModuleId, Pid, Tid};
use heapbpf_ebpf_host::{Memory, Page, Process, Random, Runtimes, Thread, Walked};
use heapbpf_ledger::ingest::decode;
use heapbpf_ledger::ingest::record::Record;
use heapbpf_linux::process_memory;
use heapbpf_linux::ptrace::{Options, Stop, Tracee};
use profiler_common::interpreter::{CodeKind, InterpretedFrame};
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::StackEnd;
use profiler_common::unwind::Rule;
use serde::{Deserialize, Serialize};

use super::interpreters::Interpreters;
use crate::interpreter;
use crate::interpreter::implementation::{NamedCode, Reader, Sent};
use crate::object::interpreted::CodeTable;
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::unwind::{self, Table};

const PAGE_BYTES: usize = 4096;

/// A function, its line, and the line that the function begins in, where code may have that instead.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Described(String, u32, #[serde(default)] Option<u32>);

impl Described {
    fn is(&self, (name, line): &(String, u32)) -> bool {
        self.0 == *name && (self.1 == *line || self.2 == Some(*line))
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Snapshot {
    /// Functions of the stack, the innermost first.
    stack: Vec<Described>,
    thread: Thread,
    runtimes: Runtimes,
    /// Reads names that the kernel side does not send.
    #[serde(default)]
    reader: Option<Box<dyn Reader>>,
    /// Start and end of mappings with code.
    mappings: Vec<(u64, u64)>,
    /// Unwind rules by address.
    rules: Vec<(u64, u64)>,
    /// Pages of memory by address.
    #[serde(with = "hexadecimal")]
    pages: BTreeMap<u64, Vec<u8>>,
}

/// Pages as digits, which compress as well as bytes do.
mod hexadecimal {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    type Pages = BTreeMap<u64, Vec<u8>>;

    pub(super) fn serialize<S: Serializer>(pages: &Pages, serializer: S) -> Result<S::Ok, S::Error> {
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        pages.iter().map(|(address, page)| (address, digits(page))).collect::<BTreeMap<_, _>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pages, D::Error> {
        // Fast without optimization, too.
        let digit = |letter: u8| (letter & 15) + 9 * (letter >> 6);
        let byte = |[high, low]: &[u8; 2]| digit(*high) << 4 | digit(*low);
        let bytes = |digits: String| digits.as_bytes().as_chunks().0.iter().map(byte).collect();
        let pages = BTreeMap::<u64, String>::deserialize(deserializer)?;
        Ok(pages.into_iter().map(|(address, digits)| (address, bytes(digits))).collect())
    }
}

/// Returns a random address in one of these pages.
fn place(random: &mut Random, pages: &[u64]) -> u64 {
    let index = usize::try_from(random.word() % pages.len() as u64).expect("it is below a length");
    pages[index] + random.word() % PAGE_BYTES as u64
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/session/testdata/walks")
}

impl Snapshot {
    fn read(path: &Path) -> Self {
        let packed = fs::read(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        let json = zstd::decode_all(packed.as_slice()).expect("a snapshot is compressed");
        serde_json::from_slice(&json).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
    }

    fn write(&self, path: &Path) {
        let json = serde_json::to_vec(self).expect("it has no maps with other keys than strings");
        fs::write(path, zstd::encode_all(json.as_slice(), 19).expect("memory suffices")).expect("the folder is ours");
    }

    fn walk(&self, memory: Memory) -> Walked {
        let rules = self.rules.iter().map(|&(address, word)| (address, Rule::from_word(word)));
        let mut process = Process::new(self.thread.tgid, &self.runtimes, self.mappings.iter().copied(), rules);
        process.walk(self.thread, memory)
    }

    fn memory(&self) -> Memory {
        let mut memory = Memory::default();
        self.pages.iter().for_each(|(address, page)| memory.write(*address, page));
        memory
    }
}

/// Memory of a snapshot, as readers of names use it.
struct Copied<'a>(RefCell<&'a mut Memory>);

impl interpreter::memory::Memory for Copied<'_> {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.0.borrow_mut().read(address, buffer).then_some(())
    }
}

#[track_caller]
fn sent(record: &[u8]) -> (Pid, Sent) {
    let Ok(Record::Code(record)) = decode(record) else { panic!("another record: {record:?}") };
    (record.pid, interpreter::decode(&record).expect("it is well-formed"))
}

/// The interpreted and compiled functions of a stack with their lines, by what the kernel side has sent.
fn functions(walked: &mut Walked, mut reader: Option<&mut Box<dyn Reader>>) -> Vec<(String, u32)> {
    let (codes, mut stubs) = (CodeTable::default(), Vec::new());
    let memory = Copied(RefCell::new(&mut walked.memory));
    for record in &walked.records {
        let (pid, sent) = sent(record);
        match sent {
            Sent::Named(_, NamedCode { code, .. }) => assert!(codes.add(pid, Arc::new(code))),
            Sent::Placed(placed) if placed.kind == CodeKind::JavaStub => stubs.push(placed.id),
            Sent::Placed(placed) => {
                let reader = reader.as_mut().expect("what sends places has a reader");
                let code = reader.read(&memory, &placed).unwrap_or_else(|| panic!("{placed:?} is not read"));
                assert!(codes.add(pid, Arc::new(code)));
            }
        }
    }
    let frames = walked.frames.iter().filter_map(|&word| Some((word, InterpretedFrame::from_word(word)?)));
    let frames = frames.filter(|(_, frame)| !stubs.contains(&frame.code));
    let located = frames.flat_map(|(word, frame)| {
        let located = codes.locate(word);
        assert!(!located.is_empty(), "{frame:?} was not sent");
        located
    });
    located.map(|it| (it.function.expect("it can be decoded").to_string(), it.line.unwrap_or(0))).collect()
}

/// Fails unless the found functions are those that were described, below functions of the runtime itself that wait.
#[track_caller]
fn compare(path: &Path, found: &[(String, u32)], described: &[Described]) {
    let first = &described.first().expect("it has functions").0;
    let inner = found.iter().take_while(|(name, _)| name != first).count();
    let found = &found[inner..];
    let is_equal = found.len() == described.len() && found.iter().zip(described).all(|(it, other)| other.is(it));
    assert!(is_equal, "{}: {found:#?} instead of {described:#?}", path.display());
}

/// Reads the snapshots of this processor, of which there are some for x86-64.
fn snapshots() -> Vec<(PathBuf, Snapshot)> {
    let suffix = format!("-{}.json.zst", env::consts::ARCH);
    let paths = fs::read_dir(folder()).expect("there are snapshots").map(|entry| entry.expect("readable").path());
    let paths = paths.filter(|path| path.to_string_lossy().ends_with(&suffix));
    let found: Vec<(PathBuf, Snapshot)> = paths.map(|path| (path.clone(), Snapshot::read(&path))).collect();
    assert!(!found.is_empty() || env::consts::ARCH != "x86_64");
    found
}

#[test]
fn walks_find_what_interpreters_describe() {
    for (path, mut snapshot) in snapshots() {
        let mut walked = snapshot.walk(snapshot.memory());
        assert_eq!(walked.end, StackEnd::Complete, "{}", path.display());
        compare(&path, &functions(&mut walked, snapshot.reader.as_mut()), &snapshot.stack);
    }
}

/// Real memory, in which some words are wrong, leads further than random memory.
#[test]
fn walks_through_damaged_memory_end_and_send_what_can_be_decoded() {
    const WALKS: u64 = 16;
    const DAMAGED: usize = 128;
    let (snapshots, mut changed) = (snapshots(), 0);
    let count = snapshots.len();
    for (path, mut snapshot) in snapshots {
        let places: Vec<u64> = snapshot.pages.keys().copied().collect();
        let undamaged = snapshot.walk(snapshot.memory()).frames;
        for seed in 1..=WALKS {
            let mut memory = snapshot.memory();
            let mut random = Random::new(2 * seed);
            for _ in 0..DAMAGED {
                let address = place(&mut random, &places) / 8 * 8;
                let other = place(&mut random, &places);
                memory.write_words(address, &[if random.word() & 1 == 0 { other } else { random.word() }]);
            }
            let mut walked = snapshot.walk(memory);
            assert!(walked.frames.len() <= STACK_FRAMES_MAX, "{}", path.display());
            let memory = Copied(RefCell::new(&mut walked.memory));
            for record in &walked.records {
                match (sent(record).1, &mut snapshot.reader) {
                    (Sent::Named(..), _) => {}
                    (Sent::Placed(placed), Some(reader)) => drop(reader.read(&memory, &placed)),
                    (other, _) => panic!("{}: {other:?}", path.display()),
                }
            }
            changed += usize::from(walked.frames != undamaged);
        }
    }
    // In some snapshots, the damage may change no walk.
    assert!(changed >= count, "what is read was damaged in {changed} walks");
}

/// Copies the parts of a process on which the walk of a thread's stack depends.
struct Copying {
    pid: Pid,
    space: Arc<AddressSpace>,
    modules: ModuleStore,
    tables: BTreeMap<ModuleId, Table>,
}

impl Copying {
    /// Returns the unwind rule of the code before a return address.
    fn rule(&mut self, address: u64) -> Option<Rule> {
        let location = self.space.lookup(TargetAddr(address))?;
        let module = self.modules.get(location.module);
        let mapped =
            self.space.mappings().iter().find(|it| (it.mapping.start.0..it.mapping.end.0).contains(&address))?;
        let bias = module.bias(mapped.mapping.start, mapped.mapping.offset)?;
        let table = self.tables.entry(location.module).or_insert_with(|| {
            let image = module.image().expect("it has a file");
            unwind::build(image).expect("it has unwind information")
        });
        Some(table.lookup(LinkAddr(address.wrapping_sub(bias)))).filter(|rule| *rule != Rule::GAP)
    }

    fn memory(&self) -> Memory {
        let pid = self.pid;
        Memory::of(move |address| {
            let mut page: Page = Box::new([0; PAGE_BYTES]);
            let read = process_memory::read(pid, &[(address, PAGE_BYTES)], page.as_mut_slice());
            read.is_ok_and(|read| read == PAGE_BYTES).then_some(page)
        })
    }
}

/// Reads the registers of a thread that waits in a system call.
#[cfg(target_arch = "x86_64")]
fn thread(pid: Pid, tid: Tid) -> Thread {
    let tracee = Tracee::seize_thread(tid, Options::default()).expect("it can be traced");
    tracee.interrupt().expect("it can be stopped");
    let stop = tracee.wait(std::time::Duration::from_secs(60)).expect("it can be waited for");
    assert_eq!(stop, Some(Stop::Trap));
    let registers = tracee.registers().expect("they can be read").expect("it has not ended");
    tracee.detach(Stop::Trap).expect("it has not ended");
    let bp = registers.general()[6];
    let (ip, sp) = (registers.instruction(), registers.stack_pointer());
    Thread { tgid: pid.0, tid: tid.0, pointer: registers.thread_pointer(), ip, sp, bp }
}

fn runtimes(found: super::interpreters::Found) -> Runtimes {
    let mut runtimes = Runtimes::default();
    for place in [found.interpreter, found.machine].into_iter().flatten() {
        let place: &dyn Any = &*place.value;
        runtimes.cpython = runtimes.cpython.or(place.downcast_ref().copied());
        runtimes.hotspot = runtimes.hotspot.or(place.downcast_ref().copied());
        runtimes.v8 = runtimes.v8.or(place.downcast_ref().copied());
        runtimes.ruby = runtimes.ruby.or(place.downcast_ref().copied());
        runtimes.php = runtimes.php.or(place.downcast_ref().copied());
    }
    runtimes
}

#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "makes a snapshot of the process, whose stack is described, into the file that variables have: `cargo xtask snapshot`"]
fn make() {
    let variable = |name: &str| env::var(format!("HEAPBPF_SNAPSHOT_{name}")).expect("xtask sets it");
    let pid = Pid(variable("PID").parse().expect("a number"));
    let tid = Tid(variable("TID").parse().expect("a number"));
    let stack: Vec<Described> = serde_json::from_str(&variable("STACK")).expect("a list of functions and lines");
    let mut modules = ModuleStore::default();
    let mut space = Arc::new(AddressSpace::new(pid));
    Arc::make_mut(&mut space).refresh(&mut modules).expect("the process runs");
    let mut interpreters = Interpreters::default();
    let runtimes = runtimes(interpreters.find(&mut space, &mut modules));
    let reader = interpreters.take_reader(pid);
    let mappings = space.mappings().iter().map(|it| (it.mapping.start.0, it.mapping.end.0)).collect();
    let mut copying = Copying { pid, space, modules, tables: BTreeMap::new() };
    let (rules, pages) = (Vec::new(), BTreeMap::new());
    let mut snapshot = Snapshot { stack, thread: thread(pid, tid), runtimes, reader, mappings, rules, pages };
    let mut walked = loop {
        let walked = snapshot.walk(copying.memory());
        // Each walk ends at the next address whose rule is not known; if that is of the interpreter loop, its functions follow.
        let last = walked.frames.iter().rfind(|&&frame| InterpretedFrame::from_word(frame).is_none());
        let Some(address) = last.filter(|_| walked.end == StackEnd::MissingModule).map(|last| last - 1) else {
            break walked;
        };
        let Some(rule) = copying.rule(address) else { panic!("no rule for {address:#x}") };
        let is_known = snapshot.rules.iter().any(|&(known, _)| known == address);
        assert!(!is_known, "two rules have one slot of the kernel side's cache: repeat");
        snapshot.rules.push((address, rule.to_word()));
    };
    assert_eq!(walked.end, StackEnd::Complete);
    let path = PathBuf::from(variable("FILE"));
    compare(&path, &functions(&mut walked, snapshot.reader.as_mut()), &snapshot.stack);
    snapshot.pages = walked.memory.pages().map(|(address, page)| (address, page.to_vec())).collect();
    snapshot.write(&path);
    let mut copied = Snapshot::read(&path);
    // The snapshot has all that is read.
    compare(&path, &functions(&mut copied.walk(copied.memory()), copied.reader.as_mut()), &copied.stack);
}
