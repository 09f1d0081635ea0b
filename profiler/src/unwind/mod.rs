//! Compiles a module's unwind information into the kernel side's tables: `image` (sections) ─▶ `cfi` with `arch`
//! (rules) ─▶ `compact` (rows, pages) ─▶ `Table` ─▶ `cache` (disk). Targets control the contents of modules: work and
//! memory are bounded, and omissions are counted by reason.

mod arch;
pub(crate) mod cache;
pub(crate) mod cfi;
pub(crate) mod compact;
mod golang;
mod greenlet;
pub(crate) mod image;
mod outermost;
pub(crate) mod ranges;
pub(crate) mod runtimes;
mod signal;
pub(crate) mod store;
pub(crate) mod table;

use crate::object::image::Image as File;
#[cfg(test)]
pub(crate) use arch::Processor;
use cache::{Cache, TableKey};
pub(crate) use image::{Image, ImageError};
pub use table::Table;
pub(crate) use table::{BuildStats, RuleTable};

/// Missing or malformed unwind information is no error: the table has gaps, and [`BuildStats`] counts them.
pub fn build(file: &File) -> Result<Table, ImageError> {
    Image::parse(file).map(|image| build_from_image(&image))
}

/// Of a module for a processor that may not be this machine's.
#[cfg(test)]
pub(crate) fn build_for(file: &File, processor: Processor) -> Result<Table, ImageError> {
    Image::parse_for(file, processor).map(|image| build_from_image(&image))
}

pub(crate) fn build_cached(file: &File, cache: &Cache) -> Result<Table, ImageError> {
    let image = Image::parse(file)?;
    let is_current = |table: &Table| table.samples.matches(&image);
    Ok(cache.get_or_build(&TableKey::of(&image), is_current, || build_from_image(&image)))
}

fn build_from_image(image: &Image<'_>) -> Table {
    let mut rules = RuleTable::default();
    let mut stats = BuildStats { code_bytes: image.code_bytes(), ..BuildStats::default() };
    let mut functions = cfi::Functions::default();
    functions.read(&image.eh_frame(), image, &mut rules, &mut stats);
    let covered = functions.functions.len();
    let go_samples = golang::add(image, &mut functions, &mut rules);
    let is_go = functions.functions.len() > covered;
    // Debuggers' copy of the same information, for modules built without the loaded one.
    if !is_go && functions.covered_bytes() < stats.code_bytes / 4 {
        functions.read(&image.debug_frame(), image, &mut rules, &mut stats);
    }
    let mut spans = compact::resolve(functions, image.entry, &image.code, &mut stats);
    let (fills_gaps, mut samples) = compact::fill_gaps(image, &spans);
    samples.extend(image, outermost::mark(image, &mut spans));
    samples.extend(image, signal::mark(image, &mut spans));
    greenlet::mark(image, &mut spans);
    samples.extend(image, go_samples);
    stats.fills_gaps = fills_gaps || is_go;
    let gap = if fills_gaps { table::FRAME_POINTER } else { table::GAP };
    Table { samples, ..compact::compact(&spans, &image.code, gap, rules, stats) }
}

#[cfg(test)]
mod tests;
