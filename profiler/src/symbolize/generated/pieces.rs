//! What the parsers find: ranges of code, and where their names are.

const PIECES_MAX: usize = 4 << 20;
/// Maximum length of a name, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 1 << 12;
/// Addresses of user space have fewer bits.
const ADDRESS_BITS: u32 = 57;

/// A range of code with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    /// When it was written: nanoseconds in a dump, the offset behind its line in a map.
    pub(super) written: u64,
    pub(super) name: Span,
    /// A dump's record of lines, and the address for which it was written.
    pub(super) lines: Option<(Span, u64)>,
}

/// A range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// Pieces as a parser finds them.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) pieces: Vec<Piece>,
    pub(super) malformed: u64,
    pub(super) is_cut: bool,
}

impl Found {
    /// Returns false if there is no space for more.
    pub(super) fn add(&mut self, piece: Piece) -> bool {
        self.is_cut |= self.pieces.len() >= PIECES_MAX;
        if !self.is_cut {
            self.pieces.push(piece);
        }
        !self.is_cut
    }
}

/// A range of addresses, if it is one.
pub(super) fn range(start: u64, size_bytes: u64) -> Option<(u64, u64)> {
    let end = start.checked_add(size_bytes)?;
    (end <= 1 << ADDRESS_BITS).then_some((start, end))
}
