//! Code of interpreters and virtual machines, by its ids, with names and lines. It lives in the memory of targets: the kernel side
//! sends what is needed of the code that stacks contain, or where it is; `interpreter/` decodes and reads it.

use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use heapbpf_base::ids::Pid;
use heapbpf_base::language::Language;
use profiler_common::interpreter::{CodeKind, CodePlace, INSTRUCTION_UNKNOWN, InterpretedFrame};
use rustc_hash::{FxHashMap, FxHashSet};

use super::script::{InScript, Script, Spot};

/// Code objects of a session. A process has a few thousand.
const CODES_MAX: usize = 1 << 20;
/// Bytes of their names and tables of lines and calls: of all processes, and of one.
const TABLES_BYTES_MAX: usize = 256 << 20;
const PROCESS_BYTES_MAX: usize = TABLES_BYTES_MAX / 4;

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct Code {
    /// As in [`InterpretedFrame::code`].
    pub(crate) id: u64,
    pub(crate) body: CodeBody,
}

/// Code that a stack contains, and that the target's memory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedCode {
    /// As in [`InterpretedFrame::code`](profiler_common::interpreter::InterpretedFrame).
    pub(crate) id: u64,
    pub(crate) language: Language,
    pub(crate) kind: CodeKind,
    pub(crate) place: CodePlace,
}

#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) enum CodeBody {
    Function(Function),
    Compiled(Compiled),
}

#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) struct Function {
    /// Qualified, if the runtime has such names; `None` if it cannot be decoded.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) lines: CodeLines,
    /// The script that contains the function, if the script may have a source map.
    pub(crate) script: Option<InScript>,
}

/// Lines of a function in a form of its language's.
pub(crate) trait LineTable: Debug + Send + Sync {
    /// The line of an instruction, which may be [`INSTRUCTION_UNKNOWN`].
    fn at(&self, instruction: u32) -> Option<u32>;

    fn bytes(&self) -> usize;
}

#[cfg(test)]
impl PartialEq for dyn LineTable {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// Lines of a function by its instructions.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub(crate) enum CodeLines {
    /// As the language has them.
    Table(Arc<dyn LineTable>),
    /// From these instructions on, in their order. Of several for one instruction, the first is for itself, the last for what follows.
    Starts(Arc<[(u32, u32)]>),
    /// As above; where the function begins, for other instructions.
    Script { first: Option<Spot>, starts: Arc<[(u32, Spot)]> },
    /// The number of an instruction is its line.
    Numbers,
}

impl Default for CodeLines {
    fn default() -> Self {
        Self::Starts(Arc::default())
    }
}

impl CodeLines {
    pub(crate) fn at(&self, instruction: u32) -> Option<u32> {
        match self {
            Self::Table(lines) => lines.at(instruction),
            Self::Starts(starts) => value_of(starts, instruction),
            Self::Script { .. } => self.spot(instruction).map(|spot| spot.line),
            Self::Numbers => Some(instruction).filter(|&line| line != INSTRUCTION_UNKNOWN),
        }
    }

    /// The place of an instruction in its script; `None` without a script.
    fn spot(&self, instruction: u32) -> Option<Spot> {
        match self {
            Self::Script { first, starts } => value_of(starts, instruction).or(*first),
            Self::Table(_) | Self::Starts(_) | Self::Numbers => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Table(lines) => lines.bytes(),
            // Mostly shared with others.
            Self::Starts(starts) => size_of_val(&**starts),
            Self::Script { starts, .. } => size_of_val(&**starts),
            Self::Numbers => 0,
        }
    }
}

fn value_of<T: Copy>(starts: &[(u32, T)], instruction: u32) -> Option<T> {
    if instruction == INSTRUCTION_UNKNOWN {
        return None;
    }
    let behind = starts.partition_point(|(start, _)| *start < instruction);
    let exact = starts.get(behind).filter(|(start, _)| *start == instruction);
    exact.or_else(|| starts.get(behind.checked_sub(1)?)).map(|&(_, line)| line)
}

/// Frames of one return address. Compilers inline up to some dozens of calls into each other.
const INLINED_MAX: usize = 128;

/// A compiled function and those that were inlined into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compiled {
    /// Names and files; the first is the function itself.
    pub(crate) functions: Vec<(Arc<str>, Option<Arc<str>>)>,
    /// By function, the scripts that contain them; fewer than functions if the rest is in no script with a source map.
    pub(crate) scripts: Vec<Option<InScript>>,
    pub(crate) scopes: Vec<Scope>,
    /// Return addresses, sorted, as frames have them, with the innermost scope of the call.
    pub(crate) calls: Vec<(u32, u32)>,
    /// The machine code was gone before it was read, so that functions that may be inlined into it are unknown.
    pub(crate) may_lack_inlined: bool,
}

/// A place in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// Index of the function.
    pub(crate) function: u32,
    pub(crate) line: Option<u32>,
    /// Column of the line, from 0, in UTF-16 units; `None` if the language's tables have none.
    pub(crate) column: Option<u32>,
    /// Index of the scope that this one is inlined into, which is lower.
    pub(crate) caller: Option<u32>,
}

impl Compiled {
    /// Without inlined functions and lines.
    pub(crate) fn without_lines(function: Function) -> Self {
        let name = function.name.unwrap_or_default();
        let functions = vec![(name, function.file)];
        Self { functions, scripts: Vec::new(), scopes: Vec::new(), calls: Vec::new(), may_lack_inlined: false }
    }

    /// Innermost first.
    fn locate(&self, instruction: u32) -> Vec<CodeLocation> {
        let place = |function: u32, line: Option<u32>, column: Option<u32>| {
            let (name, file) = self.functions.get(function as usize)?;
            let spot = line.zip(column).map(|(line, column)| Spot { line, column });
            let script = self.scripts.get(function as usize).and_then(Option::as_ref);
            let in_script = ScriptPlace::new(script, spot);
            Some(CodeLocation { function: Some(Arc::clone(name)), file: file.clone(), line, in_script })
        };
        let call = self.calls.binary_search_by_key(&instruction, |(address, _)| *address).ok();
        let mut next = call.map(|index| self.calls[index].1);
        let mut chain = Vec::new();
        while let Some(index) = next.filter(|_| chain.len() < INLINED_MAX) {
            let Some(scope) = self.scopes.get(index as usize) else { break };
            chain.extend(place(scope.function, scope.line, scope.column));
            next = scope.caller.filter(|&caller| caller < index);
        }
        if chain.is_empty() {
            chain.extend(place(0, None, None));
        }
        chain
    }

    fn bytes(&self) -> usize {
        let names = self.functions.iter().map(|(name, file)| name.len() + file.as_ref().map_or(0, |file| file.len()));
        let tables = size_of_val(&*self.functions) + size_of_val(&*self.scopes) + size_of_val(&*self.calls);
        names.sum::<usize>() + tables + size_of_val(&*self.scripts)
    }
}

impl CodeBody {
    fn bytes(&self) -> usize {
        match self {
            Self::Function(Function { name, file, lines, .. }) => {
                [name, file].into_iter().flatten().map(|text| text.len()).sum::<usize>() + lines.bytes()
            }
            Self::Compiled(compiled) => compiled.bytes(),
        }
    }
}

/// Mark of a text of which only one end is known.
pub(crate) const CUT: char = '…';

/// The code that stacks of a session contain. It grows while snapshots are named: ids are unique, so what is added later
/// changes no earlier answer.
#[derive(Debug, Default)]
pub(crate) struct CodeTable(RwLock<Codes>);

#[derive(Debug, Default)]
struct Codes {
    by_id: FxHashMap<u64, (Pid, Arc<Code>)>,
    bytes: FxHashMap<Pid, usize>,
}

impl Codes {
    fn all_bytes(&self) -> usize {
        self.bytes.values().sum()
    }
}

/// A function and a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeLocation {
    pub(crate) function: Option<Arc<str>>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
    /// Where the function and the line are in a script that may have a source map.
    pub(crate) in_script: Option<ScriptPlace>,
}

/// A place in a script that other sources may have been translated to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScriptPlace {
    pub(crate) script: Arc<Script>,
    pub(crate) at: Spot,
    /// Where the function's name is written.
    pub(crate) name: Option<Spot>,
}

impl ScriptPlace {
    fn new(script: Option<&InScript>, at: Option<Spot>) -> Option<Self> {
        let InScript { script, name } = script?;
        Some(Self { script: Arc::clone(script), at: at?, name: *name })
    }
}

impl CodeTable {
    /// Adds code. The first one with an id stays, because older stacks contain it. Returns false if the table is full.
    pub(crate) fn add(&self, pid: Pid, code: Arc<Code>) -> bool {
        let mut codes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let bytes = code.body.bytes();
        let own_bytes = codes.bytes.get(&pid).copied().unwrap_or(0) + bytes;
        let has_room = codes.by_id.len() < CODES_MAX
            && own_bytes <= PROCESS_BYTES_MAX
            && codes.all_bytes() + bytes <= TABLES_BYTES_MAX;
        if has_room && !codes.by_id.contains_key(&code.id) {
            codes.bytes.insert(pid, own_bytes);
            codes.by_id.insert(code.id, (pid, code));
        }
        has_room
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_id.contains_key(&id)
    }

    /// Whether it is time to remove what is not needed.
    pub(crate) fn is_filling(&self) -> bool {
        let codes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        codes.by_id.len() > CODES_MAX / 2 || codes.all_bytes() > TABLES_BYTES_MAX / 2
    }

    /// Removes the code of processes of which no stacks are kept.
    pub(crate) fn keep(&self, pids: &FxHashSet<Pid>) {
        let codes = &mut *self.0.write().unwrap_or_else(PoisonError::into_inner);
        codes.by_id.retain(|_, (pid, _)| pids.contains(pid));
        codes.bytes.retain(|pid, _| pids.contains(pid));
    }

    /// The function and line of a frame, before them those that are inlined into it; empty if its code is unknown.
    pub(crate) fn locate(&self, word: u64) -> Vec<CodeLocation> {
        let Some(frame) = InterpretedFrame::from_word(word) else { return Vec::new() };
        let codes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match codes.by_id.get(&frame.code).map(|(_, code)| &code.body) {
            None => Vec::new(),
            Some(CodeBody::Function(function)) => vec![CodeLocation {
                function: function.name.clone(),
                file: function.file.clone(),
                line: function.lines.at(frame.instruction),
                in_script: ScriptPlace::new(function.script.as_ref(), function.lines.spot(frame.instruction)),
            }],
            Some(CodeBody::Compiled(compiled)) => compiled.locate(frame.instruction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Doubles;

    impl LineTable for Doubles {
        fn at(&self, instruction: u32) -> Option<u32> {
            instruction.checked_mul(2)
        }

        fn bytes(&self) -> usize {
            8
        }
    }

    fn code(id: u64, name: &str) -> Arc<Code> {
        let lines = CodeLines::Table(Arc::new(Doubles));
        let function = Function { name: Some(name.into()), file: Some("/a.py".into()), lines, script: None };
        Arc::new(Code { id, body: CodeBody::Function(function) })
    }

    fn word(kind: CodeKind, code: u64, instruction: u32) -> u64 {
        InterpretedFrame { kind, code, instruction }.to_word()
    }

    #[test]
    fn frames_have_function_file_and_line() {
        let table = CodeTable::default();
        table.add(Pid(1), code(7, "first"));
        table.add(Pid(1), code(7, "second"));
        let resolve = |instruction| table.locate(word(CodeKind::Cpython, 7, instruction));
        let (function, file) = (Some("first".into()), Some("/a.py".into()));
        let expected = |line| [CodeLocation { function: function.clone(), file: file.clone(), line, in_script: None }];
        assert_eq!(resolve(21), expected(Some(42)), "the first object with an id stays");
        assert_eq!(resolve(1 << 19), expected(Some(1 << 20)));
        assert_eq!(table.locate(word(CodeKind::Cpython, 8, 0)), []);
        assert_eq!(table.locate(0x7f00_1234_5678), []);
        table.keep(&FxHashSet::from_iter([Pid(2)]));
        assert_eq!(resolve(21), []);
    }

    #[test]
    fn compiled_functions_have_inlined_ones() {
        let scope = |function, line, caller| Scope { function, line: Some(line), column: None, caller };
        let compiled = Compiled {
            functions: vec![("A.outer".into(), Some("A.java".into())), ("B.inner".into(), None)],
            scripts: Vec::new(),
            scopes: vec![scope(0, 10, None), scope(1, 20, Some(0)), scope(0, 11, Some(2))],
            calls: vec![(100, 1), (120, 0), (140, 2), (160, 9)],
            may_lack_inlined: false,
        };
        let table = CodeTable::default();
        table.add(Pid(1), Arc::new(Code { id: 7, body: CodeBody::Compiled(compiled) }));
        let at = |instruction| -> Vec<(String, Option<u32>)> {
            let chain = table.locate(word(CodeKind::JavaCompiled, 7, instruction));
            chain.into_iter().map(|place| (place.function.expect("named").to_string(), place.line)).collect()
        };
        let place = |name: &str, line| (name.to_owned(), line);
        assert_eq!(at(100), [place("B.inner", Some(20)), place("A.outer", Some(10))]);
        assert_eq!(at(120), [place("A.outer", Some(10))]);
        assert_eq!(at(140), [place("A.outer", Some(11))], "a scope that is not before it is no caller");
        // Neither a call, nor one with a scope.
        assert_eq!([at(110), at(160)], [[place("A.outer", None)], [place("A.outer", None)]]);
    }

    #[test]
    fn chains_of_inlined_functions_are_limited() {
        let scope = |index: u32| Scope { function: 0, line: None, column: None, caller: index.checked_sub(1) };
        let functions = vec![("A.a".into(), None)];
        let scopes = (0..100_000).map(scope).collect();
        let (scripts, calls) = (Vec::new(), vec![(1, 99_999)]);
        let compiled = Compiled { functions, scripts, scopes, calls, may_lack_inlined: false };
        assert_eq!(compiled.locate(1).len(), INLINED_MAX);
    }

    #[test]
    fn lines_begin_at_instructions() {
        let lines = CodeLines::Starts([(1, 5), (4, 9), (4, 8), (9, 7)].into());
        let at = [1, 3, 4, 8, 9, 1000].map(|instruction| lines.at(instruction));
        assert_eq!(at, [5, 5, 9, 8, 7, 7].map(Some));
        assert_eq!(lines.at(0), None);
        assert_eq!(lines.at(INSTRUCTION_UNKNOWN), None);
        assert_eq!(CodeLines::default().at(0), None);
        assert_eq!([7, INSTRUCTION_UNKNOWN].map(|line| CodeLines::Numbers.at(line)), [Some(7), None]);
    }

    #[test]
    fn large_tables_fill_the_table() {
        let table = CodeTable::default();
        let lines: Arc<[(u32, u32)]> = vec![(0, 1); PROCESS_BYTES_MAX / 8].into();
        let code = |id| {
            let function = Function { lines: CodeLines::Starts(Arc::clone(&lines)), ..Function::default() };
            Arc::new(Code { id, body: CodeBody::Function(function) })
        };
        assert!(table.add(Pid(1), code(1)));
        assert!(!table.add(Pid(1), code(2)), "both exceed the limit of a process");
        let others = (2..5).map(|number| table.add(Pid(number), code(u64::from(number))));
        assert_eq!(others.collect::<Vec<_>>(), [true; 3]);
        assert!(!table.add(Pid(6), code(6)) && table.is_filling(), "all exceed the limit");
        table.keep(&FxHashSet::from_iter([Pid(2)]));
        assert!(table.add(Pid(1), code(7)));
    }
}
