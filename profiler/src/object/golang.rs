//! The functions of a Go program, from the table that its runtime unwinds by. Stripped programs have it too.
//!
//! Go's `runtime/symtab.go` (`pcHeader`, `functab`) and `runtime/runtime2.go` (`_func`), 1.16 to 1.27. The linker of C programs
//! puts it into `.data.rel.ro` for position-independent executables, Go's own into a section.

use std::ops::Range;

use object::elf as abi;

use super::elf::{Elf, Section};
use super::image::Image;

/// Of the largest known, of Kubernetes, a third.
const SECTION_BYTES_MAX: u64 = 256 << 20;
/// Kubernetes has 130,000.
const FUNCTIONS_MAX: u64 = 2 << 20;
const NAME_BYTES_MAX: usize = 4096;
const HEADER_BYTES: usize = 72;
/// Table of Go 1.16: entries are addresses.
const MAGIC_1_16: u32 = 0xffff_fffa;
/// Since 1.18: entries are offsets in the code.
const MAGIC_1_18: u32 = 0xffff_fff0;
const MAGIC_1_20: u32 = 0xffff_fff1;
/// Of the code's address in the header. Since 1.26 it is in the module's data alone (`moduledata.text`).
const TEXT_START: u64 = 24;
const MODULE_TEXT: u64 = 176;
const MODULE_BYTES_MAX: u64 = 4096;
/// Sections of the table: Go's own linker has the second one in position-independent executables.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// Sections of relocations: the second one is that of Go's own linker.
const RELOCATIONS: [&str; 2] = [".rela.dyn", ".rela"];
const RELOCATION_BYTES: usize = 24;
const RELOCATIONS_BYTES_MAX: u64 = 64 << 20;
/// Versions of symbols of one name, which the table does not have.
const ABI_SUFFIX: &str = ".abi0";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GoFunctions(Vec<GoFunction>);

/// Link addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GoFunction {
    pub(crate) range: Range<u64>,
    /// Such as `runtime.mstart`.
    pub(crate) name: Box<str>,
}

/// Offsets in the table, and how its entries are stored.
struct Header {
    count: u64,
    /// `None` if entries are addresses.
    text: Option<u64>,
    names: u64,
    functions: u64,
}

impl GoFunctions {
    /// `None` for other programs, unknown versions, and malformed tables.
    pub(crate) fn read(image: &Image, elf: &Elf) -> Option<Self> {
        if !elf.is_go {
            return None;
        }
        let (table, address) = table(image, elf)?;
        let header = Header::read(&table, || {
            relocated(image, elf, address.checked_add(TEXT_START)?).or_else(|| text_of_module(image, elf))
        })?;
        header.functions(&table).map(Self)
    }

    /// By address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &GoFunction> {
        self.0.iter()
    }

    pub(crate) fn into_functions(self) -> Vec<GoFunction> {
        self.0
    }
}

/// The table's bytes, to the end of its section, and its link address.
fn table(image: &Image, elf: &Elf) -> Option<(Vec<u8>, u64)> {
    let read = |section: &Section| {
        let is_stored = section.kind != abi::SHT_NOBITS && section.flags & u64::from(abi::SHF_COMPRESSED) == 0;
        is_stored.then(|| image.read(section.offset, section.size_bytes, SECTION_BYTES_MAX).ok())?
    };
    if let Some(section) = SECTIONS.iter().find_map(|name| elf.section(name)) {
        return Some((read(section)?, section.address.0));
    }
    let section = elf.section(".data.rel.ro")?;
    let bytes = read(section)?;
    let is_table = |at: &usize| bytes.get(*at..*at + HEADER_BYTES).is_some_and(|header| version(header).is_some());
    let at = (0..bytes.len()).step_by(8).find(is_table)?;
    Some((bytes[at..].to_vec(), section.address.0.checked_add(at as u64)?))
}

/// The magic number, if it is one of a known version for 64-bit processors whose instructions have any length.
fn version(header: &[u8]) -> Option<u32> {
    let (magic, rest) = header.split_first_chunk()?;
    let magic = u32::from_le_bytes(*magic);
    let is_known = matches!(magic, MAGIC_1_16 | MAGIC_1_18 | MAGIC_1_20) && matches!(rest, [0, 0, 1 | 4, 8, ..]);
    is_known.then_some(magic)
}

/// What the dynamic loader writes to an address: the addend of its relocation.
fn relocated(image: &Image, elf: &Elf, address: u64) -> Option<u64> {
    let section = RELOCATIONS.iter().find_map(|name| elf.section(name))?;
    let bytes = image.read(section.offset, section.size_bytes, RELOCATIONS_BYTES_MAX).ok()?;
    let relocations = bytes.as_chunks::<RELOCATION_BYTES>().0;
    let found = relocations.iter().find(|relocation| word(&relocation[..], 0) == Some(address))?;
    word(&found[..], 16)
}

/// The code's address in the data of the first module, which has a section of its own.
fn text_of_module(image: &Image, elf: &Elf) -> Option<u64> {
    let section = elf.section(".go.module")?;
    let bytes = image.read(section.offset, section.size_bytes.min(MODULE_BYTES_MAX), MODULE_BYTES_MAX).ok()?;
    let stored = word(&bytes, MODULE_TEXT)?;
    if stored != 0 { Some(stored) } else { relocated(image, elf, section.address.0.checked_add(MODULE_TEXT)?) }
}

impl Header {
    /// `text` finds the code's address if it is not in the table: the dynamic loader would write it there.
    fn read(table: &[u8], text: impl FnOnce() -> Option<u64>) -> Option<Self> {
        let version = version(table)?;
        let at = |number: u64| word(table, number * 8);
        Some(if version == MAGIC_1_16 {
            Self { count: at(1)?, text: None, names: at(3)?, functions: at(7)? }
        } else {
            let text = at(TEXT_START / 8).filter(|&stored| stored != 0).or_else(text)?;
            Self { count: at(1)?, text: Some(text), names: at(4)?, functions: at(8)? }
        })
    }

    fn functions(&self, table: &[u8]) -> Option<Vec<GoFunction>> {
        if self.count > FUNCTIONS_MAX {
            return None;
        }
        // Each entry has a function's start and the place of its record; the last one, the end of the code.
        let width = if self.text.is_some() { 4 } else { 8 };
        let field = |number: u64| {
            let at = self.functions.checked_add(number * width)?;
            let value = if width == 4 { half(table, at)?.into() } else { word(table, at)? };
            Some(value)
        };
        let start = |index: u64| self.text.unwrap_or(0).checked_add(field(2 * index)?);
        let name = |index: u64| {
            let record = self.functions.checked_add(field(2 * index + 1)?)?;
            let offset = half(table, record.checked_add(width)?)?;
            text(table, self.names.checked_add(offset.into())?)
        };
        let mut functions = Vec::new();
        // A forged table could give all functions the same long name.
        let mut rest = table.len();
        for index in 0..self.count {
            let range = start(index)?..start(index + 1)?;
            if range.end < range.start {
                return None;
            }
            let name = name(index)?;
            rest = rest.checked_sub(name.len())?;
            functions.push(GoFunction { range, name: name.into() });
        }
        Some(functions)
    }
}

fn word(bytes: &[u8], at: u64) -> Option<u64> {
    bytes.get(usize::try_from(at).ok()?..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

fn half(bytes: &[u8], at: u64) -> Option<u32> {
    bytes.get(usize::try_from(at).ok()?..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn text(bytes: &[u8], at: u64) -> Option<&str> {
    let rest = bytes.get(usize::try_from(at).ok()?..)?;
    let length = rest.iter().take(NAME_BYTES_MAX).position(|&byte| byte == 0)?;
    let name = str::from_utf8(&rest[..length]).ok()?;
    Some(name.strip_suffix(ABI_SUFFIX).unwrap_or(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: u64 = 0x40_1000;

    /// A table of 1.20 with these functions, which end at the last number.
    fn made(functions: &[(u32, &str)], end: u32) -> Vec<u8> {
        let mut names = Vec::new();
        let mut records = Vec::new();
        let mut entries = Vec::new();
        let short = |length: usize| u32::try_from(length).expect("short");
        let records_from = 8 * short(functions.len()) + 4;
        for (start, name) in functions {
            entries.extend([*start, records_from + short(records.len())].map(u32::to_le_bytes).concat());
            records.extend([*start, short(names.len())].map(u32::to_le_bytes).concat());
            names.extend(name.bytes().chain([0]));
        }
        entries.extend(end.to_le_bytes());
        let names_at = HEADER_BYTES as u64;
        let functions_at = names_at + names.len() as u64;
        let words = [functions.len() as u64, 0, TEXT, names_at, 0, 0, 0, functions_at];
        let mut table = [&MAGIC_1_20.to_le_bytes()[..], &[0, 0, 1, 8]].concat();
        table.extend(words.map(u64::to_le_bytes).concat());
        [table, names, entries, records].concat()
    }

    fn read(table: &[u8]) -> Option<Vec<GoFunction>> {
        Header::read(table, || None)?.functions(table)
    }

    #[test]
    fn functions_have_names_and_end_where_the_next_begins() {
        let table = made(&[(0, "main.main"), (0x40, "runtime.mstart.abi0"), (0x60, "pkg.Map[...]")], 0x100);
        let function = |range, name: &str| GoFunction { range, name: name.into() };
        let expected = vec![
            function(TEXT..TEXT + 0x40, "main.main"),
            function(TEXT + 0x40..TEXT + 0x60, "runtime.mstart"),
            function(TEXT + 0x60..TEXT + 0x100, "pkg.Map[...]"),
        ];
        assert_eq!(read(&table), Some(expected));
    }

    #[test]
    fn the_seed_of_the_fuzzer_is_a_go_program() {
        let seed = include_bytes!("../../../fuzz/seeds/unwind/golang");
        let image = Image::from_bytes(&seed[1..]).expect("there is memory");
        let elf = Elf::read(&image).expect("it is an ELF file");
        let functions = GoFunctions::read(&image, &elf).expect("it has a table").into_functions();
        assert_eq!(functions.len(), 5);
        assert_eq!((functions[4].range.clone(), &*functions[4].name), (0x1080..0x10a0, "main.main"));
    }

    #[test]
    fn relocations_give_the_address_of_the_code() {
        let mut table = made(&[(0, "main.main")], 0x10);
        table[24..32].fill(0);
        let header = Header::read(&table, || Some(0x7000)).expect("a table");
        assert_eq!(header.functions(&table).expect("a function")[0].range, 0x7000..0x7010);
        assert!(Header::read(&table, || None).is_none());
    }

    #[test]
    fn a_name_of_many_functions_takes_no_more_memory_than_the_table() {
        let long = "n".repeat(NAME_BYTES_MAX - 1);
        let mut functions = vec![(0, long.as_str())];
        functions.extend((1..8).map(|start| (start, "")));
        let mut table = made(&functions, 8);
        assert!(read(&table).is_some());
        let records = table.len() - 8 * functions.len();
        for record in table[records..].as_chunks_mut::<8>().0 {
            record[4..].fill(0);
        }
        assert_eq!(read(&table), None);
    }

    #[test]
    fn other_versions_and_processors_are_not_read() {
        let table = made(&[(0, "main.main")], 0x10);
        for (at, byte) in [(0, 0xfb), (4, 1), (6, 2), (7, 4)] {
            let mut other = table.clone();
            other[at] = byte;
            assert_eq!(read(&other), None, "{at}");
        }
        assert_eq!(read(&made(&[(0x20, "late"), (0, "early")], 0x30)), None, "not in order");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_bounds(
            changes in prop::collection::vec((0_usize..400, any::<u8>()), 0..40),
            length in 0_usize..400,
        ) {
            let mut table = made(&[(0, "main.main"), (0x40, "runtime.mstart"), (0x60, "pkg.function")], 0x100);
            for (at, byte) in changes {
                if let Some(place) = table.get_mut(at) {
                    *place = byte;
                }
            }
            table.truncate(length);
            if let Some(functions) = read(&table) {
                prop_assert!(functions.iter().all(|function| function.range.start <= function.range.end));
            }
        }
    }
}
