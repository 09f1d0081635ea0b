//! Code that waits to be read, with a reader of the test's.

use std::process::Command;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::language::facts::Functions as LanguageFacts;
use profiler_common::interpreter::{CodeKind, CodePlace, InterpretedFrame};
use profiler_common::stack::StackEnd;
use profiler_common::v8::V8;

use super::*;
use crate::interpreter::memory::Memory;

const LANGUAGE: Language = Language::JavaScript;

/// Code at an even address is there.
#[derive(Debug)]
struct Even;

impl Reader for Even {
    fn read(&mut self, _: &dyn Memory, code: &PlacedCode) -> Option<Code> {
        let function = Function { name: Some("named".into()), ..Function::default() };
        code.place.address.is_multiple_of(2).then(|| Code { id: code.id, body: CodeBody::Function(function) })
    }

    fn save(&self) -> (Language, serde_json::Value) {
        (LANGUAGE, serde_json::Value::Null)
    }
}

struct Case {
    interpreters: Interpreters,
    modules: ModuleStore,
    pid: Pid,
}

impl Case {
    /// A process, and code at these addresses that its stacks contain.
    fn new(pid: Pid, addresses: std::ops::Range<u64>) -> Self {
        let mut interpreters = Interpreters::default();
        let functions: &'static LanguageFacts = LANGUAGE.functions().expect("it has functions");
        let place = RuntimePlace { language: LANGUAGE, functions, value: Arc::new(V8::default()) };
        interpreters.enter_reader(pid, LANGUAGE, place, Some(Box::new(Even)));
        interpreters.supported.insert((pid, LANGUAGE));
        let code = |address| PlacedCode {
            id: address,
            language: LANGUAGE,
            kind: CodeKind::JavaScript,
            place: CodePlace { address, refers_to: 0, detail: 0 },
        };
        interpreters.pending_count = addresses.clone().count();
        interpreters.pending.insert(pid, addresses.map(code).collect());
        Self { interpreters, modules: ModuleStore::default(), pid }
    }

    fn read(&mut self) {
        self.interpreters.read_pending(&self.modules);
    }

    /// The number of functions, and of those without names by reason.
    fn counts(&self) -> (u64, Vec<(String, u64)>) {
        self.counts_with(&Counters::default(), &[])
    }

    fn counts_with(&self, counters: &Counters, stacks: &[Stack]) -> (u64, Vec<(String, u64)>) {
        let frames = self.interpreters.frames(counters, stacks.iter(), &self.modules).expect("there is an interpreter");
        let functions = &frames.languages[LANGUAGE.name()];
        (functions.functions, functions.unnamed_reasons.clone().into_iter().collect())
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id())
}

#[test]
fn all_code_is_read_in_parts() {
    let mut case = Case::new(own_pid(), 0..1000);
    case.read();
    assert_eq!(case.counts(), (1000, vec![(Unnamed::Replaced.to_string(), 500)]));
    assert!(case.interpreters.pending.is_empty() && case.interpreters.pending_count == 0);
}

#[test]
fn code_waits_until_there_is_time_to_read_it() {
    let mut case = Case::new(own_pid(), 0..100);
    let spent = Spent { time: Duration::from_secs(3600), ..Spent::default() };
    case.interpreters.process_times.insert(case.pid, spent);
    case.read();
    assert_eq!(case.counts(), (100, vec![(Unnamed::NotRead.to_string(), 100)]), "it is counted");
    case.interpreters.process_times.clear();
    case.read();
    assert_eq!(case.counts(), (100, vec![(Unnamed::Replaced.to_string(), 50)]), "it is read later");
}

#[test]
fn code_that_was_never_sent_is_counted() {
    let mut case = Case::new(own_pid(), 0..4);
    case.read();
    let frame = |code| InterpretedFrame { kind: CodeKind::JavaScript, code, instruction: 0 };
    let word = |code| TargetAddr(frame(code).to_word());
    // Those that were read, those that were not there, and two others.
    let frames = [0, 1, 2, 3, 4, 4, 5].map(word);
    let stacks = [Stack { frames: Arc::new(frames), end: StackEnd::Complete }];
    let replaced = (Unnamed::Replaced.to_string(), 2);
    let mut counters = Counters::default();
    assert_eq!(case.counts_with(&counters, &stacks), (4, vec![replaced.clone()]), "nothing was refused");
    counters.add(Counter::CodeRefused, 9);
    let unsent = (Unnamed::Unsent.to_string(), 2);
    assert_eq!(case.counts_with(&counters, &stacks), (6, vec![unsent, replaced]));
}

#[test]
fn code_of_ended_processes_is_not_called_replaced() {
    let mut child = Command::new("true").spawn().expect("it is installed");
    let pid = Pid(child.id());
    child.wait().expect("it ends");
    let mut case = Case::new(pid, 1..2);
    case.read();
    assert_eq!(case.counts(), (1, vec![(Unnamed::Ended.to_string(), 1)]));
    let mut case = Case::new(pid, 0..1);
    case.interpreters.session_time.time = Duration::from_secs(3600);
    case.read();
    assert_eq!(case.counts(), (1, vec![(Unnamed::Ended.to_string(), 1)]), "it waited in vain");
}
