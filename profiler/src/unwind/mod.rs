//! From a module's unwind information to the tables that the kernel side unwinds with.
//!
//! ```text
//! ELF ─▶ image ─▶ cfi (+ rule) ─▶ spans ─▶ compact ─▶ Table ─▶ cache (disk)
//!        sections  DWARF → rules   no overlap rows, pages      └▶ rows, pages, rules for the maps
//! ```
//!
//! Everything here is a function of bytes, but for [`cache`], which reads and writes files of its own. Modules are the
//! target's to choose: work and memory are bounded whatever they say, and what is left out is counted by reason.

pub(crate) mod cache;
pub(crate) mod cfi;
pub(crate) mod compact;
pub(crate) mod encode;
pub(crate) mod frame_pointer;
pub(crate) mod image;
pub(crate) mod ranges;
pub(crate) mod rule;
pub(crate) mod rules;
pub(crate) mod spans;
pub(crate) mod store;
pub(crate) mod table;

use object::ReadRef;

use cache::{Cache, TableKey};
pub(crate) use image::{Image, ImageError};
pub(crate) use rules::RuleTable;
pub(crate) use table::BuildStats;
pub use table::Table;

/// Builds the table of an ELF file: a slice of bytes (the vDSO, read from a process), or `&object::ReadCache<File>`,
/// which reads the few sections that are needed and not the rest of a large file.
///
/// # Errors
/// When the bytes are no x86-64 ELF executable or shared object. Unwind information that is missing or malformed is no
/// error: the table says so by its gaps and its [`BuildStats`].
pub fn build<'data, R: ReadRef<'data>>(data: R) -> Result<Table, ImageError> {
    let image = Image::parse(data)?;
    Ok(build_from_image(&image))
}

/// The same, from the cache where it has the table.
///
/// # Errors
/// As [`build`].
pub(crate) fn build_cached<'data, R: ReadRef<'data>>(data: R, cache: &Cache) -> Result<Table, ImageError> {
    let image = Image::parse(data)?;
    let is_current = |table: &Table| table.samples.are_of(&image);
    Ok(cache.get_or_build(&TableKey::of(&image), is_current, || build_from_image(&image)))
}

fn build_from_image<'data, R: ReadRef<'data>>(image: &Image<'data, R>) -> Table {
    let mut rules = RuleTable::new();
    let mut stats = BuildStats { code_bytes: image.code_bytes(), ..BuildStats::default() };
    let mut functions = cfi::Functions::default();
    if let Some(section) = &image.eh_frame {
        functions.read_eh_frame(section, image, &mut rules, &mut stats);
    }
    // Debuggers' copy of the same information, where a module was built without the one that is loaded.
    if functions.covered_bytes() < stats.code_bytes / 4
        && let Some(section) = image.debug_frame
    {
        functions.read_debug_frame(section, image, &mut rules, &mut stats);
    }
    let spans = spans::resolve(functions, image.entry, &image.code, &mut stats);
    let (fills_gaps, samples) = frame_pointer::fill_gaps(image, &spans);
    stats.fills_gaps = fills_gaps;
    let gap = if stats.fills_gaps { rules::FRAME_POINTER } else { rules::GAP };
    Table { samples, ..compact::compact(&spans, &image.code, gap, rules, stats) }
}

#[cfg(test)]
mod tests;
