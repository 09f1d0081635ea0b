//! Slots that the dynamic linker fills with addresses of other modules' functions: those of the global offset table, and
//! pointers in data. Reads the dynamic section; section headers may be stripped.

use object::LittleEndian as LE;
use object::elf::{self, DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Rela64, Sym64};
use object::pod::slice_from_all_bytes;
use rustc_hash::FxHashMap;

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

/// Relocations of slots, with the tables that name them.
struct Relocations {
    entries: Vec<Rela64<LE>>,
    symbols: Vec<u8>,
    strings: Vec<u8>,
}

impl Relocations {
    /// Empty for a module without a dynamic section.
    fn read(image: &Image, elf: &Elf) -> Result<Self, ObjectError> {
        let mut read = Self { entries: Vec::new(), symbols: Vec::new(), strings: Vec::new() };
        let Some(section) = &elf.dynamic else { return Ok(read) };
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
        for (address, size_bytes) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let bytes = table(dynamic.get(address), dynamic.get(size_bytes))?;
            let entries = slice_from_all_bytes::<Rela64<LE>>(&bytes).map_err(|()| malformed())?;
            let wanted = |entry: &&Rela64<LE>| {
                let kind = entry.r_type(LE, false);
                let refers = matches!(kind, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_64);
                refers && entry.r_sym(LE, false) != 0 && entry.r_offset.get(LE).is_multiple_of(SLOT_BYTES)
            };
            read.entries.extend(entries.iter().filter(wanted).copied());
        }
        let last = read.entries.iter().map(|entry| u64::from(entry.r_sym(LE, false))).max();
        if let Some(last) = last {
            read.symbols = table(dynamic.get(DT_SYMTAB), (last + 1) * size_of::<Sym64<LE>>() as u64)?;
            read.strings = table(dynamic.get(DT_STRTAB), dynamic.get(DT_STRSZ))?;
        }
        Ok(read)
    }

    /// Relocations with the strings that start with their names.
    fn named(&self) -> Result<impl Iterator<Item = (&Rela64<LE>, &[u8])>, ObjectError> {
        let symbols = slice_from_all_bytes::<Sym64<LE>>(&self.symbols).map_err(|()| malformed())?;
        Ok(self.entries.iter().filter_map(move |entry| {
            let symbol = symbols.get(entry.r_sym(LE, false) as usize)?;
            Some((entry, self.strings.get(symbol.st_name.get(LE) as usize..)?))
        }))
    }
}

/// Returns the slots of functions with these names. A module without a dynamic section has none.
pub(crate) fn imports(image: &Image, elf: &Elf, names: &[&'static str]) -> Result<Vec<Import>, ObjectError> {
    let relocations = Relocations::read(image, elf)?;
    let import = |(entry, tail): (&Rela64<LE>, &[u8])| {
        let function =
            names.iter().find(|name| tail.strip_prefix(name.as_bytes()).and_then(<[u8]>::first) == Some(&0))?;
        let lazy = entry.r_type(LE, false) == elf::R_X86_64_JUMP_SLOT;
        Some(Import { slot: LinkAddr(entry.r_offset.get(LE)), function, lazy })
    };
    Ok(relocations.named()?.filter_map(import).collect())
}

/// A stub of the procedure linkage table (PLT): code that jumps to a function of another module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    pub start: LinkAddr,
    pub size_bytes: u64,
    pub function: Box<str>,
}

/// Sections of stubs, and the size of one.
const STUB_SECTIONS: [(&str, usize); 3] = [(".plt", 16), (".plt.sec", 16), (".plt.got", 8)];
const STUBS_BYTES_MAX: u64 = 4 << 20;
const STUB_NAME_BYTES_MAX: usize = 4096;

/// Returns the stubs of a module, by section. Malformed tables have none.
pub(crate) fn stubs(image: &Image, elf: &Elf) -> Vec<Stub> {
    let Ok(relocations) = Relocations::read(image, elf) else { return Vec::new() };
    let Ok(named) = relocations.named() else { return Vec::new() };
    let names: FxHashMap<u64, &[u8]> = named.map(|(entry, tail)| (entry.r_offset.get(LE), tail)).collect();
    let mut stubs = Vec::new();
    for (name, size_bytes) in STUB_SECTIONS {
        let Some(section) = elf.section(name) else { continue };
        let Ok(code) = image.read(section.offset, section.size_bytes, STUBS_BYTES_MAX) else { continue };
        for (code, start) in code.chunks_exact(size_bytes).zip((section.address.0..).step_by(size_bytes)) {
            let tail = jump_slot(code, start).and_then(|slot| names.get(&slot));
            let function = tail.and_then(|tail| tail[..tail.len().min(STUB_NAME_BYTES_MAX)].split(|&b| b == 0).next());
            stubs.extend(function.map(|function| Stub {
                start: LinkAddr(start),
                size_bytes: size_bytes as u64,
                function: String::from_utf8_lossy(function).into(),
            }));
        }
    }
    stubs
}

/// The slot of `jmp *slot(%rip)`, the first such instruction of a stub.
fn jump_slot(code: &[u8], start: u64) -> Option<u64> {
    const JUMP: [u8; 2] = [0xff, 0x25];
    let at = code.windows(JUMP.len()).position(|bytes| bytes == JUMP)? + JUMP.len();
    let distance = i32::from_le_bytes(*code.get(at..)?.first_chunk()?);
    Some(start.wrapping_add(at as u64 + 4).wrapping_add_signed(distance.into()))
}

fn malformed() -> ObjectError {
    ObjectError::Malformed("a dynamic table has incomplete entries")
}
