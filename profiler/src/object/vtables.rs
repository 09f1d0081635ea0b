//! The virtual tables of a module's C++ classes, by address, from their symbols. Modules without symbols have none, and Rust's virtual
//! tables have no symbols.

use object::LittleEndian as LE;
use object::elf as abi;

use super::ObjectError;
use super::module::Module;
use super::symbols::{EXTRA_BYTES_MAX, SymbolSource, Table};
use crate::address::LinkAddr;

/// Prefix of the symbols of virtual tables (Itanium C++ ABI, 5.1.4.1).
const PREFIX: &[u8] = b"_ZTV";

/// Bytes before the first function: offset to top and type information (Itanium C++ ABI, 2.5.2).
const HEAD_BYTES: u64 = 16;

/// Size of a function pointer.
const ENTRY_BYTES: u64 = 8;

/// Maximum length of a name in bytes: longer ones are not demangled anyway.
const NAME_BYTES_MAX: usize = 1 << 14;

/// Maximum bytes of names of a module. Real ones have a few megabytes; a forged file can repeat the same long name a million times.
const NAMES_BYTES_MAX: usize = 1 << 26;

#[derive(Debug, Default)]
pub struct Vtables {
    /// By rising address.
    tables: Vec<Vtable>,
}

/// A symbol `_ZTV…`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Vtable {
    start: u64,
    end: u64,
    symbol: Box<str>,
}

impl Vtables {
    /// Reads them from `.symtab`, which has all, and from `.dynsym`, which stripped modules have too. Malformed or too large symbol
    /// tables count as empty.
    pub fn of(module: &Module) -> Result<Self, ObjectError> {
        let image = module.image().map_err(Clone::clone)?;
        let elf = module.elf().map_err(Clone::clone)?;
        let mut tables = Vec::new();
        let mut room_bytes = NAMES_BYTES_MAX;
        for source in [SymbolSource::Dynamic, SymbolSource::Static] {
            if let Some(table) = Table::read(image, elf, source, EXTRA_BYTES_MAX) {
                scan(&table, &mut tables, &mut room_bytes);
            }
        }
        tables.sort_unstable();
        tables.dedup();
        Ok(Self { tables })
    }

    /// The symbol of the virtual table of an object whose first word is this address. It points behind the head of the table or, in a
    /// class with several bases, of one of the tables that follow in the same symbol.
    pub fn symbol(&self, address: LinkAddr) -> Option<&str> {
        let behind = self.tables.partition_point(|table| table.start <= address.0);
        let table = self.tables[..behind].last()?;
        let inside = address.0 - table.start;
        let points = inside >= HEAD_BYTES && inside.is_multiple_of(ENTRY_BYTES) && address.0 < table.end;
        points.then_some(&*table.symbol)
    }
}

fn scan(table: &Table, tables: &mut Vec<Vtable>, room_bytes: &mut usize) {
    for symbol in table.symbols() {
        let is_defined = symbol.st_shndx.get(LE) != abi::SHN_UNDEF && symbol.st_type() == abi::STT_OBJECT;
        let (start, size_bytes) = (symbol.st_value.get(LE), symbol.st_size.get(LE));
        if !is_defined || size_bytes <= HEAD_BYTES || !table.begins(symbol.st_name.get(LE), PREFIX) {
            continue;
        }
        let Some((name, _)) = table.name(symbol.st_name.get(LE), NAME_BYTES_MAX) else { continue };
        let (Ok(name), Some(end)) = (std::str::from_utf8(name), start.checked_add(size_bytes)) else { continue };
        let Some(left) = room_bytes.checked_sub(name.len() + size_of::<Vtable>()) else { return };
        *room_bytes = left;
        tables.push(Vtable { start, end, symbol: name.into() });
    }
}
