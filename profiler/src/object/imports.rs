//! Slots that the dynamic linker fills with addresses of other modules' functions: those of the global offset table, and
//! pointers in data. Reads the dynamic section; section headers may be stripped.

use std::ops::Range;

use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::shown;
use object::LittleEndian as LE;
use object::elf::{
    self, DT_JMPREL, DT_NEEDED, DT_PLTRELSZ, DT_RELA, DT_RELASZ, DT_SONAME, DT_STRSZ, DT_STRTAB, DT_SYMTAB, Rela64,
    Sym64,
};
use object::pod::slice_from_all_bytes;
use rustc_hash::FxHashMap;

use super::ObjectError;
use super::elf::{Dynamic, Elf};
use super::image::Image;
use crate::arch::aarch64::Word;

/// Of relocations, symbols or names. Chromium's are 40 MiB.
const TABLE_BYTES_MAX: u64 = 256 << 20;
const SLOT_BYTES: u64 = 8;

/// Kinds of relocations of slots.
struct Kinds {
    /// Of the procedure linkage table.
    lazy: u32,
    /// Of the global offset table.
    word: u32,
    /// Of data.
    pointer: u32,
}

impl Kinds {
    fn of(machine: u16) -> Self {
        match machine {
            elf::EM_AARCH64 => {
                Self { lazy: elf::R_AARCH64_JUMP_SLOT, word: elf::R_AARCH64_GLOB_DAT, pointer: elf::R_AARCH64_ABS64 }
            }
            _ => Self { lazy: elf::R_X86_64_JUMP_SLOT, word: elf::R_X86_64_GLOB_DAT, pointer: elf::R_X86_64_64 },
        }
    }
}

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
        let kinds = Kinds::of(elf.machine);
        let table = |address: u64, size_bytes: u64| table(image, elf, address, size_bytes);
        for (address, size_bytes) in [(DT_JMPREL, DT_PLTRELSZ), (DT_RELA, DT_RELASZ)] {
            let bytes = table(dynamic.get(address), dynamic.get(size_bytes))?;
            let entries = slice_from_all_bytes::<Rela64<LE>>(&bytes).map_err(|()| malformed())?;
            let wanted = |entry: &&Rela64<LE>| {
                let kinds = [kinds.lazy, kinds.word, kinds.pointer];
                kinds.contains(&entry.r_type(LE, false))
                    && entry.r_sym(LE, false) != 0
                    && entry.r_offset.get(LE).is_multiple_of(SLOT_BYTES)
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

fn table(image: &Image, elf: &Elf, address: u64, size_bytes: u64) -> Result<Vec<u8>, ObjectError> {
    if size_bytes == 0 {
        return Ok(Vec::new());
    }
    let segment = elf.segments.iter().find_map(|segment| {
        let inside = address.checked_sub(segment.address.0).filter(|&inside| inside < segment.size_bytes)?;
        segment.offset.0.checked_add(inside)
    });
    let offset = segment.ok_or(ObjectError::Malformed("a dynamic table is not in the file"))?;
    image.read(FileOffset(offset), size_bytes, TABLE_BYTES_MAX)
}

/// Names of libraries: that of the module itself, and those that it needs, which stay loaded as long as it does.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LibraryNames {
    pub(crate) own: Option<Vec<u8>>,
    pub(crate) needed: Vec<Vec<u8>>,
}

/// Malformed tables have no names.
pub(crate) fn library_names(image: &Image, elf: &Elf) -> LibraryNames {
    let Some(section) = &elf.dynamic else { return LibraryNames::default() };
    let dynamic = Dynamic::read(image, section);
    let strings = table(image, elf, dynamic.get(DT_STRTAB), dynamic.get(DT_STRSZ)).unwrap_or_default();
    let name = |at: u64| {
        let tail = strings.get(usize::try_from(at).ok()?..)?;
        Some(tail.split(|&byte| byte == 0).next()?.to_vec())
    };
    LibraryNames {
        own: dynamic.all(DT_SONAME).find_map(name),
        needed: dynamic.all(DT_NEEDED).filter_map(name).collect(),
    }
}

/// Returns the slots that refer to functions with these names: words of eight bytes, aligned. A module without a dynamic section has
/// none.
pub(crate) fn slots(image: &Image, elf: &Elf, names: &[&str]) -> Result<Vec<LinkAddr>, ObjectError> {
    let relocations = Relocations::read(image, elf)?;
    let is_wanted =
        |tail: &[u8]| names.iter().any(|name| tail.strip_prefix(name.as_bytes()).and_then(<[u8]>::first) == Some(&0));
    let named = relocations.named()?.filter(|(_, tail)| is_wanted(tail));
    Ok(named.map(|(entry, _)| LinkAddr(entry.r_offset.get(LE))).collect())
}

/// A stub of the procedure linkage table (PLT): code that jumps to a function of another module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stub {
    pub start: LinkAddr,
    pub size_bytes: u64,
    pub function: Box<str>,
}

/// Sections of stubs, and the size of one on x86-64.
const STUB_SECTIONS: [(&str, u64); 3] = [(".plt", 16), (".plt.sec", 16), (".plt.got", 8)];
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
        let found = match elf.machine {
            elf::EM_AARCH64 => aarch64_stubs(&code, section.address.0),
            _ => x86_64_stubs(&code, section.address.0, size_bytes),
        };
        for (code, slot) in found {
            let tail = names.get(&slot).map(|tail| &tail[..tail.len().min(STUB_NAME_BYTES_MAX)]);
            let function = tail.and_then(|tail| tail.split(|&byte| byte == 0).next());
            stubs.extend(function.map(|function| Stub {
                start: LinkAddr(code.start),
                size_bytes: code.end - code.start,
                function: shown::text(function).into(),
            }));
        }
    }
    stubs
}

/// Addresses of stubs, and of their slots: that of `jmp *slot(%rip)`, the first such instruction of a stub.
fn x86_64_stubs(code: &[u8], start: u64, size_bytes: u64) -> Vec<(Range<u64>, u64)> {
    const JUMP: [u8; 2] = [0xff, 0x25];
    let slot = |(code, start): (&[u8], u64)| {
        let at = code.windows(JUMP.len()).position(|bytes| bytes == JUMP)? + JUMP.len();
        let distance = i32::from_le_bytes(*code.get(at..)?.first_chunk()?);
        let slot = start.wrapping_add(at as u64 + 4).wrapping_add_signed(distance.into());
        Some((start..start.saturating_add(size_bytes), slot))
    };
    let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
    code.chunks_exact(size)
        .zip((0..).map(|number: u64| start.wrapping_add(number * size_bytes)))
        .filter_map(slot)
        .collect()
}

/// The same, from `adrp x16, slot; ldr x17, [x16, slot]; add x16, x16, slot; br x17`, which `bti c` may precede.
fn aarch64_stubs(code: &[u8], start: u64) -> Vec<(Range<u64>, u64)> {
    const LANDING_PAD: Word = Word(0xd503_245f);
    let words: Vec<(u64, Word)> = Word::all(code, start).collect();
    let stub = |(number, &[(at, page), (_, load)]): (usize, &[(u64, Word); 2])| {
        if !page.is(0x9f00_001f, 0x9000_0010) || !load.is(0xffc0_03ff, 0xf940_0211) {
            return None;
        }
        let slot = page.address(at)?.wrapping_add_signed(load.as_load()?.distance);
        let has_pad = number > 0 && words[number - 1].1 == LANDING_PAD;
        Some((at - if has_pad { 4 } else { 0 }..at.saturating_add(16), slot))
    };
    words.array_windows().enumerate().filter_map(stub).collect()
}

fn malformed() -> ObjectError {
    ObjectError::Malformed("a dynamic table has incomplete entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_named_by_the_modules_that_need_them() {
        let image = Image::new(std::fs::File::open("/proc/self/exe").expect("it runs")).expect("it is a file");
        let elf = Elf::read(&image).expect("it is executable");
        let names = library_names(&image, &elf);
        assert_eq!(names.own, None);
        assert!(names.needed.contains(&b"libc.so.6".to_vec()), "{names:?}");
    }

    #[test]
    fn stubs_of_aarch64_are_found_with_and_without_landing_pads() {
        let words: [u32; 14] = [
            // First of all, resolves: bti c; stp x16, x30, [sp, #-16]!; adrp; ldr; add; br x17
            0xd503_245f,
            0xa9bf_7bf0,
            0xd000_0490,
            0xf947_a211,
            0x913d_0210,
            0xd61f_0220,
            // adrp x16, 0x9f000; ldr x17, [x16, #3912]; add x16, x16, #0xf48; br x17
            0xd000_0490,
            0xf947_a611,
            0x913d_2210,
            0xd61f_0220,
            // The same behind bti c, from a page below.
            0xd503_245f,
            0xf0ff_fff0,
            0xf947_aa11,
            0x913d_4210,
        ];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let expected = [(0xd978..0xd988, 0x9ff40), (0xd988..0xd998, 0x9ff48), (0xd998..0xd9ac, 0xcf50)];
        assert_eq!(aarch64_stubs(&code, 0xd970), expected);
    }

    #[test]
    fn stubs_of_x86_64_jump_through_slots() {
        // endbr64; bnd jmp *0x2fbd(%rip); nopl
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xbd, 0x2f, 0, 0, 0x0f, 0x1f, 0x44, 0, 0];
        assert_eq!(x86_64_stubs(&code, 0x1000, 16), [(0x1000..0x1010, 0x3fc8)]);
    }
}
