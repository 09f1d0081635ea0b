//! What a module's files have for addresses that blazesym does not name: functions whose names are not UTF-8, MiniDebugInfo, the Go
//! runtime's table of functions, stubs of the procedure linkage table, and the ranges of `.eh_frame`.
//!
//! <https://sourceware.org/gdb/current/onlinedocs/gdb.html/MiniDebugInfo.html>

use std::io::Read;

use heapbpf_base::shown;
use lzma_rust2::XzReader;
use object::LittleEndian as LE;
use object::elf::{FileHeader64, SHN_UNDEF, SHT_SYMTAB, STT_FUNC, STT_GNU_IFUNC};
use object::read::elf::{FileHeader as _, Sym as _};

use crate::object::elf::Elf;
use crate::object::golang::GoFunctions;
use crate::object::image::Image;
use crate::object::imports::stubs;
use crate::object::symbols::{Definition, functions_outside_utf8};
use crate::unwind::ranges::Ranges;

/// Of `.gnu_debugdata`: Fedora's largest have less than 2 MiB.
const PACKED_BYTES_MAX: u64 = 32 << 20;
/// Of the file in it.
const UNPACKED_BYTES_MAX: u64 = 256 << 20;
/// Of the decoder: `xz -9` takes 65 MiB.
const DECODER_KIB_MAX: u32 = 128 << 10;

#[derive(Debug)]
pub(super) struct Remainder {
    /// By start.
    functions: Vec<Function>,
    ranges: Ranges,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Function {
    /// Link address, like `end`.
    start: u64,
    end: u64,
    name: Box<str>,
}

/// `.gnu_debugdata` is malformed, or exceeds a limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl Remainder {
    /// Whatever is readable, and whether something is not. `files` are those whose symbol tables blazesym reads, the module's own too.
    pub(super) fn read<'a>(image: &Image, files: impl Iterator<Item = &'a Image>) -> (Self, Result<(), Malformed>) {
        let Ok(elf) = Elf::read(image) else {
            return (Self { functions: Vec::new(), ranges: Ranges::default() }, Ok(()));
        };
        let stubs = stubs(image, &elf).into_iter().map(|stub| Function {
            start: stub.start.0,
            end: stub.start.0.saturating_add(stub.size_bytes),
            name: format!("{}@plt", stub.function).into(),
        });
        let mut functions: Vec<Function> = stubs.collect();
        functions.extend(files.flat_map(outside_utf8));
        let mini = mini_functions(image, &elf).map(|mini| functions.extend(mini));
        let of_go = GoFunctions::read(image, &elf).unwrap_or_default().into_functions().into_iter();
        functions.extend(of_go.map(|it| Function { start: it.range.start, end: it.range.end, name: it.name }));
        functions.sort_unstable();
        (Self { functions, ranges: Ranges::read(image) }, mini)
    }

    /// Returns the symbol that contains a link address.
    pub(super) fn name(&self, address: u64) -> Option<&str> {
        let behind = self.functions.partition_point(|function| function.start <= address);
        let function = self.functions.get(behind.checked_sub(1)?)?;
        (address < function.end).then_some(&*function.name)
    }

    /// Returns the link address at which the function starts that contains this one.
    pub(super) fn start_of(&self, address: u64) -> Option<u64> {
        self.ranges.start_of(address)
    }
}

/// Functions that blazesym does not name, because their names are not UTF-8.
fn outside_utf8(file: &Image) -> Vec<Function> {
    let found = Elf::read(file).map(|elf| functions_outside_utf8(file, &elf)).unwrap_or_default();
    let function = |it: Definition| Function {
        start: it.address.0,
        end: it.address.0.saturating_add(it.size_bytes),
        name: it.name.into(),
    };
    found.into_iter().map(function).collect()
}

/// Functions of the symbol table in `.gnu_debugdata`.
fn mini_functions(image: &Image, elf: &Elf) -> Result<Vec<Function>, Malformed> {
    let Some(section) = elf.section(".gnu_debugdata") else { return Ok(Vec::new()) };
    let packed = image.read(section.offset, section.size_bytes, PACKED_BYTES_MAX).map_err(|_| Malformed)?;
    functions_of(&unpack(&packed)?)
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut unpacked = Vec::new();
    let reader = XzReader::new_mem_limit(packed, false, DECODER_KIB_MAX);
    reader.take(UNPACKED_BYTES_MAX + 1).read_to_end(&mut unpacked).map_err(|_| Malformed)?;
    if unpacked.len() as u64 > UNPACKED_BYTES_MAX { Err(Malformed) } else { Ok(unpacked) }
}

fn functions_of(file: &[u8]) -> Result<Vec<Function>, Malformed> {
    let malformed = |_| Malformed;
    let header = FileHeader64::<LE>::parse(file).map_err(malformed)?;
    let sections = header.sections(LE, file).map_err(malformed)?;
    let symbols = sections.symbols(LE, file, SHT_SYMTAB).map_err(malformed)?;
    let function = |symbol: &object::elf::Sym64<LE>| {
        let is_function = matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC) && symbol.st_shndx(LE) != SHN_UNDEF;
        let (start, size_bytes) = (symbol.st_value(LE), symbol.st_size(LE));
        let name =
            symbol.name(LE, symbols.strings()).ok().filter(|name| is_function && size_bytes > 0 && !name.is_empty())?;
        Some(Function { start, end: start.saturating_add(size_bytes), name: shown::text(name).into() })
    };
    Ok(symbols.iter().filter_map(function).collect())
}
