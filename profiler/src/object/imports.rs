//! Slots that the dynamic linker fills with addresses of other modules' functions: those of the global offset table, and
//! pointers in data. Reads the dynamic section; section headers may be stripped.

use object::LittleEndian as LE;
use object::elf::{self, DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Rela64, Sym64};
use object::pod::slice_from_all_bytes;

use super::ObjectError;
use super::elf::{Dynamic, Elf};
use super::image::Image;
use crate::address::{FileOffset, LinkAddr};

/// A slot that refers to a function by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// Of eight bytes, aligned.
    pub slot: LinkAddr,
    pub function: &'static str,
    /// It may point into the module's own procedure linkage table until the first call.
    pub lazy: bool,
}

/// Of relocations, symbols or names. Chromium's are 40 MiB.
const TABLE_BYTES_MAX: u64 = 256 << 20;
const SLOT_BYTES: u64 = 8;

/// Returns the slots of functions with these names. A module without a dynamic section has none.
pub(crate) fn imports(image: &Image, elf: &Elf, names: &[&'static str]) -> Result<Vec<Import>, ObjectError> {
    let Some(section) = &elf.dynamic else { return Ok(Vec::new()) };
    let dynamic = Dynamic::read(image, section);
    let table = |address: u64, size_bytes: u64| -> Result<Vec<u8>, ObjectError> {
        if size_bytes == 0 {
            return Ok(Vec::new());
        }
        let segment = elf.segments.iter().find_map(|segment| {
            let inside = address.checked_sub(segment.address.0).filter(|&inside| inside < segment.size_bytes)?;
            segment.offset.0.checked_add(inside)
        });
        let offset = segment.ok_or(ObjectError::Malformed("a dynamic table is not in the file"))?;
        image.read(FileOffset(offset), size_bytes, TABLE_BYTES_MAX)
    };
    let mut relocations = Vec::new();
    for (address, size_bytes) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
        let bytes = table(dynamic.get(address), dynamic.get(size_bytes))?;
        let entries = slice_from_all_bytes::<Rela64<LE>>(&bytes).map_err(|()| malformed())?;
        let wanted = |entry: &&Rela64<LE>| {
            let kind = entry.r_type(LE, false);
            let refers = matches!(kind, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_64);
            refers && entry.r_sym(LE, false) != 0 && entry.r_offset.get(LE).is_multiple_of(SLOT_BYTES)
        };
        relocations.extend(entries.iter().filter(wanted).copied());
    }
    let Some(last) = relocations.iter().map(|entry| u64::from(entry.r_sym(LE, false))).max() else {
        return Ok(Vec::new());
    };
    let symbols = table(dynamic.get(DT_SYMTAB), (last + 1) * size_of::<Sym64<LE>>() as u64)?;
    let symbols = slice_from_all_bytes::<Sym64<LE>>(&symbols).map_err(|()| malformed())?;
    let strings = table(dynamic.get(DT_STRTAB), dynamic.get(DT_STRSZ))?;
    let import = |entry: &Rela64<LE>| {
        let symbol = symbols.get(entry.r_sym(LE, false) as usize)?;
        let tail = strings.get(symbol.st_name.get(LE) as usize..)?;
        let function =
            names.iter().find(|name| tail.strip_prefix(name.as_bytes()).and_then(<[u8]>::first) == Some(&0))?;
        let lazy = entry.r_type(LE, false) == elf::R_X86_64_JUMP_SLOT;
        Some(Import { slot: LinkAddr(entry.r_offset.get(LE)), function, lazy })
    };
    Ok(relocations.iter().filter_map(import).collect())
}

fn malformed() -> ObjectError {
    ObjectError::Malformed("a dynamic table has incomplete entries")
}
