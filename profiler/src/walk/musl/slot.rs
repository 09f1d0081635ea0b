//! What is in a slot that is not free.
//!
//! Before each block stands a header of four bytes: one that is 0 unless the place takes more than 16 bits, one with the slot's index and, in its high
//! three bits, what the slot has more than was asked for, and the units from the first slot to the block. Blocks move about in
//! their slots; then the header at the slot's beginning says by how many units.

use super::group::{Meta, UNIT_BYTES};
use crate::address::TargetAddr;
use crate::memory::Memory;
use crate::walk::WalkedBlock;

/// Bytes at the end of a slot that are the next header's.
const HEADER_BYTES: u64 = 4;
/// Units between the places where a block may begin that says its place in 16 bits too few.
const FAR_UNITS: u64 = 1 << 16;

// What stands in the high three bits beside the numbers of bytes from 0 to 4.
/// The number is larger, and stands in the slot's last four bytes.
const RESERVED_FAR: u8 = 5;
/// There is no block but a group.
const GROUP: u8 = 6;
/// At a slot's beginning: the block begins further on. At a block with all other bits too: it is being freed.
const ELSEWHERE: u8 = 7;
const FREED: u8 = 0xff;

/// What a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Being freed, or not given out yet.
    Changing,
    /// A block.
    Block(WalkedBlock),
    /// A group of smaller slots.
    Group,
    /// It cannot be told.
    Odd,
}

/// The header before an address, with the four bytes before that one.
#[derive(Clone, Copy)]
struct Header {
    far_offset: u32,
    is_far: bool,
    info: u8,
    offset: u16,
}

impl Header {
    fn read(memory: &dyn Memory, address: u64) -> Option<Self> {
        let [a, b, c, d, far, info, low, high] = memory.word(TargetAddr(address.checked_sub(8)?))?.to_le_bytes();
        let far_offset = u32::from_le_bytes([a, b, c, d]);
        Some(Self { far_offset, is_far: far != 0, info, offset: u16::from_le_bytes([low, high]) })
    }

    fn kind(self) -> u8 {
        self.info >> 5
    }

    fn index(self) -> u32 {
        u32::from(self.info & 31)
    }

    /// Whether nothing was written there yet. For a group's first slot that is a header like any other.
    fn is_unwritten(self) -> bool {
        self.info == 0 && self.offset == 0
    }

    /// Whether it is the header of what is at so many units from the first slot. The byte that says which form it has follows the
    /// slot before, and may be overrun.
    fn says(self, index: u32, units: u64) -> bool {
        let far = self.is_far && self.offset == 0 && units > u64::from(u16::MAX) && u64::from(self.far_offset) == units;
        self.index() == index && (far || u64::from(self.offset) == units)
    }
}

/// What is in a slot that its group's meta has as given out.
pub(super) fn read(memory: &dyn Memory, meta: &Meta, index: u32) -> Slot {
    let start = meta.slot(index).start.0;
    let Some(header) = Header::read(memory, start) else { return Slot::Changing };
    if header.info == FREED || (header.is_unwritten() && index > 0) {
        return Slot::Changing;
    }
    if header.kind() == ELSEWHERE {
        return displaced(memory, meta, index, u64::from(header.offset));
    }
    match header.says(index, (start - meta.storage().0) / UNIT_BYTES) {
        true if header.kind() == GROUP => Slot::Group,
        true => block(memory, meta, index, start, header),
        false => Slot::Odd,
    }
}

/// A block that begins so many units behind the slot's beginning; of large ones the slot tells the low 16 bits alone.
fn displaced(memory: &dyn Memory, meta: &Meta, index: u32, units: u64) -> Slot {
    let slot = meta.slot(index);
    let size_units = (slot.end.0 - slot.start.0) / UNIT_BYTES;
    let first_units = (slot.start.0 - meta.storage().0) / UNIT_BYTES;
    let at = |units: u64| {
        let address = slot.start.0 + units * UNIT_BYTES;
        Header::read(memory, address).map(|header| (address, header, header.says(index, first_units + units)))
    };
    if meta.is_single() {
        // What was there before the block was moved to where it is aligned may be left at the near place.
        // Of a block that reserves terabytes most was never touched, and its header is where it was.
        let far = memory.present(slot.clone()).into_iter().flat_map(|part| {
            let within = |address: TargetAddr| (address.0 - slot.start.0) / UNIT_BYTES;
            let first = within(part.start).saturating_sub(units).div_ceil(FAR_UNITS).max(1);
            (first..)
                .map(move |nth| units + nth * FAR_UNITS)
                .take_while(move |&units| units < size_units.min(within(part.end).saturating_add(1)))
        });
        let found = far.filter_map(at).find(|&(_, header, says)| says && header.is_far);
        if let Some((address, header, _)) = found {
            return block(memory, meta, index, address, header);
        }
    }
    if units == 0 || units >= size_units {
        return Slot::Odd;
    }
    match at(units) {
        None => Slot::Changing,
        Some((_, header, _)) if header.is_unwritten() || header.info == FREED => Slot::Changing,
        Some((address, header, true)) => block(memory, meta, index, address, header),
        Some(_) => Slot::Odd,
    }
}

/// The block at an address, which its header says to be of this slot. Where it is overrun it is taken to be as large as it can be.
fn block(memory: &dyn Memory, meta: &Meta, index: u32, address: u64, header: Header) -> Slot {
    let end = meta.slot(index).end.0 - HEADER_BYTES;
    let Some(most) = end.checked_sub(address) else { return Slot::Odd };
    let reserved = match header.kind() {
        RESERVED_FAR => {
            let last = memory.word(TargetAddr(end - HEADER_BYTES)).map(|word| word & 0xffff_ffff);
            last.filter(|reserved| (u64::from(RESERVED_FAR)..=most).contains(reserved)).unwrap_or(0)
        }
        kind if kind < RESERVED_FAR => u64::from(kind),
        _ => return Slot::Odd,
    };
    Slot::Block(WalkedBlock { start: TargetAddr(address), size_bytes: most.saturating_sub(reserved) })
}
