//! Reads the code of a function from its module's file. Bounded, whatever the file contains.

use heapbpf_base::address::{FileOffset, LinkAddr};
use thiserror::Error;

use super::arch::{Instruction, InstructionSet, Native};
use crate::object::ObjectError;
use crate::object::module::Module;
use crate::object::symbols::DefinedFunction;

/// Maximum distance of a probe from the entry. The instructions before it run unprobed anyway: this bounds the search.
pub(crate) const DISTANCE_BYTES_MAX: usize = 128;
/// Maximum length of a function whose jumps are inspected, in bytes. The longest of the allocators' functions have 8 KiB.
const FUNCTION_BYTES_MAX: u64 = 1 << 16;
/// Prefix of the names of sections, and the name of a section, whose code only jumps to other modules.
const LINKAGE_SECTIONS: &str = ".plt";
const INDIRECT_LINKAGE_SECTION: &str = ".iplt";

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// The symbol is `STT_GNU_IFUNC`: only the dynamic linker calls the symbol's code, once.
    #[error("`{0}` is an indirect function: its code only selects the real function; probe that one instead")]
    Indirect(String),
    #[error("the code at {0:#x} only jumps to another module (it is in `{1}`); probe that module's function instead")]
    Linkage(u64, String),
    #[error(
        "the function does not begin with a valid instruction but with the bytes `{0}`; inspect its module with `objdump -d`"
    )]
    Undecodable(String),
    #[error(
        "the kernel refuses probes on its first instruction, `{0}`, and no other is executed by every call with all arguments in registers"
    )]
    Refused(String),
    /// The calling conventions pass at least six integer arguments in registers.
    #[error("argument {0} is not passed in a register: only the first six are")]
    Argument(usize),
    #[error("cannot read its code: {0}")]
    Unreadable(#[from] ObjectError),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    pub(super) bytes: Vec<u8>,
    pub(super) whole: bool,
    pub(super) address: LinkAddr,
}

impl Code {
    pub fn of(module: &Module, function: &DefinedFunction) -> Result<Self, PlaceError> {
        if function.indirect {
            return Err(PlaceError::Indirect(function.name.clone()));
        }
        Self::read(module, function.offset, function.size_bytes)
    }

    /// Reads code at a file offset: only its beginning if the function is too long, of unknown size (0), or ends behind
    /// its segment. Fails if the code is not executable, cannot be read, or belongs to a procedure linkage table.
    pub fn read(module: &Module, offset: FileOffset, size_bytes: u64) -> Result<Self, PlaceError> {
        let elf = module.elf().map_err(Clone::clone)?;
        let address = elf.link_addr(offset).ok_or(ObjectError::Malformed("the function is not in executable code"))?;
        let linkage = elf.sections.iter().find(|section| {
            let name = &*section.name;
            (name == INDIRECT_LINKAGE_SECTION || name.starts_with(LINKAGE_SECTIONS)) && section.contains(address)
        });
        if let Some(section) = linkage {
            return Err(PlaceError::Linkage(address.0, section.name.to_string()));
        }
        // Size of the segment behind the offset, in the segment that determines the offset's link address.
        let left = elf.segments.iter().filter(|segment| segment.executable).find_map(|segment| {
            let inside = offset.0.checked_sub(segment.offset.0)?;
            segment.size_bytes.checked_sub(inside).filter(|&left| left > 0)
        });
        let left = left.unwrap_or(0);
        let whole = (1..=left.min(FUNCTION_BYTES_MAX)).contains(&size_bytes);
        let length = if whole { size_bytes } else { left.min(DISTANCE_BYTES_MAX as u64) };
        let bytes = module.image().map_err(Clone::clone)?.read(offset, length, FUNCTION_BYTES_MAX)?;
        Ok(Self { bytes, whole, address })
    }

    /// Code from the entry to the end of the instruction at this offset.
    pub(crate) fn up_to(&self, offset_in_function: u64) -> Option<&[u8]> {
        let mut decoded = Native::decode(&self.bytes, self.address.0);
        let end = decoded.find(|instruction| instruction.offset() == offset_in_function)?.end();
        self.bytes.get(..usize::try_from(end).ok()?)
    }

    pub fn jumps_to(&self) -> Option<LinkAddr> {
        Native::initial_jump(&self.bytes, self.address.0).map(LinkAddr)
    }
}

#[cfg(test)]
mod tests;
