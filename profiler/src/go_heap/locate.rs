//! Where the runtime keeps its heap profile: by symbols, or by the code of two functions, which stripped programs have names for, too.

use std::ops::Range;

use heapbpf_base::address::{FileOffset, LinkAddr};
use iced_x86::{Decoder, DecoderOptions};
use object::elf as abi;

use super::calls::{Functions, ends_with_call_aarch64, ends_with_call_x86_64};
use super::error::GoHeapError;
use crate::object::elf::{Elf, Segment};
use crate::object::golang::GoFunctions;
use crate::object::image::Image;
use crate::object::symbols::local_definitions;

const BUCKETS: &str = "runtime.mbuckets";
const RATE: &str = "runtime.MemProfileRate";
/// Adds a finished cycle to each bucket: the first variable that it refers to is the list.
const FLUSH: &str = "runtime.mProf_FlushLocked";
/// Samples an allocation: behind the cache of a thread without a processor, it refers to the rate.
const SAMPLE: &str = "runtime.profilealloc";
const FUNCTION_BYTES_MAX: u64 = 4096;
/// Bytes before a return address in which a call ends.
const CALL_BYTES: u64 = 7;
/// Offsets in the build information (`debug/buildinfo`): the flags, of which one says that the version follows, and the version.
const FLAGS: usize = 15;
const IS_INLINE: u8 = 2;
const VERSION: usize = 32;
const INFORMATION: &[u8] = b"\xff Go buildinf:";
const INFORMATION_BYTES_MAX: u64 = 1 << 16;
const VERSION_BYTES_MAX: usize = 127;

/// Addresses are those in the file.
pub(super) struct Located {
    pub(super) version: String,
    pub(super) buckets: u64,
    pub(super) rate: u64,
    pub(super) code: Code,
}

pub(super) fn locate(image: &Image, elf: &Elf) -> Result<Located, GoHeapError> {
    let version = version(image, elf).ok_or(GoHeapError::NoVersion)?;
    let functions =
        GoFunctions::read(image, elf).ok_or(GoHeapError::NotFound("the table of functions has an unknown form"))?;
    let symbols = local_definitions(image, elf, &[BUCKETS, RATE]);
    let symbol = |name: &str| symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address.0);
    let code = Code::of(image, elf, &functions)?;
    let buckets = symbol(BUCKETS).or_else(|| code.referred(elf, FLUSH, 0)).ok_or(GoHeapError::NotFound(BUCKETS))?;
    let rate = symbol(RATE).or_else(|| code.referred(elf, SAMPLE, 1)).ok_or(GoHeapError::NotFound(RATE))?;
    Ok(Located { version, buckets, rate, code })
}

/// The version of Go that built a program, such as `go1.22.3`.
fn version(image: &Image, elf: &Elf) -> Option<String> {
    let section = elf.section(".go.buildinfo")?;
    let bytes =
        image.read(section.offset, section.size_bytes.min(INFORMATION_BYTES_MAX), INFORMATION_BYTES_MAX).ok()?;
    if !bytes.starts_with(INFORMATION) || bytes.get(FLAGS)? & IS_INLINE == 0 {
        return None;
    }
    let length = usize::from(*bytes.get(VERSION)?);
    let version = bytes.get(VERSION + 1..)?.get(..length).filter(|_| length <= VERSION_BYTES_MAX)?;
    // It is shown in messages: a program must not control a terminal by it.
    let version =
        str::from_utf8(version).ok().filter(|version| version.chars().all(|it| it.is_ascii_graphic() || it == ' '));
    version.map(str::to_owned)
}

/// Functions of a program, and which of its addresses follow calls.
#[derive(Debug)]
pub(super) struct Code {
    image: Image,
    machine: u16,
    segments: Vec<Segment>,
    /// By address, without gaps.
    functions: Vec<(Range<u64>, Box<str>)>,
}

impl Code {
    fn of(image: &Image, elf: &Elf, functions: &GoFunctions) -> Result<Self, GoHeapError> {
        let functions = functions.iter().map(|function| (function.range.clone(), function.name.clone())).collect();
        let image = image.try_clone()?;
        Ok(Self { image, machine: elf.machine, segments: elf.code().copied().collect(), functions })
    }

    fn read(&self, address: u64, bytes: u64) -> Option<Vec<u8>> {
        let segment = self.segments.iter().find(|segment| segment.contains(LinkAddr(address)))?;
        let offset = FileOffset(segment.offset.0.checked_add(address - segment.address.0)?);
        self.image.read(offset, bytes, FUNCTION_BYTES_MAX).ok()
    }

    /// Address of a variable that a function refers to: the first one is 0.
    fn referred(&self, elf: &Elf, function: &str, number: usize) -> Option<u64> {
        if self.machine != abi::EM_X86_64 {
            return None;
        }
        let (range, _) = self.functions.iter().find(|(_, name)| &**name == function)?;
        let code = self.read(range.start, (range.end - range.start).min(FUNCTION_BYTES_MAX))?;
        let address = addresses_in(&code, range.start).nth(number)?;
        let is_data = elf.sections.iter().filter(|section| section.contains(LinkAddr(address)));
        let is_writable = is_data.into_iter().any(|section| section.flags & u64::from(abi::SHF_WRITE) != 0);
        (address.is_multiple_of(8) && is_writable).then_some(address)
    }
}

/// Addresses that x86-64 code refers to relative to itself, in the order of its instructions.
fn addresses_in(code: &[u8], start: u64) -> impl Iterator<Item = u64> {
    let instructions = Decoder::with_ip(64, code, start, DecoderOptions::NONE).into_iter();
    instructions.filter(|it| it.is_ip_rel_memory_operand()).map(|it| it.ip_rel_memory_address())
}

impl Functions for Code {
    fn function(&self, address: u64) -> Option<(u64, &str)> {
        let behind = self.functions.partition_point(|(range, _)| range.end <= address);
        let (range, name) = self.functions.get(behind).filter(|(range, _)| range.start <= address)?;
        Some((range.start, name))
    }

    fn follows_call(&self, address: u64) -> bool {
        let code = address.checked_sub(CALL_BYTES).and_then(|start| self.read(start, CALL_BYTES)).unwrap_or_default();
        match self.machine {
            abi::EM_X86_64 => ends_with_call_x86_64(&code),
            abi::EM_AARCH64 => ends_with_call_aarch64(&code),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_those_relative_to_the_instruction() {
        // mov rax, [rip + 16]; mov rax, [rax + 16]; lea rcx, [rip - 1]; ret
        let code =
            [0x48, 0x8b, 0x05, 16, 0, 0, 0, 0x48, 0x8b, 0x40, 16, 0x48, 0x8d, 0x0d, 0xff, 0xff, 0xff, 0xff, 0xc3];
        assert_eq!(addresses_in(&code, 0x1000).collect::<Vec<_>>(), [0x1017, 0x1011]);
    }
}
