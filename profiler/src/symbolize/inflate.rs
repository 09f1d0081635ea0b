//! Whether a module's compressed sections can be unpacked safely. blazesym reserves what their headers claim and unpacks
//! whatever comes, so both are checked before it may look.

use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use object::LittleEndian as LE;
use object::elf::{CompressionHeader64, ELFCOMPRESS_ZLIB, SHF_COMPRESSED, SHT_NOBITS};
use object::pod::from_bytes;

use crate::object::elf::{Elf, Section};
use crate::object::image::Image;

/// Most bytes that the sections of one module may have when unpacked, together.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Whether every compressed section is as large as it claims, and all together are not too large, of those sections
/// whose names are asked about. A module without compressed sections is fine.
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

/// How large the section claims to be and is; `None` when the two differ or exceed `bytes_max`.
fn unpacked_bytes(image: &Image, section: &Section, bytes_max: u64) -> Option<u64> {
    let bytes = image.read(section.offset, section.size_bytes, UNPACKED_BYTES_MAX).ok()?;
    let (header, packed) = from_bytes::<CompressionHeader64<LE>>(&bytes).ok()?;
    let claimed = header.ch_size.get(LE);
    if claimed > bytes_max {
        return None;
    }
    if header.ch_type.get(LE) != ELFCOMPRESS_ZLIB {
        // Other formats are not built in, so blazesym does not unpack them at all.
        return Some(0);
    }
    let real = io::copy(&mut ZlibDecoder::new(packed).take(claimed + 1), &mut io::sink()).ok()?;
    (real == claimed).then_some(claimed)
}
