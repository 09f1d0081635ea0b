//! Compiles a module's unwind information into the tables that the kernel side unwinds with.
//!
//! ```text
//! ELF ─▶ image ─▶ cfi (+ arch) ─▶ compact ─▶ Table ─▶ cache (disk)
//!        sections  DWARF → rules   rows, pages └▶ rows, pages, rules for the maps
//! ```
//!
//! Everything here is a function of bytes, except [`cache`], which reads and writes its own files. Targets control the contents of
//! modules: work and memory are bounded, and omissions are counted by reason.

mod arch;
pub(crate) mod cache;
pub(crate) mod cfi;
pub(crate) mod compact;
pub(crate) mod encode;
pub(crate) mod frame_pointer;
pub(crate) mod image;
pub(crate) mod store;
pub(crate) mod table;

use object::ReadRef;

use cache::{Cache, TableKey};
pub(crate) use image::{Image, ImageError};
pub(crate) use table::BuildStats;
pub(crate) use table::RuleTable;
pub use table::Table;

/// Builds the table of an ELF file: a slice of bytes (the vDSO, read from a process), or `&object::ReadCache<File>`, which reads only
/// the required sections of a large file. Missing or malformed unwind information is no error: the table has gaps, and [`BuildStats`]
/// counts them.
pub fn build<'data, R: ReadRef<'data>>(data: R) -> Result<Table, ImageError> {
    let image = Image::parse(data)?;
    Ok(build_from_image(&image))
}

/// As [`build`], from the cache if it has the table.
pub(crate) fn build_cached<'data, R: ReadRef<'data>>(data: R, cache: &Cache) -> Result<Table, ImageError> {
    let image = Image::parse(data)?;
    let is_current = |table: &Table| table.samples.matches(&image);
    Ok(cache.get_or_build(&TableKey::of(&image), is_current, || build_from_image(&image)))
}

fn build_from_image<'data, R: ReadRef<'data>>(image: &Image<'data, R>) -> Table {
    let mut rules = RuleTable::new();
    let mut stats = BuildStats { code_bytes: image.code_bytes(), ..BuildStats::default() };
    let mut functions = cfi::Functions::default();
    if let Some(section) = &image.eh_frame {
        functions.read_eh_frame(section, image, &mut rules, &mut stats);
    }
    // Debuggers' copy of the same information, for modules built without the loaded one.
    if functions.covered_bytes() < stats.code_bytes / 4
        && let Some(section) = image.debug_frame
    {
        functions.read_debug_frame(section, image, &mut rules, &mut stats);
    }
    let spans = compact::resolve(functions, image.entry, &image.code, &mut stats);
    let (fills_gaps, samples) = frame_pointer::fill_gaps(image, &spans);
    stats.fills_gaps = fills_gaps;
    let gap = if stats.fills_gaps { table::FRAME_POINTER } else { table::GAP };
    Table { samples, ..compact::compact(&spans, &image.code, gap, rules, stats) }
}

#[cfg(test)]
mod tests;
