//! Code objects of interpreters, by their ids, with names and lines. They live in the memory of targets: the kernel side sends what
//! is needed of those that stacks contain (`profiler-ebpf/src/interpreter.rs`).

pub(crate) mod lines;

use std::sync::{Arc, PoisonError, RwLock};

use profiler_common::interpreter::{CODE_NAME_BYTES, CodeText, INSTRUCTION_UNKNOWN, InterpretedFrame};
use rustc_hash::{FxHashMap, FxHashSet};

use self::lines::Lines;
use crate::address::TargetAddr;
use crate::ids::Pid;

/// Path of the module that stands for interpreted code. No file has it: paths of files are absolute.
pub(crate) const INTERPRETED_MODULE: &str = "[python]";

/// Code objects of a session. A process has a few thousand.
const CODES_MAX: usize = 1 << 20;

/// A code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// As in [`InterpretedFrame::code`].
    pub(crate) id: u64,
    /// Qualified, if the interpreter's version has such names; `None` if it cannot be decoded.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) lines: Lines,
    /// Where the whole line table is, if the record has only its beginning.
    pub(crate) long_table: Option<LongTable>,
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

/// The code objects that stacks of a session contain. It grows while snapshots are named: ids are unique, so what is added later
/// changes no earlier answer.
#[derive(Debug, Default)]
pub(crate) struct CodeTable(RwLock<FxHashMap<u64, (Pid, Arc<Code>)>>);

/// A function and a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodeLocation {
    pub(crate) function: Option<Arc<str>>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: Option<u32>,
}

impl CodeTable {
    /// Adds a code object. The first one with an id stays, because older stacks contain it. Returns false if the table is full.
    pub(crate) fn add(&self, pid: Pid, code: Arc<Code>) -> bool {
        let mut codes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let has_room = codes.len() < CODES_MAX;
        if has_room {
            codes.entry(code.id).or_insert((pid, code));
        }
        has_room
    }

    /// Whether it is time to remove what is not needed.
    pub(crate) fn is_filling(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len() > CODES_MAX / 2
    }

    /// Removes the code of processes of which no stacks are kept.
    pub(crate) fn keep(&self, pids: &FxHashSet<Pid>) {
        let mut codes = self.0.write().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, (pid, _)| pids.contains(pid));
    }

    /// The function and line of a frame, if its code is known.
    pub(crate) fn locate(&self, word: u64) -> Option<CodeLocation> {
        let frame = InterpretedFrame::from_word(word)?;
        let codes = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (_, code) = codes.get(&frame.code)?;
        // A frame that has not begun is at its function's first line.
        let line = match frame.instruction {
            INSTRUCTION_UNKNOWN => Some(code.lines.first_line).filter(|&line| line > 0),
            unit => code.lines.at(unit),
        };
        Some(CodeLocation { function: code.name.clone(), file: code.file.clone(), line })
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
        Arc::new(Code { id, name: Some(name.into()), file: Some("/a.py".into()), lines, long_table: None })
    }

    #[test]
    fn frames_have_function_file_and_line() {
        let table = CodeTable::default();
        table.add(Pid(1), code(7, "first"));
        table.add(Pid(1), code(7, "second"));
        let resolve = |instruction| table.locate(InterpretedFrame { code: 7, instruction }.to_word());
        let expected = |line| Some(CodeLocation { function: Some("first".into()), file: Some("/a.py".into()), line });
        assert_eq!(resolve(3), expected(Some(42)), "the first object with an id stays");
        assert_eq!(resolve(4), expected(None), "beyond the table");
        assert_eq!(resolve(INSTRUCTION_UNKNOWN), expected(Some(40)));
        assert_eq!(table.locate(InterpretedFrame { code: 8, instruction: 0 }.to_word()), None);
        assert_eq!(table.locate(0x7f00_1234_5678), None);
        table.keep(&FxHashSet::from_iter([Pid(2)]));
        assert_eq!(table.locate(InterpretedFrame { code: 7, instruction: 3 }.to_word()), None);
    }

    proptest! {
        #[test]
        fn any_text_decodes_without_panic(state: u32, characters: u64, bytes: u32, content: [u8; 32]) {
            let (_, copied) = head(state, &content, characters);
            let _ = text(CodeText { characters, state, bytes }, &copied);
        }
    }
}
