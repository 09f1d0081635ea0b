//! Records of code objects.

use std::mem::offset_of;
use std::sync::Arc;

use heapbpf_ledger::ingest::field::{DecodeError, field, word};
use profiler_common::interpreter::{CODE_NAME_BYTES, CodeId, CodeText, LineTable, ShortCodeRecord};

use super::super::implementation::{NamedCode, Whole};
use super::super::memory::Memory;
use super::lines::Lines;
use crate::object::interpreted::{CUT, Code, CodeBody, CodeLines, Function};

/// Longer line tables are not read: they would have 100,000 lines.
const TABLE_BYTES_MAX: usize = 1 << 20;

/// The parts of short and long records are at the same offsets, except the end.
pub(super) fn decode(bytes: &[u8]) -> Result<NamedCode, DecodeError> {
    let head = |at: usize| -> Result<CodeText, DecodeError> {
        Ok(CodeText {
            characters: u64::from_ne_bytes(word(bytes, at + offset_of!(CodeText, characters))?),
            state: u32::from_ne_bytes(word(bytes, at + offset_of!(CodeText, state))?),
            bytes: u32::from_ne_bytes(word(bytes, at + offset_of!(CodeText, bytes))?),
        })
    };
    let format = field!(bytes, ShortCodeRecord, line_table, u8);
    let table_bytes = usize::from(field!(bytes, ShortCodeRecord, table_bytes, u16));
    let table = bytes.get(offset_of!(ShortCodeRecord, table)..).and_then(|rest| rest.get(..table_bytes));
    let address = field!(bytes, ShortCodeRecord, table_address, u64);
    let length = field!(bytes, ShortCodeRecord, table_length, u64);
    let lines = Lines {
        format: LineTable::from_wire(format).ok_or(DecodeError::UnknownLines(format))?,
        first_line: field!(bytes, ShortCodeRecord, first_line, u32),
        table: table.ok_or(DecodeError::Short)?.into(),
    };
    let name_bytes = word::<CODE_NAME_BYTES>(bytes, offset_of!(ShortCodeRecord, name_bytes))?;
    let file_bytes = word::<CODE_NAME_BYTES>(bytes, offset_of!(ShortCodeRecord, file_bytes))?;
    let named = Named {
        id: CodeId(field!(bytes, ShortCodeRecord, code_id, u64)).in_frames(),
        name: text(head(offset_of!(ShortCodeRecord, name))?, &name_bytes),
        file: text(head(offset_of!(ShortCodeRecord, file))?, &file_bytes),
    };
    let code = named.with(lines.clone());
    let is_cut = length > table_bytes as u64;
    let whole = is_cut.then(|| -> Box<dyn Whole> { Box::new(LongTable { address, length, beginning: lines, named }) });
    Ok(NamedCode { code, whole })
}

#[derive(Debug)]
struct Named {
    id: u64,
    name: Option<Arc<str>>,
    file: Option<Arc<str>>,
}

impl Named {
    fn with(&self, lines: Lines) -> Code {
        let lines = CodeLines::Table(Arc::new(lines));
        let function = Function { name: self.name.clone(), file: self.file.clone(), lines, script: None };
        Code { id: self.id, body: CodeBody::Function(function) }
    }
}

/// A line table that is longer than a record.
#[derive(Debug)]
struct LongTable {
    address: u64,
    length: u64,
    /// What the record has. It verifies that the table is still there.
    beginning: Lines,
    named: Named,
}

impl Whole for LongTable {
    fn read(&self, memory: &dyn Memory) -> Option<Code> {
        let length = usize::try_from(self.length).ok().filter(|&length| length <= TABLE_BYTES_MAX)?;
        let mut table = vec![0; length];
        memory.fill(self.address, &mut table)?;
        let is_same = table.starts_with(&self.beginning.table);
        is_same.then(|| self.named.with(Lines { table: table.into(), ..self.beginning }))
    }
}

/// Characters of 1, 2 or 4 bytes, as `PyUnicode_KIND` has them.
fn text(head: CodeText, bytes: &[u8; CODE_NAME_BYTES]) -> Option<Arc<str>> {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
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

    fn decoded(state: u32, bytes: &[u8], characters: u64) -> Option<String> {
        let (head, bytes) = head(state, bytes, characters);
        text(head, &bytes).map(|text| text.to_string())
    }

    #[test]
    fn texts_have_characters_of_three_widths() {
        assert_eq!(decoded(ASCII, b"run", 3).as_deref(), Some("run"));
        assert_eq!(decoded(LATIN, &[b'g', 0xfc], 2).as_deref(), Some("gü"));
        assert_eq!(decoded(TWO, &[0xac, 0x20, b'a', 0], 2).as_deref(), Some("€a"));
        assert_eq!(decoded(FOUR, &[0x0d, 0xf4, 1, 0], 1).as_deref(), Some("🐍"));
        // Of a long path, the end was copied.
        assert_eq!(decoded(ASCII, b"/mod.py", 300).as_deref(), Some("…/mod.py"));
        // Not compact, of no known kind, or unreadable.
        for (state, bytes) in [(1 << 2, &b"a"[..]), (3 << 2 | 1 << 5, b"a"), (ASCII, b"")] {
            assert_eq!(decoded(state, bytes, bytes.len() as u64), None);
        }
    }

    /// A table in the memory of a target.
    struct Target(BTreeMap<u64, Vec<u8>>);

    impl Memory for Target {
        fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
            buffer.copy_from_slice(self.0.get(&address)?.get(..buffer.len())?);
            Some(())
        }
    }

    /// Of a function that begins in line 7, with a table of 10 bytes at 0x1000, of which the record has 2.
    fn record() -> Vec<u8> {
        let mut bytes = vec![0; size_of::<ShortCodeRecord>()];
        let mut set = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        set(offset_of!(ShortCodeRecord, first_line), &7u32.to_ne_bytes());
        set(offset_of!(ShortCodeRecord, table_bytes), &2u16.to_ne_bytes());
        set(offset_of!(ShortCodeRecord, line_table), &[LineTable::Ranges as u8]);
        set(offset_of!(ShortCodeRecord, table_address), &0x1000u64.to_ne_bytes());
        set(offset_of!(ShortCodeRecord, table_length), &10u64.to_ne_bytes());
        let name = offset_of!(ShortCodeRecord, name);
        set(name + offset_of!(CodeText, characters), &3u64.to_ne_bytes());
        set(name + offset_of!(CodeText, state), &ASCII.to_ne_bytes());
        set(name + offset_of!(CodeText, bytes), &3u32.to_ne_bytes());
        set(offset_of!(ShortCodeRecord, name_bytes), b"run");
        set(offset_of!(ShortCodeRecord, table), &[4, 1]);
        bytes
    }

    fn lines(code: &Code) -> [Option<u32>; 2] {
        let CodeBody::Function(function) = &code.body else { panic!("not a function") };
        assert_eq!((function.name.as_deref(), function.file.as_deref()), (Some("run"), None));
        [0, 2].map(|unit| function.lines.at(unit))
    }

    #[test]
    fn long_tables_are_read_while_their_beginning_is_there() {
        let named = decode(&record()).expect("it is well-formed");
        assert_eq!(lines(&named.code), [Some(8), None]);
        let whole = named.whole.expect("the table is longer than the record's part");
        let table = vec![4, 1, 2, 3, 0, 0, 0, 0, 0, 0];
        let read = |table: Vec<u8>| whole.read(&Target([(0x1000, table)].into()));
        assert_eq!(read(table.clone()).as_ref().map(lines), Some([Some(8), Some(11)]));
        assert!(read([vec![4, 2], table[2..].to_vec()].concat()).is_none(), "another table");
        assert!(read(vec![4, 1]).is_none(), "it cannot be read");
        let mut complete = record();
        complete[offset_of!(ShortCodeRecord, table_length)] = 2;
        assert!(decode(&complete).expect("it is well-formed").whole.is_none());
    }

    #[test]
    fn unknown_formats_are_refused() {
        let mut bytes = record();
        bytes[offset_of!(ShortCodeRecord, line_table)] = 9;
        assert_eq!(decode(&bytes).err(), Some(DecodeError::UnknownLines(9)));
    }

    proptest! {
        #[test]
        fn any_text_decodes_without_panic(state: u32, characters: u64, bytes: u32, content: [u8; 32]) {
            let (_, copied) = head(state, &content, characters);
            let _ = text(CodeText { characters, state, bytes }, &copied);
        }
    }
}
