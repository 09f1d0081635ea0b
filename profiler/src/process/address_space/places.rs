//! Places of code: what a process maps where other code was gets addresses of its own, which no process uses. So an address of a
//! stack stands for one piece of code, whatever is mapped there later.

use std::collections::BTreeMap;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::ModuleId;
use profiler_common::mapped::FileKey;
use rustc_hash::FxHashMap;

/// First address that stands for replaced code, above those of any process (`TASK_SIZE_MAX` in
/// arch/x86/include/asm/page_64_types.h, with five levels of page tables) and below those of interpreted code.
pub(super) const FIRST: u64 = 1 << 57;
/// End of these addresses.
const END: u64 = 1 << 62;
/// Maximum number of pieces of code. Further ones have addresses, but no names: a process that generates code where libraries were.
const PIECES_MAX: usize = 1 << 12;

/// What is mapped: a file, or memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Code {
    pub(super) file: FileKey,
    /// Address that the file's first byte has or would have where its first segment is mapped, wrapping; that of the mapping for memory.
    pub(super) base: u64,
}

/// A file that has been read. Segments need not have the distances in memory that they have in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) module: ModuleId,
    /// Distance of the code's offsets in the file from those by [`Code::base`], wrapping.
    pub(super) delta: u64,
    /// Size of the mapping that shows it.
    pub(super) bytes: u64,
}

impl Code {
    /// Memory that is in no file.
    pub(super) fn is_generated(&self) -> bool {
        self.file.inode == 0 && self.file.device == 0
    }
}

/// A piece of code, and the addresses that stand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) code: Code,
    /// Its own addresses.
    pub(super) start: u64,
    pub(super) end: u64,
    /// Distance of the addresses that stand for the piece from its own; 0 for what was there first.
    pub(super) shift: u64,
    /// The file, once it has been read; for memory the one whose code was moved there.
    pub(super) named: Option<Named>,
    /// Whether it is known to be memory with generated code.
    pub(super) is_generated: bool,
}

impl Piece {
    fn new(code: Code, (start, end): (u64, u64), shift: u64, named: Option<Named>) -> Self {
        Self { code, start, end, shift, named, is_generated: false }
    }

    /// Offset in its file of one of its own addresses.
    pub(super) fn offset(&self, own: u64, named: Named) -> FileOffset {
        FileOffset(own.wrapping_sub(self.code.base).wrapping_add(named.delta))
    }

    pub(super) fn placed(&self) -> (TargetAddr, TargetAddr) {
        (TargetAddr(self.start + self.shift), TargetAddr(self.end + self.shift))
    }

    fn find(&self, address: TargetAddr) -> Found {
        let own = address.0 - self.shift;
        match self.named {
            Some(named) => Found::Module(named.module, self.offset(own, named)),
            None if self.is_generated => Found::Generated(FileOffset(own)),
            None => Found::Unread,
        }
    }
}

/// What a process has mapped since it is watched. Empty unless it has mapped code where other code was, or files that were not read
/// when they were mapped.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// By the first address that stands for the piece.
    pieces: BTreeMap<u64, Piece>,
    known: FxHashMap<Code, u64>,
    /// What is mapped now, by its first address: the first address that stands for it, and its end.
    mapped: BTreeMap<u64, (u64, u64)>,
    /// Number of bytes of addresses that were given to replaced code.
    given: u64,
}

/// What is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Module(ModuleId, FileOffset),
    /// With the address of the code itself.
    Generated(FileOffset),
    /// What it is was not read.
    Unread,
}

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.values()
    }

    /// Whether code other than this was mapped in the range.
    pub(super) fn has_other(&self, code: &Code, (start, end): (u64, u64)) -> bool {
        let is_other = |it: &Piece| it.code != *code && !(it.code.is_generated() && code.is_generated());
        self.pieces.values().any(|it| it.start < end && start < it.end && is_other(it))
    }

    /// Whether this is mapped now, at one of these addresses.
    pub(super) fn is_mapped(&self, code: &Code, (start, end): (u64, u64)) -> bool {
        let mut mapped = self.mapped.iter().filter(|(from, (_, to))| **from < end && start < *to);
        mapped.any(|(_, (placed, _))| self.piece_at(*placed).is_some_and(|piece| piece.code == *code))
    }

    pub(super) fn mapped_at(&self, address: TargetAddr) -> Option<Code> {
        let (_, (placed, end)) = self.mapped.range(..=address.0).next_back()?;
        self.piece_at(*placed).filter(|_| address.0 < *end).map(|piece| piece.code)
    }

    /// Whether memory is mapped at this address, or a file that the kernel side does not know.
    pub(super) fn is_unknown(&self, address: TargetAddr) -> bool {
        self.mapped_at(address).is_some_and(|code| code.is_generated())
    }

    /// Whether something else is mapped now at some of these addresses.
    pub(super) fn is_other_mapped(&self, code: &Code, (start, end): (u64, u64)) -> bool {
        let mut mapped = self.mapped.iter().filter(|(from, (_, to))| **from < end && start < *to);
        mapped.any(|(_, (placed, _))| self.piece_at(*placed).is_none_or(|piece| piece.code != *code))
    }

    /// A file that nobody has read yet, with this base, of which these addresses are a part.
    pub(super) fn unread(&self, base: u64, (start, end): (u64, u64)) -> Option<Code> {
        let is_it = |it: &&Piece| {
            it.named.is_none() && !it.code.is_generated() && it.code.base == base && it.start <= start && end <= it.end
        };
        let mut mapped = self.mapped.values().filter_map(|(placed, _)| self.piece_at(*placed));
        mapped.find(is_it).map(|piece| piece.code)
    }

    /// Adds code that was there before anything replaced it. No effect if something is known to have been there.
    pub(super) fn add_first(&mut self, code: Code, (start, end): (u64, u64), named: Option<Named>) {
        let is_taken = self.pieces.range(..end).next_back().is_some_and(|(_, it)| it.end > start);
        if !is_taken && self.pieces.len() < PIECES_MAX && start < end && end <= FIRST {
            self.pieces.insert(start, Piece::new(code, (start, end), 0, named));
            self.known.insert(code, start);
        }
    }

    /// Notes that this code is mapped from now on, and nothing else that was in the range. `is_replacing` if other code was there.
    pub(super) fn map(&mut self, code: Code, (start, end): (u64, u64), named: Option<Named>, is_replacing: bool) {
        if start >= end || end > FIRST {
            return;
        }
        self.unmap((start, end));
        if let Some(piece) = self.known.get(&code).and_then(|placed| self.pieces.get_mut(placed)) {
            piece.named = piece.named.or(named);
            let (own, placed) = ((piece.start, piece.end), piece.placed().0.0);
            self.unmap(own);
            self.mapped.insert(own.0, (placed, own.1));
            return;
        }
        if !is_replacing {
            self.add_first(code, (start, end), named);
            if self.known.contains_key(&code) {
                self.mapped.insert(start, (start, end));
            }
            return;
        }
        let bytes = (end - start).next_multiple_of(1 << 16);
        let placed = FIRST + self.given;
        if bytes > END - placed {
            return;
        }
        self.given += bytes;
        if self.pieces.len() < PIECES_MAX {
            self.pieces.insert(placed, Piece::new(code, (start, end), placed - start, named));
            self.known.insert(code, placed);
        }
        self.mapped.insert(start, (placed, end));
    }

    /// Notes that nothing of what is known is mapped in a range; the rest of what it overlaps stays.
    fn unmap(&mut self, (start, end): (u64, u64)) {
        let overlaps = |(&from, &(placed, to)): (&u64, &(u64, u64))| (to > start).then_some((from, placed, to));
        let overlapped: Vec<(u64, u64, u64)> = self.mapped.range(..end).rev().map_while(overlaps).collect();
        for (from, placed, to) in overlapped {
            self.mapped.remove(&from);
            if from < start {
                self.mapped.insert(from, (placed, start));
            }
            if end < to {
                self.mapped.insert(end, (placed + (end - from), to));
            }
        }
    }

    /// The address that stands for what is mapped at this address now.
    pub(super) fn place(&self, address: TargetAddr) -> TargetAddr {
        match self.mapped.range(..=address.0).next_back() {
            Some((&start, &(placed, end))) if address.0 < end => TargetAddr(placed + (address.0 - start)),
            _ => address,
        }
    }

    /// Gives the pieces of a file their module.
    pub(super) fn name(&mut self, code: &Code, named: Named) {
        if let Some(piece) = self.known.get(code).and_then(|placed| self.pieces.get_mut(placed)) {
            // Of several segments with code, the largest one counts: others have stubs that call it.
            let is_larger = piece.named.is_none_or(|known| known.module != named.module || known.bytes <= named.bytes);
            piece.named = if is_larger { Some(named) } else { piece.named };
        }
    }

    /// Notes that pieces without a reported file are memory, where memory `is_there`: in some of the piece's own addresses.
    pub(super) fn confirm_generated(&mut self, is_there: impl Fn((u64, u64)) -> bool) {
        let is_open = |it: &&mut Piece| it.code.is_generated() && !it.is_generated && it.named.is_none();
        for piece in self.pieces.values_mut().filter(is_open) {
            piece.is_generated = is_there((piece.start, piece.end));
        }
    }

    /// Gives the memory at this address, which is in no file, the module whose code was moved there.
    pub(super) fn name_moved(&mut self, start: u64, module: ModuleId, offset: FileOffset) {
        for piece in self.pieces.values_mut().filter(|it| it.code.is_generated() && it.start == start) {
            piece.named = Some(Named { module, delta: offset.0, bytes: piece.end - piece.start });
        }
    }

    /// Whether what an address stands for is mapped at that very address now.
    pub(super) fn is_at(&self, address: TargetAddr) -> bool {
        let mapped = self.mapped.range(..=address.0).next_back();
        mapped.is_some_and(|(&start, &(placed, end))| start == placed && address.0 < end)
    }

    pub(super) fn find(&self, address: TargetAddr) -> Option<Found> {
        self.piece_at(address.0).map(|piece| piece.find(address))
    }

    /// The piece that an address stands for.
    fn piece_at(&self, placed: u64) -> Option<&Piece> {
        let (_, piece) = self.pieces.range(..=placed).next_back()?;
        let (start, end) = piece.placed();
        (start.0..end.0).contains(&placed).then_some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(inode: u64, base: u64) -> Code {
        Code { file: FileKey::new(8, 1, inode), base }
    }

    fn named(id: u32) -> Option<Named> {
        Some(Named { module: ModuleId(id), delta: 0, bytes: 1 })
    }

    fn module(id: u32, offset: u64) -> Option<Found> {
        Some(Found::Module(ModuleId(id), FileOffset(offset)))
    }

    #[test]
    fn code_at_a_used_address_has_addresses_of_its_own() {
        let mut places = Places::default();
        let at = |places: &Places, address: u64| places.place(TargetAddr(address));
        let (first, second, third) = (code(1, 0x6000), code(2, 0x5000), code(3, 0x5000));
        places.map(first, (0x7000, 0x9000), named(1), false);
        assert_eq!(at(&places, 0x7800), TargetAddr(0x7800));
        assert!(places.has_other(&second, (0x6000, 0x7001)) && !places.has_other(&second, (0x6000, 0x7000)));
        places.map(second, (0x6000, 0x8000), named(2), true);
        let placed = at(&places, 0x7800);
        assert!(placed.0 >= FIRST);
        assert_eq!(places.find(placed), module(2, 0x2800));
        assert_eq!(places.find(TargetAddr(0x7800)), module(1, 0x1800), "what was there first keeps its addresses");
        assert_eq!(at(&places, 0x8800), TargetAddr(0x8800), "nothing else is known to be mapped there");
        // The first one again, and the second one.
        places.map(first, (0x7000, 0x9000), None, true);
        assert_eq!(at(&places, 0x7800), TargetAddr(0x7800));
        places.map(second, (0x6000, 0x8000), None, true);
        assert_eq!(at(&places, 0x7800), placed);
        // A rebuilt file, which nobody has read.
        places.map(third, (0x6000, 0x8000), None, true);
        let other = at(&places, 0x7800);
        assert!(other != placed && places.find(other) == Some(Found::Unread));
        assert_eq!(places.unread(0x5000, (0x7000, 0x8000)), Some(third));
        assert_eq!(places.unread(0x5000, (0x7000, 0x8001)), None);
        places.name(&third, Named { module: ModuleId(3), delta: 0x1000, bytes: 1 });
        assert_eq!(places.find(other), module(3, 0x3800));
        assert!(places.is_mapped(&third, (0x7000, 0x7001)) && !places.is_mapped(&second, (0x7000, 0x7001)));
    }

    #[test]
    fn generated_code_and_moved_code_are_distinguished() {
        let mut places = Places::default();
        places.add_first(code(1, 0x6000), (0x7000, 0x9000), named(1));
        places.map(Code { file: FileKey::new(0, 0, 0), base: 0x7000 }, (0x7000, 0x9000), None, true);
        let placed = places.place(TargetAddr(0x7010));
        assert_eq!(places.find(placed), Some(Found::Unread));
        places.confirm_generated(|_| false);
        assert_eq!(places.find(placed), Some(Found::Unread));
        places.confirm_generated(|range| range == (0x7000, 0x9000));
        assert_eq!(places.find(placed), Some(Found::Generated(FileOffset(0x7010))));
        places.name_moved(0x7000, ModuleId(1), FileOffset(0x1000));
        assert_eq!(places.find(placed), module(1, 0x1010));
    }

    #[test]
    fn pieces_are_limited_and_further_ones_have_no_names() {
        let mut places = Places::default();
        let count = PIECES_MAX as u64 + 10;
        for inode in 1..=count {
            places.map(code(inode, 0x7000), (0x7000, 0x8000), named(1), inode > 1);
        }
        assert_eq!(places.pieces.len(), PIECES_MAX);
        assert_eq!(places.find(places.place(TargetAddr(0x7010))), None);
        assert_eq!(places.mapped.len(), 1);
        for range in [(5, 5), (7, 3), (FIRST, FIRST + 1), (u64::MAX - 1, u64::MAX)] {
            places.map(code(1, range.0), range, None, true);
        }
        assert_eq!(places.mapped.len(), 1, "ranges that no process has");
    }
}
