use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use object::LittleEndian as LE;
use object::elf::{CompressionHeader64, ELFCOMPRESS_ZLIB, SHF_COMPRESSED, SHT_NOBITS};
use object::pod::from_bytes;

use crate::object::elf::{Elf, Section};
use crate::object::image::Image;

/// Limit for all decompressed sections of a module together.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Returns whether the compressed sections selected by `about` have the sizes that they claim, and do not exceed the
/// limit. blazesym allocates what the headers claim and decompresses everything, so it must not read other files.
pub(super) fn is_bounded(image: &Image, elf: &Elf, about: impl Fn(&str) -> bool) -> bool {
    let compressed = |section: &&Section| {
        let flagged = section.flags & u64::from(SHF_COMPRESSED) != 0;
        flagged && section.kind != SHT_NOBITS && about(&section.name)
    };
    let mut left = UNPACKED_BYTES_MAX;
    elf.sections.iter().filter(compressed).all(|section| {
        let unpacked = unpacked_bytes(image, section, left);
        unpacked.and_then(|unpacked| left.checked_sub(unpacked)).map(|rest| left = rest).is_some()
    })
}

/// Returns the decompressed size; `None` if it is not the claimed one or exceeds `bytes_max`.
fn unpacked_bytes(image: &Image, section: &Section, bytes_max: u64) -> Option<u64> {
    let bytes = image.read(section.offset, section.size_bytes, UNPACKED_BYTES_MAX).ok()?;
    let (header, packed) = from_bytes::<CompressionHeader64<LE>>(&bytes).ok()?;
    let claimed = header.ch_size.get(LE);
    if claimed > bytes_max {
        return None;
    }
    if header.ch_type.get(LE) != ELFCOMPRESS_ZLIB {
        // Support for other formats is not built in, so blazesym does not decompress them.
        return Some(0);
    }
    let real = io::copy(&mut ZlibDecoder::new(packed).take(claimed + 1), &mut io::sink()).ok()?;
    (real == claimed).then_some(claimed)
}
