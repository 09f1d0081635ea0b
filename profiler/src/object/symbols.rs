//! Finds functions that a module defines, by name. Names for addresses are [`symbolize`](crate::symbolize)'s task.

use object::LittleEndian as LE;
use object::elf::{self as abi, Sym64};
use object::pod::slice_from_all_bytes;
use rustc_hash::FxHashMap;

use super::ObjectError;
use super::debug_files;
use super::elf::{Elf, Section};
use super::image::Image;
use super::module::Module;
use super::symbol_sections::Sections;
pub(crate) use super::symbol_sections::SymbolSource;
use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::shown;

/// Prefix of the compiler's own functions since Rust 1.87, such as `_RNvCs…_7___rustc12___rust_alloc`.
const RUSTC_CRATE: &[u8] = b"7___rustc";
const RUSTC_NAME_BYTES_MAX: usize = 96;
/// Bit of a version index that marks a version other than the default one (`name@VERSION`, not `name@@VERSION`).
const VERSION_HIDDEN: u16 = 0x8000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// `.dynsym`; and `.symtab` in a static executable, which has no other, or that of its debug file if it is stripped.
    Exported,
    /// Also `.symtab`, for names that `.dynsym` does not define, unless it is too large.
    Everything,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefinedFunction {
    /// Without version.
    pub name: String,
    pub offset: FileOffset,
    /// 0 if unknown.
    pub size_bytes: u64,
    pub source: SymbolSource,
    /// The code is not the function: it is called once and returns the function's address (`STT_GNU_IFUNC`).
    pub indirect: bool,
    /// Visible to other object files. A local function may have the name by chance.
    pub global: bool,
}

/// Sorted by name and offset. A name `__rust_…` also matches the same name mangled with the compiler's own crate (Rust
/// since 1.87). Of several versions of a function the default one is returned, and the others only if there is none
/// (glibc's `cfree`). Symbols outside the file's executable code are ignored, and so are local functions if a global
/// one has the name. Malformed symbol tables count as empty.
#[cfg(test)]
pub(crate) fn defined_functions(
    module: &Module,
    names: &[&str],
    search: Search,
) -> Result<Vec<DefinedFunction>, ObjectError> {
    Symbols::of(module, names, &[], search).map(|symbols| symbols.functions)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    pub functions: Vec<DefinedFunction>,
    /// The module imports one of the requested names.
    pub imports: bool,
}

impl Symbols {
    /// See [`defined_functions`].
    pub fn of(module: &Module, defined: &[&str], imported: &[&str], search: Search) -> Result<Self, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let mut wanted: Wanted<'_> = defined.iter().map(|name| (name.as_bytes(), Vec::new())).collect();
        let dynamic = Table::read(image, elf, SymbolSource::Dynamic);
        if let Some(table) = &dynamic {
            scan(table, elf, SymbolSource::Dynamic, &mut wanted);
        }
        let found = wanted.extract_if(|_, candidates| !candidates.is_empty());
        let mut functions: Vec<DefinedFunction> = found.flat_map(|(_, candidates)| best(candidates)).collect();
        if !wanted.is_empty() && (search == Search::Everything || elf.is_static) {
            let own = Table::read(image, elf, SymbolSource::Static);
            if let Some(table) = own.or_else(|| Table::of_debug_file(module)) {
                scan(&table, elf, SymbolSource::Static, &mut wanted);
            }
            functions.extend(wanted.into_values().flat_map(best));
        }
        functions.sort_unstable();
        functions.dedup();
        Ok(Self { functions, imports: dynamic.is_some_and(|table| table.imports_any(imported)) })
    }
}

/// By requested name: functions, and whether they are the default version.
type Wanted<'a> = FxHashMap<&'a [u8], Vec<(DefinedFunction, bool)>>;

/// Prefers the default version to others, and global functions to local ones.
fn best(mut candidates: Vec<(DefinedFunction, bool)>) -> impl Iterator<Item = DefinedFunction> {
    if candidates.iter().any(|(_, is_default)| *is_default) {
        candidates.retain(|(_, is_default)| *is_default);
    }
    if candidates.iter().any(|(function, _)| function.global) {
        candidates.retain(|(function, _)| function.global);
    }
    candidates.into_iter().map(|(function, _)| function)
}

fn scan(table: &Table, elf: &Elf, source: SymbolSource, wanted: &mut Wanted<'_>) {
    // Names are compared up to the longest requested one: otherwise a table of a million symbols that share one long
    // name would cost a million times its length.
    let rustc = wanted.keys().any(|name| name.starts_with(b"__rust_"));
    let longest = wanted.keys().map(|name| name.len()).max().unwrap_or(0);
    let longest = longest.max(if rustc { RUSTC_NAME_BYTES_MAX } else { 0 });
    for (index, symbol) in table.symbols().iter().enumerate() {
        let indirect = symbol.st_type() == abi::STT_GNU_IFUNC;
        if symbol.st_shndx.get(LE) == abi::SHN_UNDEF || !(indirect || symbol.st_type() == abi::STT_FUNC) {
            continue;
        }
        let Some((name, named_default)) = table.name(symbol.st_name.get(LE), longest) else { continue };
        let name = if rustc { plain_name(name).unwrap_or(name) } else { name };
        let Some(candidates) = wanted.get_mut(name) else { continue };
        let Some(offset) = elf.file_offset(LinkAddr(symbol.st_value.get(LE))) else { continue };
        let function = DefinedFunction {
            name: shown::text(name).into_owned(),
            offset,
            size_bytes: symbol.st_size.get(LE),
            source,
            indirect,
            global: symbol.st_bind() != abi::STB_LOCAL,
        };
        candidates.push((function, named_default && table.version(index) & VERSION_HIDDEN == 0));
    }
}

/// The last part of a mangled name. An identifier is its length, a `_` if it begins with a digit or `_`, and its bytes.
fn plain_name(mangled: &[u8]) -> Option<&[u8]> {
    let inside = mangled.strip_prefix(b"_RNvC")?;
    let at = inside.windows(RUSTC_CRATE.len()).position(|window| window == RUSTC_CRATE)?;
    let identifier = &inside[at + RUSTC_CRATE.len()..];
    let digits = identifier.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length: usize = std::str::from_utf8(&identifier[..digits]).ok()?.parse().ok()?;
    let name = identifier[digits..].strip_prefix(b"_").unwrap_or(&identifier[digits..]);
    (name.len() == length).then_some(name)
}

struct Table {
    symbols: Vec<u8>,
    strings: Vec<u8>,
    /// One 16-bit index per symbol; empty if there are no versions.
    versions: Vec<u8>,
}

impl Table {
    fn read(image: &Image, elf: &Elf, source: SymbolSource) -> Option<Self> {
        if !image.has_symbols() {
            return None;
        }
        let sections = Sections::find(elf, source)?;
        let read = |section: &Section| image.read(section.offset, section.size_bytes, source.bytes_max()).ok();
        let mut symbols = read(sections.symbols)?;
        symbols.truncate(symbols.len() / size_of::<Sym64<LE>>() * size_of::<Sym64<LE>>());
        let strings = read(sections.strings)?;
        Some(Self { symbols, strings, versions: sections.versions.and_then(read).unwrap_or_default() })
    }

    /// That of the debug file of a static program, which has no other if it is stripped. The file must have the program's build id.
    fn of_debug_file(module: &Module) -> Option<Self> {
        let elf = module.elf().ok().filter(|elf| elf.is_static)?;
        let build_id = elf.build_id.as_ref()?;
        let read = |image: &Image| {
            let debug = Elf::read(image).ok().filter(|debug| debug.build_id.as_ref() == Some(build_id))?;
            Self::read(image, &debug, SymbolSource::Static)
        };
        let linked = module.debug_link().and_then(|link| read(&link.image));
        linked.or_else(|| read(&debug_files::find_installed(build_id)?))
    }

    fn symbols(&self) -> &[Sym64<LE>] {
        slice_from_all_bytes(&self.symbols).unwrap_or_default()
    }

    fn imports_any(&self, names: &[&str]) -> bool {
        let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut undefined = self.symbols().iter().filter(|symbol| symbol.st_shndx.get(LE) == abi::SHN_UNDEF);
        undefined.any(|symbol| {
            let name = self.name(symbol.st_name.get(LE), longest);
            name.is_some_and(|(name, _)| names.iter().any(|wanted| wanted.as_bytes() == name))
        })
    }

    /// `None` beyond `longest`. Also whether it can be the default version: names in `.symtab` contain their version
    /// (`memcpy@GLIBC_2.2.5`, the default `memcpy@@GLIBC_2.14`).
    fn name(&self, at: u32, longest: usize) -> Option<(&[u8], bool)> {
        let tail = self.strings.get(at as usize..)?;
        let tail = &tail[..tail.len().min(longest.saturating_add(1))];
        let end = tail.iter().position(|&byte| matches!(byte, 0 | b'@'))?;
        let behind = self.strings.get(at as usize + end..)?;
        Some((&tail[..end], !behind.starts_with(b"@") || behind.starts_with(b"@@")))
    }

    fn begins(&self, at: u32, prefix: &[u8]) -> bool {
        self.strings.get(at as usize..).is_some_and(|tail| tail.starts_with(prefix))
    }

    fn version(&self, index: usize) -> u16 {
        let bytes = index.checked_mul(2).and_then(|at| self.versions.get(at..)?.first_chunk::<2>());
        bytes.map_or(0, |&bytes| u16::from_le_bytes(bytes))
    }
}

/// Link addresses of defined functions with these names, sorted; of static executables also local ones. Malformed symbol tables
/// count as empty.
pub(crate) fn addresses(image: &Image, elf: &Elf, names: &[&[u8]]) -> Vec<u64> {
    let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let source = if elf.is_static { SymbolSource::Static } else { SymbolSource::Dynamic };
    let Some(table) = Table::read(image, elf, source) else { return Vec::new() };
    let is_named = |symbol: &&Sym64<LE>| {
        symbol.st_shndx.get(LE) != abi::SHN_UNDEF
            && symbol.st_type() == abi::STT_FUNC
            && table.name(symbol.st_name.get(LE), longest).is_some_and(|(name, _)| names.contains(&name))
    };
    let mut addresses: Vec<u64> =
        table.symbols().iter().filter(is_named).map(|symbol| symbol.st_value.get(LE)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// A function or an object that a module exports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    pub(crate) name: String,
    pub(crate) address: LinkAddr,
    pub(crate) size_bytes: u64,
}

/// Exported functions and objects with these names. Malformed symbol tables count as empty.
pub(crate) fn definitions(image: &Image, elf: &Elf, names: &[&str]) -> Vec<Definition> {
    let source = if elf.is_static { SymbolSource::Static } else { SymbolSource::Dynamic };
    definitions_in(image, elf, source, &[abi::STT_FUNC, abi::STT_OBJECT], names)
}

/// As [`definitions`], of the symbols that only files have that are not stripped.
pub(crate) fn local_definitions(image: &Image, elf: &Elf, names: &[&str]) -> Vec<Definition> {
    definitions_in(image, elf, SymbolSource::Static, &[abi::STT_FUNC, abi::STT_OBJECT], names)
}

/// As [`local_definitions`], of objects, and of labels, as assemblers define them, which have no size.
pub(crate) fn local_objects(image: &Image, elf: &Elf, names: &[&str]) -> Vec<Definition> {
    definitions_in(image, elf, SymbolSource::Static, &[abi::STT_NOTYPE, abi::STT_OBJECT], names)
}

fn definitions_in(image: &Image, elf: &Elf, source: SymbolSource, kinds: &[u8], names: &[&str]) -> Vec<Definition> {
    let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let Some(table) = Table::read(image, elf, source) else { return Vec::new() };
    let defined = table
        .symbols()
        .iter()
        .filter(|symbol| symbol.st_shndx.get(LE) != abi::SHN_UNDEF && kinds.contains(&symbol.st_type()));
    let wanted = defined.filter_map(|symbol| {
        let (name, _) = table.name(symbol.st_name.get(LE), longest)?;
        let name = names.iter().find(|wanted| wanted.as_bytes() == name)?;
        let (address, size_bytes) = (LinkAddr(symbol.st_value.get(LE)), symbol.st_size.get(LE));
        Some(Definition { name: (*name).to_owned(), address, size_bytes })
    });
    wanted.collect()
}

/// Functions with a size whose names are not UTF-8, escaped: what reads symbol tables as text lacks them. Malformed or too large
/// symbol tables count as empty.
pub(crate) fn functions_outside_utf8(image: &Image, elf: &Elf) -> Vec<Definition> {
    let mut found = Vec::new();
    let mut room_bytes = NAMES_BYTES_MAX;
    for source in [SymbolSource::Static, SymbolSource::Dynamic] {
        let table = Table::read(image, elf, source);
        // In nearly all files, all names are UTF-8.
        let Some(table) = table.filter(|table| std::str::from_utf8(&table.strings).is_err()) else { continue };
        for symbol in table.symbols() {
            let is_function = matches!(symbol.st_type(), abi::STT_FUNC | abi::STT_GNU_IFUNC);
            let (address, size_bytes) = (LinkAddr(symbol.st_value.get(LE)), symbol.st_size.get(LE));
            if !is_function || symbol.st_shndx.get(LE) == abi::SHN_UNDEF || size_bytes == 0 {
                continue;
            }
            let Some((name, _)) = table.name(symbol.st_name.get(LE), NAME_BYTES_MAX) else { continue };
            if std::str::from_utf8(name).is_ok() {
                continue;
            }
            let name = shown::text(name).into_owned();
            let Some(left) = room_bytes.checked_sub(name.len()) else { return found };
            room_bytes = left;
            found.push(Definition { name, address, size_bytes });
        }
    }
    found
}

/// Longer names are not of integers that a module publishes.
const INTEGER_NAME_BYTES_MAX: usize = 256;

/// Exported objects of 4 bytes whose names begin with the prefix: the rest of the name, and the integer in the file. Malformed symbol
/// tables count as empty.
pub(crate) fn exported_integers(image: &Image, elf: &Elf, prefix: &str) -> FxHashMap<String, i32> {
    let source = if elf.is_static { SymbolSource::Static } else { SymbolSource::Dynamic };
    let Some(table) = Table::read(image, elf, source) else { return FxHashMap::default() };
    let begins = |symbol: &&Sym64<LE>| {
        symbol.st_type() == abi::STT_OBJECT
            && symbol.st_shndx.get(LE) != abi::SHN_UNDEF
            && table.begins(symbol.st_name.get(LE), prefix.as_bytes())
    };
    let integer = |symbol: &Sym64<LE>| {
        let (name, _) = table.name(symbol.st_name.get(LE), INTEGER_NAME_BYTES_MAX)?;
        let name = std::str::from_utf8(name.get(prefix.len()..)?).ok()?.to_owned();
        let offset = elf.data_offset(LinkAddr(symbol.st_value.get(LE)))?;
        let bytes = image.read(offset, 4, 4).ok()?;
        Some((name, i32::from_le_bytes(*bytes.first_chunk()?)))
    };
    table.symbols().iter().filter(begins).filter_map(integer).collect()
}

/// Prefix of the symbols of virtual tables (Itanium C++ ABI, 5.1.4.1).
const VTABLE_PREFIX: &[u8] = b"_ZTV";
/// Bytes before the first function: offset to top and type information (Itanium C++ ABI, 2.5.2).
const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 8;
/// Longer ones are not demangled anyway.
const NAME_BYTES_MAX: usize = 1 << 14;
/// Of a module. Real ones have a few megabytes; a forged file can repeat a long name a million times.
const NAMES_BYTES_MAX: usize = 1 << 26;

/// By rising address, from symbols: modules without symbols have none, nor does Rust have any.
#[derive(Debug, Default)]
pub struct Vtables(Vec<Vtable>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Vtable {
    start: u64,
    end: u64,
    symbol: Box<str>,
}

impl Vtables {
    /// `.symtab` has all; stripped modules have `.dynsym`. Malformed or too large symbol tables count as empty.
    pub fn of(module: &Module) -> Result<Self, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let mut tables = Vec::new();
        let mut room_bytes = NAMES_BYTES_MAX;
        for source in [SymbolSource::Dynamic, SymbolSource::Static] {
            if let Some(table) = Table::read(image, elf, source) {
                scan_vtables(&table, &mut tables, &mut room_bytes);
            }
        }
        tables.sort_unstable();
        tables.dedup();
        Ok(Self(tables))
    }

    /// An object's first word points behind the head of the table or, in a class with several bases, of one of the
    /// tables that follow in the same symbol.
    pub fn symbol(&self, address: LinkAddr) -> Option<&str> {
        let behind = self.0.partition_point(|table| table.start <= address.0);
        let table = self.0[..behind].last()?;
        let inside = address.0 - table.start;
        let points = inside >= HEAD_BYTES && inside.is_multiple_of(ENTRY_BYTES) && address.0 < table.end;
        points.then_some(&*table.symbol)
    }
}

fn scan_vtables(table: &Table, tables: &mut Vec<Vtable>, room_bytes: &mut usize) {
    for symbol in table.symbols() {
        let is_defined = symbol.st_shndx.get(LE) != abi::SHN_UNDEF && symbol.st_type() == abi::STT_OBJECT;
        let (start, size_bytes) = (symbol.st_value.get(LE), symbol.st_size.get(LE));
        if !is_defined || size_bytes <= HEAD_BYTES || !table.begins(symbol.st_name.get(LE), VTABLE_PREFIX) {
            continue;
        }
        let Some((name, _)) = table.name(symbol.st_name.get(LE), NAME_BYTES_MAX) else { continue };
        let (Ok(name), Some(end)) = (std::str::from_utf8(name), start.checked_add(size_bytes)) else { continue };
        let Some(left) = room_bytes.checked_sub(name.len() + size_of::<Vtable>()) else { return };
        *room_bytes = left;
        tables.push(Vtable { start, end, symbol: name.into() });
    }
}

#[cfg(test)]
mod tests;
