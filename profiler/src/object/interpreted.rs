//! Code of interpreters and virtual machines, by its ids, with names and lines. It lives in the memory of targets: the kernel side
//! sends what is needed of the code that stacks contain (`profiler-ebpf/src/interpreter.rs`), or where it is (`hotspot.rs`).

pub(crate) mod labels;
pub(crate) mod lines;
pub(crate) mod php;

use std::sync::{Arc, PoisonError, RwLock};

use profiler_common::interpreter::{
    CODE_NAME_BYTES, CodeKind, CodePlace, CodeText, INSTRUCTION_UNKNOWN, InterpretedFrame,
};
use rustc_hash::{FxHashMap, FxHashSet};
use strum::{EnumIter, IntoEnumIterator};

use self::lines::Lines;
use crate::address::TargetAddr;
use crate::ids::Pid;

/// A module that stands for the code of an interpreter or a virtual machine, which has no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumIter)]
pub enum PseudoModule {
    Python,
    Java,
    JavaScript,
    Php,
    Ruby,
}

impl PseudoModule {
    /// No file has it: paths of files are absolute.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Python => "[python]",
            Self::Java => "[java]",
            Self::JavaScript => "[javascript]",
            Self::Php => "[php]",
            Self::Ruby => "[ruby]",
        }
    }

    pub(crate) fn language(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::Java => "Java",
            Self::JavaScript => "JavaScript",
            Self::Php => "PHP",
            Self::Ruby => "Ruby",
        }
    }

    pub(crate) fn of_kind(kind: CodeKind) -> Self {
        match kind {
            CodeKind::Cpython => Self::Python,
            CodeKind::JavaInterpreted | CodeKind::JavaCompiled | CodeKind::JavaStub => Self::Java,
            CodeKind::JavaScript => Self::JavaScript,
            CodeKind::Php => Self::Php,
            CodeKind::Ruby => Self::Ruby,
        }
    }

    pub(crate) fn of_path(path: &str) -> Option<Self> {
        Self::iter().find(|module| module.path() == path)
    }

    /// The first of its words in stacks, and the first of those of the next one.
    pub(crate) fn words(self) -> [TargetAddr; 2] {
        let first = match self {
            Self::Python => CodeKind::Cpython,
            Self::Java => CodeKind::JavaInterpreted,
            Self::JavaScript => CodeKind::JavaScript,
            Self::Php => CodeKind::Php,
            Self::Ruby => CodeKind::Ruby,
        };
        let next = match self {
            Self::Python => CodeKind::JavaInterpreted.first_word(),
            Self::Java => CodeKind::JavaScript.first_word(),
            Self::JavaScript => CodeKind::Php.first_word(),
            Self::Php => CodeKind::Ruby.first_word(),
            Self::Ruby => CodeKind::END,
        };
        [TargetAddr(first.first_word()), TargetAddr(next)]
    }
}

/// Code objects of a session. A process has a few thousand.
const CODES_MAX: usize = 1 << 20;
/// Bytes of their names and tables of lines and calls: of all processes, and of one.
const TABLES_BYTES_MAX: usize = 256 << 20;
const PROCESS_BYTES_MAX: usize = TABLES_BYTES_MAX / 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// As in [`InterpretedFrame::code`].
    pub(crate) id: u64,
    pub(crate) body: CodeBody,
}

/// Code that a stack contains, and that the target's memory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedCode {
    /// As in [`InterpretedFrame::code`](profiler_common::interpreter::InterpretedFrame).
    pub(crate) id: u64,
    pub(crate) kind: CodeKind,
    pub(crate) place: CodePlace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CodeBody {
    Function(Function),
    Compiled(Compiled),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Function {
    /// Qualified, if the runtime has such names; `None` if it cannot be decoded.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) lines: CodeLines,
}

/// Lines of a function by its instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CodeLines {
    /// As CPython has them; where the whole table is, if this is only its beginning.
    Cpython(Lines, Option<LongTable>),
    /// From these instructions on, in their order. Of several for one instruction, the first is for itself, the last for what follows.
    Starts(Arc<[(u32, u32)]>),
    /// As above; the line that the function begins in, for other instructions.
    Script { first_line: Option<u32>, starts: Arc<[(u32, u32)]> },
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
            // A frame that has not begun is at its function's first line.
            Self::Cpython(lines, _) if instruction == INSTRUCTION_UNKNOWN => {
                Some(lines.first_line).filter(|&line| line > 0)
            }
            Self::Cpython(lines, _) => lines.at(instruction),
            Self::Starts(starts) => line_of(starts, instruction),
            Self::Script { first_line, starts } => line_of(starts, instruction).or(*first_line),
            Self::Numbers => Some(instruction).filter(|&line| line != INSTRUCTION_UNKNOWN),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Cpython(lines, _) => lines.table.len(),
            // Mostly shared with others.
            Self::Starts(starts) | Self::Script { starts, .. } => size_of_val(&**starts),
            Self::Numbers => 0,
        }
    }
}

fn line_of(starts: &[(u32, u32)], instruction: u32) -> Option<u32> {
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
    /// Index of the scope that this one is inlined into, which is lower.
    pub(crate) caller: Option<u32>,
}

impl Compiled {
    /// Without inlined functions and lines.
    pub(crate) fn without_lines(function: Function) -> Self {
        let name = function.name.unwrap_or_default();
        Self { functions: vec![(name, function.file)], scopes: Vec::new(), calls: Vec::new(), may_lack_inlined: false }
    }

    /// Innermost first.
    fn locate(&self, instruction: u32) -> Vec<CodeLocation> {
        let place = |function: u32, line: Option<u32>| {
            let (name, file) = self.functions.get(function as usize)?;
            Some(CodeLocation { function: Some(Arc::clone(name)), file: file.clone(), line })
        };
        let call = self.calls.binary_search_by_key(&instruction, |(address, _)| *address).ok();
        let mut next = call.map(|index| self.calls[index].1);
        let mut chain = Vec::new();
        while let Some(index) = next.filter(|_| chain.len() < INLINED_MAX) {
            let Some(scope) = self.scopes.get(index as usize) else { break };
            chain.extend(place(scope.function, scope.line));
            next = scope.caller.filter(|&caller| caller < index);
        }
        if chain.is_empty() {
            chain.extend(place(0, None));
        }
        chain
    }

    fn bytes(&self) -> usize {
        let names = self.functions.iter().map(|(name, file)| name.len() + file.as_ref().map_or(0, |file| file.len()));
        let tables = size_of_val(&*self.functions) + size_of_val(&*self.scopes) + size_of_val(&*self.calls);
        names.sum::<usize>() + tables
    }
}

impl CodeBody {
    fn bytes(&self) -> usize {
        match self {
            Self::Function(Function { name, file, lines }) => {
                [name, file].into_iter().flatten().map(|text| text.len()).sum::<usize>() + lines.bytes()
            }
            Self::Compiled(compiled) => compiled.bytes(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LongTable {
    pub(crate) address: TargetAddr,
    pub(crate) length: u64,
}

/// Mark of a text of which only the end is known.
const CUT: char = '…';

/// Characters of 1, 2 or 4 bytes, as `PyUnicode_KIND` has them.
pub(crate) fn text(head: CodeText, bytes: &[u8; CODE_NAME_BYTES]) -> Option<Arc<str>> {
    let bytes = &bytes[..usize::try_from(head.bytes).ok()?.min(CODE_NAME_BYTES)];
    let (kind, is_compact) = (head.state >> 2 & 7, head.state >> 5 & 1 != 0);
    if !is_compact {
        return None;
    }
    let character = |number: u32| char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER);
    let characters: Vec<char> = match kind {
        1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
        2 => bytes.as_chunks().0.iter().map(|unit| character(u16::from_le_bytes(*unit).into())).collect(),
        4 => bytes.as_chunks().0.iter().map(|unit| character(u32::from_le_bytes(*unit))).collect(),
        _ => return None,
    };
    let is_cut = head.characters > characters.len() as u64;
    let text: String = is_cut.then_some(CUT).into_iter().chain(characters).collect();
    (!text.is_empty()).then(|| text.into())
}

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
            }],
            Some(CodeBody::Compiled(compiled)) => compiled.locate(frame.instruction),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::interpreter::LineTable;
    use proptest::prelude::*;

    const ASCII: u32 = 1 << 2 | 1 << 5 | 1 << 6;
    const LATIN: u32 = 1 << 2 | 1 << 5;
    const TWO: u32 = 2 << 2 | 1 << 5;
    const FOUR: u32 = 4 << 2 | 1 << 5;

    fn head(state: u32, bytes: &[u8], characters: u64) -> (CodeText, [u8; CODE_NAME_BYTES]) {
        let mut copied = [0; CODE_NAME_BYTES];
        copied[..bytes.len()].copy_from_slice(bytes);
        (CodeText { characters, state, bytes: u32::try_from(bytes.len()).expect("short") }, copied)
    }

    fn decode(state: u32, bytes: &[u8], characters: u64) -> Option<String> {
        let (head, bytes) = head(state, bytes, characters);
        text(head, &bytes).map(|text| text.to_string())
    }

    #[test]
    fn texts_have_characters_of_three_widths() {
        assert_eq!(decode(ASCII, b"run", 3).as_deref(), Some("run"));
        assert_eq!(decode(LATIN, &[b'g', 0xfc], 2).as_deref(), Some("gü"));
        assert_eq!(decode(TWO, &[0xac, 0x20, b'a', 0], 2).as_deref(), Some("€a"));
        assert_eq!(decode(FOUR, &[0x0d, 0xf4, 1, 0], 1).as_deref(), Some("🐍"));
        // Of a long path, the end was copied.
        assert_eq!(decode(ASCII, b"/mod.py", 300).as_deref(), Some("…/mod.py"));
        // Not compact, of no known kind, or unreadable.
        for (state, bytes) in [(1 << 2, &b"a"[..]), (3 << 2 | 1 << 5, b"a"), (ASCII, b"")] {
            assert_eq!(decode(state, bytes, bytes.len() as u64), None);
        }
    }

    fn code(id: u64, name: &str) -> Arc<Code> {
        let lines = Lines { format: LineTable::Ranges, first_line: 40, table: [8, 2].into() };
        let lines = CodeLines::Cpython(lines, None);
        let function = Function { name: Some(name.into()), file: Some("/a.py".into()), lines };
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
        let expected = |line| [CodeLocation { function: Some("first".into()), file: Some("/a.py".into()), line }];
        assert_eq!(resolve(3), expected(Some(42)), "the first object with an id stays");
        assert_eq!(resolve(4), expected(None), "beyond the table");
        assert_eq!(resolve(INSTRUCTION_UNKNOWN), expected(Some(40)));
        assert_eq!(table.locate(word(CodeKind::Cpython, 8, 0)), []);
        assert_eq!(table.locate(0x7f00_1234_5678), []);
        table.keep(&FxHashSet::from_iter([Pid(2)]));
        assert_eq!(resolve(3), []);
    }

    #[test]
    fn compiled_functions_have_inlined_ones() {
        let scope = |function, line, caller| Scope { function, line: Some(line), caller };
        let compiled = Compiled {
            functions: vec![("A.outer".into(), Some("A.java".into())), ("B.inner".into(), None)],
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
        let scope = |index: u32| Scope { function: 0, line: None, caller: index.checked_sub(1) };
        let functions = vec![("A.a".into(), None)];
        let scopes = (0..100_000).map(scope).collect();
        let compiled = Compiled { functions, scopes, calls: vec![(1, 99_999)], may_lack_inlined: false };
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

    #[test]
    fn modules_have_their_words() {
        for (kind, module) in [
            (CodeKind::Cpython, PseudoModule::Python),
            (CodeKind::JavaInterpreted, PseudoModule::Java),
            (CodeKind::JavaCompiled, PseudoModule::Java),
            (CodeKind::JavaStub, PseudoModule::Java),
            (CodeKind::JavaScript, PseudoModule::JavaScript),
            (CodeKind::Php, PseudoModule::Php),
            (CodeKind::Ruby, PseudoModule::Ruby),
        ] {
            let word = TargetAddr(word(kind, u64::MAX, INSTRUCTION_UNKNOWN));
            let of = PseudoModule::iter().filter(|module| (module.words()[0]..module.words()[1]).contains(&word));
            assert_eq!(of.collect::<Vec<_>>(), [module]);
            assert_eq!(PseudoModule::of_path(module.path()), Some(module));
        }
    }

    proptest! {
        #[test]
        fn any_text_decodes_without_panic(state: u32, characters: u64, bytes: u32, content: [u8; 32]) {
            let (_, copied) = head(state, &content, characters);
            let _ = text(CodeText { characters, state, bytes }, &copied);
        }
    }
}
