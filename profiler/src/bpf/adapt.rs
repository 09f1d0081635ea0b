//! Adapts the object to kernels that refuse parts of it, whether these parts are ever executed or not: before Linux 5.12 atomic
//! instructions with a result, before 6.1 hash maps without preallocation.

use std::borrow::Cow;

use aya_obj::generated::BPF_F_NO_PREALLOC;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, elf};

use super::features::Features;

/// Size of an instruction.
const INSTRUCTION_BYTES: usize = 8;
/// Atomic instruction on a word of 8 bytes.
const ATOMIC: u8 = 0xdb;
/// `BPF_FETCH`: the instruction returns the previous value.
const FETCH: u32 = 1;
/// Size of a map's definition (`struct bpf_map_def`: type, sizes of key and value, capacity, flags, id, pinning), and offset of
/// the flags.
const MAP_BYTES: usize = 28;
const MAP_FLAGS: usize = 16;

/// Returns the object for a kernel with these features; `None` if the object is malformed.
pub(super) fn adapt(object: Cow<'static, [u8]>, features: Features) -> Option<Cow<'static, [u8]>> {
    if features.atomics && features.allocation {
        return Some(object);
    }
    let mut bytes = object.into_owned();
    let sections = sections(&bytes)?;
    for (is_code, range) in sections {
        let section = bytes.get_mut(range)?;
        if is_code && !features.atomics {
            // The programs do not execute these instructions: see `asm.rs` and its users in profiler-ebpf.
            section.as_chunks_mut::<INSTRUCTION_BYTES>().0.iter_mut().for_each(remove_result);
        }
        if !is_code && !features.allocation {
            section.as_chunks_mut::<MAP_BYTES>().0.iter_mut().for_each(preallocate);
        }
    }
    Some(Cow::Owned(bytes))
}

/// Ranges of the code (true), and of the definitions of maps (false).
fn sections(bytes: &[u8]) -> Option<Vec<(bool, std::ops::Range<usize>)>> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let table = header.sections(endian, bytes).ok()?;
    let mut found = Vec::new();
    for section in table.iter() {
        let is_code = section.sh_flags(endian) & u64::from(elf::SHF_EXECINSTR) != 0;
        if is_code || table.section_name(endian, section).ok()? == b"maps" {
            let start = usize::try_from(section.sh_offset(endian)).ok()?;
            let length = usize::try_from(section.sh_size(endian)).ok()?;
            found.push((is_code, start..start.checked_add(length)?));
        }
    }
    Some(found)
}

/// Turns an atomic instruction with a result into an atomic addition without.
fn remove_result(instruction: &mut [u8; INSTRUCTION_BYTES]) {
    let [code, _, _, _, operation @ ..] = instruction;
    if *code == ATOMIC && u32::from_le_bytes(*operation) & FETCH != 0 {
        *operation = [0; 4];
    }
}

fn preallocate(map: &mut [u8; MAP_BYTES]) {
    if let Some(flags) = map[MAP_FLAGS..].first_chunk_mut::<4>() {
        *flags = (u32::from_le_bytes(*flags) & !BPF_F_NO_PREALLOC).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::load::OBJECT;

    /// Atomic instructions with a result, and maps without preallocation.
    fn counts(object: &[u8]) -> (usize, usize) {
        let (mut atomics, mut maps) = (0, 0);
        for (is_code, range) in sections(object).expect("it is an object") {
            if is_code {
                let instructions = object[range].as_chunks::<INSTRUCTION_BYTES>().0;
                atomics += instructions.iter().filter(|bytes| bytes[0] == ATOMIC && bytes[4] & 1 != 0).count();
            } else {
                let flags = object[range].as_chunks::<MAP_BYTES>().0.iter().map(|map| map[MAP_FLAGS]);
                maps += flags.filter(|flags| u32::from(*flags) & BPF_F_NO_PREALLOC != 0).count();
            }
        }
        (atomics, maps)
    }

    #[test]
    fn only_what_is_missing_is_replaced() {
        let adapted = |features| counts(&adapt(OBJECT.into(), features).expect("the object is valid"));
        let (atomics, maps) = adapted(Features::ALL);
        assert!(atomics > 0 && maps == 3, "{atomics} {maps}");
        assert_eq!(adapted(Features { cookies: false, ..Features::ALL }), (atomics, maps));
        assert_eq!(adapted(Features { atomics: false, ..Features::ALL }), (0, maps));
        assert_eq!(adapted(Features { allocation: false, ..Features::ALL }), (atomics, 0));
    }

    #[test]
    fn other_bytes_stay() {
        let adapted =
            adapt(OBJECT.into(), Features { atomics: false, allocation: false, ..Features::ALL }).expect("valid");
        assert_eq!(adapted.len(), OBJECT.len());
        let (atomics, maps) = counts(OBJECT);
        let changed = OBJECT.iter().zip(&*adapted).filter(|(before, after)| before != after).count();
        assert_eq!(changed, atomics + maps, "a byte of each");
        assert!(adapt(b"no object"[..].into(), Features { atomics: false, ..Features::ALL }).is_none());
    }
}
