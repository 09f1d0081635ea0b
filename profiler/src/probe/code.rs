//! Reads the code of a function out of its module's file, for [`place`](super::place). Bounded, whatever the file says.

use super::place::{DISTANCE_BYTES_MAX, Function, PlaceError, decode};
use crate::address::{FileOffset, LinkAddr};
use crate::object::ObjectError;
use crate::object::module::Module;
use crate::object::symbols::DefinedFunction;

/// Longest function whose jumps are looked at, in bytes. The longest of the allocators' functions have 8 KiB.
const FUNCTION_BYTES_MAX: u64 = 1 << 16;

/// Sections whose code only leads to other modules.
const LINKAGE_SECTIONS: &str = ".plt";
const INDIRECT_LINKAGE_SECTION: &str = ".iplt";

/// A function's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    bytes: Vec<u8>,
    whole: bool,
    address: LinkAddr,
}

impl Code {
    /// Reads a defined function's code.
    ///
    /// # Errors
    ///
    /// If it is an indirect function; else as [`read`](Self::read).
    pub fn of(module: &Module, function: &DefinedFunction) -> Result<Self, PlaceError> {
        if function.indirect {
            return Err(PlaceError::Indirect(function.name.clone()));
        }
        Self::read(module, function.offset, function.size_bytes)
    }

    /// Reads code from an offset in the module's file. Of a function that is too long, of one whose size is not known
    /// (0) and of one that ends behind its segment, only the beginning is read.
    ///
    /// # Errors
    ///
    /// If the code is not in an executable segment or cannot be read, or belongs to a procedure linkage table.
    pub fn read(module: &Module, offset: FileOffset, size_bytes: u64) -> Result<Self, PlaceError> {
        let elf = module.elf().map_err(Clone::clone)?;
        let address = elf.link_addr(offset).ok_or(ObjectError::Malformed("the function is not in executable code"))?;
        let linkage = elf.sections.iter().find(|section| {
            let name = &*section.name;
            (name == INDIRECT_LINKAGE_SECTION || name.starts_with(LINKAGE_SECTIONS))
                && address.0.checked_sub(section.address.0).is_some_and(|inside| inside < section.size_bytes)
        });
        if let Some(section) = linkage {
            return Err(PlaceError::Linkage(address.0, section.name.to_string()));
        }
        // Of the segments that hold the offset, the one that gave it its address.
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

    /// Where the function jumps to with its first instruction, if it does.
    pub fn jumps_to(&self) -> Option<LinkAddr> {
        let first = decode(&self.function()).find(|instruction| instruction.code() != iced_x86::Code::Endbr64)?;
        first.is_jmp_short_or_near().then(|| LinkAddr(first.near_branch_target()))
    }

    /// The code, to be looked at.
    pub fn function(&self) -> Function<'_> {
        Function { bytes: &self.bytes, whole: self.whole, address: self.address }
    }
}

#[cfg(test)]
mod tests;
