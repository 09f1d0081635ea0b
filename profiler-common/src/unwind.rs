//! The unwind tables, as the agent writes them and the kernel side searches them. Nothing here parses DWARF.
//!
//! ```text
//! address in a module ─▶ page (64 KiB) ─▶ its rows, sorted ─▶ rule ─▶ step
//!                        PageRows 8 B     UnwindRow 4 B       Rule 8 B
//! ```
//!
//! All modules share one flat array each of rows, pages and rules. A row is 4 bytes, because few distinct rules occur (hundreds
//! in a large library) and a page needs 16 bits of address. The kernel rounds a map's values up to 8 bytes
//! (`kernel/bpf/arraymap.c`: `array_map_alloc`), so a value holds two rows: [`RowCell`].
//!
//! Every page with code begins with a row at its first byte, so that a search never leaves the page, and every gap between
//! functions has its own row ([`Rule::GAP`]), so that a rule never extends beyond its function.

use crate::mapped::GENERATED;

/// Bits of an address that are its offset in a page.
pub const PAGE_BITS: u32 = 16;

/// Maximum steps of a search within one page, which has at most 2^16 rows.
pub const SEARCH_STEPS: u32 = PAGE_BITS;

/// Maximum number of rules: a row stores 16-bit rule numbers.
pub const RULES_MAX: usize = 1 << 16;

/// Applies a rule from this address within its page up to the next row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct UnwindRow {
    /// The low 16 bits of the first address.
    pub pc_low: u16,
    /// Index into the rule table.
    pub rule: u16,
}

/// Two rows: the value of the row map. Row `i` is in cell `i / 2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RowCell {
    pub even: UnwindRow,
    pub odd: UnwindRow,
}

impl RowCell {
    /// The row with this index, which must be in this cell.
    #[inline(always)]
    pub const fn row(&self, index: u32) -> UnwindRow {
        if index & 1 == 0 { self.even } else { self.odd }
    }
}

/// The rows of one page: `first..end` of the row array. Empty if the page has no code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct PageRows {
    pub first: u32,
    pub end: u32,
}

/// Location of a module's table for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableRef {
    /// Target address of the first page: its link address plus the module's load bias, wrapping.
    pub start: u64,
    pub page_first: u32,
    pub page_count: u32,
}

impl TableRef {
    /// No table: stacks end here.
    pub const NONE: Self = Self { start: 0, page_first: 0, page_count: 0 };
    /// No table, but code with frame pointers, as most code generated at run time.
    pub const FRAME_POINTER: Self = Self { start: 0, page_first: 1, page_count: 0 };
    /// Other code than what was registered has been mapped: what it is, the agent has not read yet.
    pub const CHANGED: Self = Self { start: 0, page_first: 2, page_count: 0 };

    /// Whether there are rows to search.
    pub const fn is_table(&self) -> bool {
        self.page_count != 0
    }

    #[inline(always)]
    pub const fn is_frame_pointer(&self) -> bool {
        self.page_count == 0 && self.page_first == 1
    }

    #[inline(always)]
    pub const fn is_changed(&self) -> bool {
        self.page_count == 0 && self.page_first == 2
    }
}

/// An executable mapping of a process. Those of one process are adjacent, by rising address, without overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessMapping {
    pub start: u64,
    pub end: u64,
    pub table: TableRef,
    /// Of the code: see [`FileKey::identity`](crate::mapped::FileKey::identity).
    pub identity: u64,
}

impl ProcessMapping {
    /// Contains no address.
    pub const NONE: Self = Self { start: 0, end: 0, table: TableRef::NONE, identity: GENERATED };

    #[inline(always)]
    pub const fn contains(&self, address: u64) -> bool {
        address >= self.start && address < self.end
    }
}

/// Copies of stacks that the kernel side may send until a process's mappings are registered again: more than fit into the ring buffer at
/// once.
pub const COPIES_MAX: u32 = 1024;

/// A process's range of the map of mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessMappings {
    pub first: u32,
    pub count: u32,
    /// Number of this registration, from 1 on: distinguishes it from all others, also of the same process.
    pub serial: u32,
    /// Copies of stacks that the kernel side may still send: see [`StackPage`](crate::record::RecordKind::StackPage).
    pub copies: u32,
    /// Number of the process's interpreter, as of [`Runtime::number`](crate::interpreter::Runtime::number); 0 if it has none.
    pub interpreter: u32,
    /// Number of its virtual machine, as above: programs have both.
    pub machine: u32,
    /// Number of the process's changes that the rows have, as of [`MappingState`](crate::mapped::MappingState).
    pub changes: u32,
}

impl ProcessMappings {
    /// Of a process that is not registered.
    pub const NONE: Self = Self { first: 0, count: 0, serial: 0, copies: 0, interpreter: 0, machine: 0, changes: 0 };

    /// Of a program that has just been executed: its stacks are copied until the agent has read its mappings.
    pub const UNREAD: Self = Self { copies: COPIES_MAX, ..Self::NONE };
}

const _: () = assert!(size_of::<ProcessMapping>() == 40 && align_of::<ProcessMapping>() == 8);
const _: () = assert!(size_of::<ProcessMappings>() == 28);
const _: () = assert!(size_of::<UnwindRow>() == 4 && align_of::<UnwindRow>() == 2);
const _: () = assert!(size_of::<RowCell>() == 8);
const _: () = assert!(size_of::<PageRows>() == 8 && align_of::<PageRows>() == 4);
const _: () = assert!(size_of::<TableRef>() == 16 && align_of::<TableRef>() == 8);

/// Access to the three arrays, which are maps in the kernel and vectors in the agent.
pub trait ReadTables {
    fn row(&self, index: u32) -> Option<UnwindRow>;
    fn page(&self, index: u32) -> Option<PageRows>;
    fn rule(&self, index: u16) -> Option<Rule>;
}

/// The rule for `address`, or `None` if the table has no code there. For a return address pass the address before it: see
#[inline(always)]
pub fn find_rule(tables: &impl ReadTables, table: &TableRef, address: u64) -> Option<Rule> {
    let offset = address.wrapping_sub(table.start);
    let page = offset >> PAGE_BITS;
    if page >= table.page_count as u64 {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below page_count, which has 32 bits")]
    let rows = tables.page(table.page_first.wrapping_add(page as u32))?;
    #[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
    let row = find_row(tables, rows, offset as u16)?;
    tables.rule(row.rule)
}

/// The last row of a page that begins at or before `pc_low`.
#[inline(always)]
pub fn find_row(tables: &impl ReadTables, rows: PageRows, pc_low: u16) -> Option<UnwindRow> {
    if rows.first >= rows.end {
        return None;
    }
    let mut low = rows.first;
    let mut high = rows.end;
    // The row at `low` begins at or before the address: a page's first row begins at 0.
    for _ in 0..SEARCH_STEPS {
        let count = high.wrapping_sub(low);
        if count <= 1 {
            break;
        }
        let middle = low.wrapping_add(count >> 1);
        if tables.row(middle)?.pc_low <= pc_low {
            low = middle;
        } else {
            high = middle;
        }
    }
    tables.row(low)
}

/// How to compute a frame's canonical frame address (CFA: the stack pointer before the call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// `stack pointer + offset`. On x86-64 at least 8, or the stack would not shrink.
    Sp { offset: i32 },
    /// `frame pointer + offset`.
    Bp { offset: i32 },
    /// `*(rsp + slot) + add`: assembly that aligns its stack and stores the old pointer on it.
    AtSp { slot: i16, add: i16 },
    /// `*(rbp + slot) + add`: compiled code that aligns its stack.
    AtBp { slot: i16, add: i16 },
    /// `rsp + offset + ((rip & 15) >= threshold ? 8 : 0)`: a procedure linkage table, whose entries are 16 bytes each and push
    /// one word at a fixed offset.
    Plt {
        offset: i16,
        /// First byte of an entry after the push: at most 15.
        threshold: u8,
    },
}

/// Location of the caller's frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerBp {
    /// Still in its register.
    Same,
    /// In memory at `CFA + offset`.
    AtCfa(i16),
    /// In memory at `frame pointer + offset`.
    AtBp(i16),
    /// Unknown. An outer frame that needs it ends the stack as unreadable: it is 0 from here on.
    Lost,
}

/// Location of the return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReturnAddress {
    /// x86-64: in the 8 bytes below the CFA.
    BelowCfa,
    /// aarch64: in the link register.
    Link,
    /// aarch64: in memory at `CFA + offset`. Not 0.
    AtCfa(i16),
}

/// An unwind rule: 8 bytes.
///
/// Not representable, and therefore [`UNSUPPORTED`](Self::UNSUPPORTED): a CFA from any register but stack and frame pointer;
/// words further than 32 KiB from their register; on aarch64 frames above 256 KiB; other DWARF expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Rule {
    /// The CFA's offset, or two 16-bit numbers: slot or offset below, addend or threshold above. With a link register: the
    /// offset in words below, that of the return address above, or 0 if it is in the register.
    pub(crate) cfa_offset: i32,
    /// Offset of the caller's rbp.
    pub(crate) bp_offset: i16,
    /// One of the `KIND_` constants.
    pub(crate) kind: u8,
    /// One of the `BP_` constants.
    pub(crate) bp: u8,
}

const _: () = assert!(size_of::<Rule>() == 8 && align_of::<Rule>() == 4);

pub(crate) const KIND_GAP: u8 = 0;
pub(crate) const KIND_END: u8 = 1;
pub(crate) const KIND_UNSUPPORTED: u8 = 2;
pub(crate) const KIND_SIGNAL: u8 = 3;
pub(crate) const KIND_FRAME_POINTER: u8 = 4;
pub(crate) const KIND_SP: u8 = 5;
pub(crate) const KIND_BP: u8 = 6;
pub(crate) const KIND_AT_SP: u8 = 7;
pub(crate) const KIND_AT_BP: u8 = 8;
pub(crate) const KIND_PLT: u8 = 9;
/// As `KIND_SP` and `KIND_BP`, of a processor with a link register.
pub(crate) const KIND_LINK_SP: u8 = 10;
pub(crate) const KIND_LINK_BP: u8 = 11;

pub(crate) const BP_SAME: u8 = 0;
pub(crate) const BP_AT_CFA: u8 = 1;
pub(crate) const BP_AT_BP: u8 = 2;
pub(crate) const BP_LOST: u8 = 3;

impl Rule {
    /// No function covers the address.
    pub const GAP: Self = Self::special(KIND_GAP);
    /// The thread's first frame: there is no caller.
    pub const END: Self = Self::special(KIND_END);
    /// A function covers the address, but its rule is not representable.
    pub const UNSUPPORTED: Self = Self::special(KIND_UNSUPPORTED);
    /// The kernel's signal frame: the interrupted registers are at fixed offsets from rsp.
    pub const SIGNAL: Self = Self::special(KIND_SIGNAL);
    /// Follow the frame pointer: code with frame pointers instead of unwind information.
    pub const FRAME_POINTER: Self = Self::special(KIND_FRAME_POINTER);

    /// The rules without parameters. They come first in every rule table, in this order.
    pub const RESERVED: [Self; 5] = [Self::GAP, Self::END, Self::UNSUPPORTED, Self::SIGNAL, Self::FRAME_POINTER];

    const fn special(kind: u8) -> Self {
        Self { cfa_offset: 0, bp_offset: 0, kind, bp: BP_SAME }
    }

    /// Returns `None` if the stack would not shrink or a threshold exceeds the entry of 16 bytes.
    pub const fn new(cfa: Cfa, bp: CallerBp) -> Option<Self> {
        let (kind, cfa_offset) = match cfa {
            Cfa::Sp { offset } if offset < 8 => return None,
            Cfa::Sp { offset } => (KIND_SP, offset),
            Cfa::Bp { offset } => (KIND_BP, offset),
            Cfa::AtSp { slot, add } => (KIND_AT_SP, pair(slot, add)),
            Cfa::AtBp { slot, add } => (KIND_AT_BP, pair(slot, add)),
            Cfa::Plt { offset, threshold } if offset < 8 || threshold > 15 => return None,
            Cfa::Plt { offset, threshold } => (KIND_PLT, pair(offset, threshold as i16)),
        };
        let (bp, bp_offset) = packed(bp);
        Some(Self { cfa_offset, bp_offset, kind, bp })
    }

    /// As [`new`](Self::new), of a processor with a link register. Returns `None` if the CFA is not at a multiple of 8 from its
    /// register within 256 KiB, or not relative to one.
    #[expect(clippy::cast_possible_truncation, reason = "checked")]
    pub const fn with_return_address(cfa: Cfa, bp: CallerBp, address: ReturnAddress) -> Option<Self> {
        let (kind, offset) = match cfa {
            Cfa::Sp { offset } if offset >= 0 => (KIND_LINK_SP, offset),
            Cfa::Bp { offset } => (KIND_LINK_BP, offset),
            _ => return None,
        };
        let words = offset / 8;
        if offset % 8 != 0 || words != words as i16 as i32 {
            return None;
        }
        let return_offset = match address {
            ReturnAddress::Link => 0,
            ReturnAddress::AtCfa(offset) if offset != 0 => offset,
            _ => return None,
        };
        let (bp, bp_offset) = packed(bp);
        Some(Self { cfa_offset: pair(words as i16, return_offset), bp_offset, kind, bp })
    }

    pub const fn return_address(&self) -> ReturnAddress {
        match self.kind {
            KIND_LINK_SP | KIND_LINK_BP => match high_half(self.cfa_offset) {
                0 => ReturnAddress::Link,
                offset => ReturnAddress::AtCfa(offset),
            },
            _ => ReturnAddress::BelowCfa,
        }
    }

    /// The CFA, or `None` for a rule without parameters.
    pub const fn cfa(&self) -> Option<Cfa> {
        let (low, high) = (low_half(self.cfa_offset), high_half(self.cfa_offset));
        Some(match self.kind {
            KIND_SP => Cfa::Sp { offset: self.cfa_offset },
            KIND_BP => Cfa::Bp { offset: self.cfa_offset },
            KIND_AT_SP => Cfa::AtSp { slot: low, add: high },
            KIND_AT_BP => Cfa::AtBp { slot: low, add: high },
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "packed from 8 bits")]
            KIND_PLT => Cfa::Plt { offset: low, threshold: high as u8 },
            KIND_LINK_SP => Cfa::Sp { offset: low as i32 * 8 },
            KIND_LINK_BP => Cfa::Bp { offset: low as i32 * 8 },
            _ => return None,
        })
    }

    pub const fn caller_bp(&self) -> CallerBp {
        match self.bp {
            BP_SAME => CallerBp::Same,
            BP_AT_CFA => CallerBp::AtCfa(self.bp_offset),
            BP_AT_BP => CallerBp::AtBp(self.bp_offset),
            _ => CallerBp::Lost,
        }
    }

    pub const fn to_bytes(&self) -> [u8; 8] {
        let (o, b) = (self.cfa_offset.to_le_bytes(), self.bp_offset.to_le_bytes());
        [o[0], o[1], o[2], o[3], b[0], b[1], self.kind, self.bp]
    }

    /// For storing a rule in one access.
    #[inline(always)]
    #[expect(clippy::cast_sign_loss, reason = "bits are packed")]
    pub const fn to_word(self) -> u64 {
        self.cfa_offset as u32 as u64
            | (self.bp_offset as u16 as u64) << 32
            | (self.kind as u64) << 48
            | (self.bp as u64) << 56
    }

    /// The inverse of [`to_word`](Self::to_word).
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "fields are cut out of the word by truncation")]
    pub const fn from_word(word: u64) -> Self {
        Self {
            cfa_offset: word as i32,
            bp_offset: (word >> 32) as i16,
            kind: (word >> 48) as u8,
            bp: (word >> 56) as u8,
        }
    }

    /// Decodes stored bytes; `None` unless they are the encoding of a rule.
    pub fn from_bytes(bytes: [u8; 8]) -> Option<Self> {
        let [o0, o1, o2, o3, b0, b1, kind, bp] = bytes;
        let rule = Self {
            cfa_offset: i32::from_le_bytes([o0, o1, o2, o3]),
            bp_offset: i16::from_le_bytes([b0, b1]),
            kind,
            bp,
        };
        let written = match rule.cfa() {
            Some(cfa) => match rule.return_address() {
                ReturnAddress::BelowCfa => Self::new(cfa, rule.caller_bp())?,
                address => Self::with_return_address(cfa, rule.caller_bp(), address)?,
            },
            None => *Self::RESERVED.get(usize::from(kind))?,
        };
        (written == rule).then_some(rule)
    }
}

const fn packed(bp: CallerBp) -> (u8, i16) {
    match bp {
        CallerBp::Same => (BP_SAME, 0),
        CallerBp::AtCfa(offset) => (BP_AT_CFA, offset),
        CallerBp::AtBp(offset) => (BP_AT_BP, offset),
        CallerBp::Lost => (BP_LOST, 0),
    }
}

#[expect(clippy::cast_sign_loss, reason = "bits are packed")]
const fn pair(low: i16, high: i16) -> i32 {
    ((high as i32) << 16) | (low as u16 as i32)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
pub(crate) const fn low_half(value: i32) -> i16 {
    value as i16
}

#[inline(always)]
pub(crate) const fn high_half(value: i32) -> i16 {
    (value >> 16) as i16
}

#[cfg(test)]
pub(crate) mod tests;
