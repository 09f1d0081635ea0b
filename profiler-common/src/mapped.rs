//! What a process maps where it has had code: an address means other code from then on.
//!
//! The agent registers the mappings of a process as rows ([`ProcessMapping`]). The kernel side sees what is mapped over them before
//! its code can run, and either corrects the rows, or has stacks end there until the agent has read the mappings again.

use crate::unwind::{ProcessMapping, TableRef};

/// A file, by what `/proc/PID/maps` shows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FileKey {
    pub inode: u64,
    /// As the kernel has it: 20 bits for the minor number, and the major number above.
    pub device: u32,
    /// Always 0.
    pub reserved: u32,
}

impl FileKey {
    #[inline(always)]
    pub const fn new(major: u32, minor: u32, inode: u64) -> Self {
        Self { inode, device: major << 20 | minor & 0xf_ffff, reserved: 0 }
    }

    /// Identity of the file's code where the file's first byte has this address, or would have it. Never [`GENERATED`]. A hash:
    /// mappings of one process have equal identities by chance with a probability of 2^-64.
    #[inline(always)]
    pub const fn identity(&self, base: u64) -> u64 {
        // As `StackHasher` mixes.
        const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut mixed = (self.inode ^ (self.device as u64) << 40).wrapping_mul(RATIO);
        mixed ^= mixed >> 32;
        mixed = (mixed ^ base).wrapping_mul(RATIO);
        mixed ^= mixed >> 32;
        if mixed == GENERATED { 1 } else { mixed }
    }
}

/// Identity of code that is in no file.
pub const GENERATED: u64 = 0;

/// The unwind table of a file, wherever that is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CodeFile {
    /// Target address of the table's first page if the file's first byte had address 0, wrapping.
    pub start: u64,
    pub page_first: u32,
    pub page_count: u32,
    /// Range of the code's mapping, relative to the address of the file's first byte.
    pub code_start: u64,
    pub code_end: u64,
}

impl CodeFile {
    /// The table of a mapping in which the file's first byte has this address, or would have it.
    #[inline(always)]
    pub const fn table(&self, base: u64) -> TableRef {
        TableRef { start: self.start.wrapping_add(base), page_first: self.page_first, page_count: self.page_count }
    }

    /// This one and another mapping of the same file; `None` if their tables differ.
    pub fn with(&self, other: &Self) -> Option<Self> {
        let whole = Self {
            code_start: self.code_start.min(other.code_start),
            code_end: self.code_end.max(other.code_end),
            ..*self
        };
        (Self { code_start: other.code_start, code_end: other.code_end, ..*self } == *other).then_some(whole)
    }

    /// Of a mapping in which the file's first byte has this address, or would have it.
    pub const fn of(mapping: &ProcessMapping, base: u64) -> Self {
        let table = &mapping.table;
        Self {
            start: table.start.wrapping_sub(base),
            page_first: table.page_first,
            page_count: table.page_count,
            code_start: mapping.start.wrapping_sub(base),
            code_end: mapping.end.wrapping_sub(base),
        }
    }
}

/// A range of addresses; empty if `end` is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CodeRange {
    pub start: u64,
    /// Exclusive.
    pub end: u64,
}

impl CodeRange {
    #[inline(always)]
    pub const fn contains(&self, address: u64) -> bool {
        address >= self.start && address < self.end
    }
}

/// Numbers of changes of a process's mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub seen: u32,
    pub reported: u32,
}

/// What has happened to the registered mappings of a process. The kernel side alone changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct MappingState {
    /// Number of changes since the process's exec. Counted before the kernel has changed the mappings, with the lock for that held.
    pub changes: u32,
    /// Number of changes since the process was first registered, which were sent to the agent, or dropped.
    pub reported: u32,
    /// Serial of the rows since they were corrected.
    pub serial: u32,
    /// Serial of the registration whose rows have all changes; 0 if none has.
    pub corrected: u32,
    /// Serial of the registration that a forked process has, too: its rows must not be corrected. 0 if there is none.
    pub shared: u32,
    /// Period, of [`MAPPED_PERIOD_SHIFT`](crate::limits::MAPPED_PERIOD_SHIFT), in which the last change was sent, and how many were in it.
    pub period: u32,
    pub sent: u32,
    /// Always 0.
    pub reserved: u32,
    /// The last change: its address and [`FileKey::identity`].
    pub last_start: u64,
    pub last_identity: u64,
    /// Contains all ranges where code has replaced other code. Ids of stacks that pass through it depend on the code there.
    pub reused: CodeRange,
    /// Contains the ranges of all changes since the last registration that had all of them, and so all that the rows may lack.
    pub recent: CodeRange,
}

impl MappingState {
    pub const fn counts(&self) -> Changes {
        Changes { seen: self.changes, reported: self.reported }
    }
}

const _: () = assert!(size_of::<FileKey>() == 16 && align_of::<FileKey>() == 8);
const _: () = assert!(size_of::<CodeFile>() == 32);
const _: () = assert!(size_of::<MappingState>() == 80);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn identities_depend_on_file_and_place(one: (u32, u32, u64, u64), other: (u32, u32, u64, u64)) {
            let identity = |(major, minor, inode, base): (u32, u32, u64, u64)| {
                FileKey::new(major & 0xfff, minor & 0xf_ffff, inode).identity(base)
            };
            let masked = |(major, minor, inode, base): (u32, u32, u64, u64)| (major & 0xfff, minor & 0xf_ffff, inode, base);
            prop_assert_eq!(identity(one) == identity(other), masked(one) == masked(other));
            prop_assert_ne!(identity(one), GENERATED);
        }

        #[test]
        fn a_table_moves_with_its_file(start: u64, base: u64, other: u64) {
            let table = TableRef { start, page_first: 3, page_count: 4 };
            let mapping = ProcessMapping { start: base, end: base, table, identity: GENERATED };
            let file = CodeFile::of(&mapping, base);
            prop_assert_eq!(file.table(base), table);
            prop_assert_eq!(file.table(base.wrapping_add(other)).start, start.wrapping_add(other));
        }
    }
}
