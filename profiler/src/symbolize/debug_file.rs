//! Finds the file that a distribution split a module's names and lines off to, by build id. Files that are only linked by name
//! (`.gnu_debuglink`) are `object::debug_link`'s.

use std::path::{Path, PathBuf};

use crate::object::elf::{BuildId, Elf};
use crate::object::image::Image;
use crate::object::module::Module;
use crate::object::open;

/// Where distributions put such files.
const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];

/// The debug file of a module, if it is installed here and really belongs to it.
///
/// A module that has its own line information has none.
#[must_use]
pub fn find(module: &Module) -> Option<(PathBuf, Image)> {
    let elf = module.elf().ok()?;
    let build_id = elf.build_id.as_ref()?;
    if elf.section(".debug_info").is_some() {
        return None;
    }
    DIRECTORIES.iter().find_map(|directory| in_directory(Path::new(directory), build_id))
}

fn in_directory(directory: &Path, build_id: &BuildId) -> Option<(PathBuf, Image)> {
    let name = build_id.to_string();
    let (first, rest) = name.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    let path = directory.join(".build-id").join(first).join(format!("{rest}.debug"));
    let image = open::open_regular(&path).ok()?;
    (Elf::read(&image).ok()?.build_id.as_ref() == Some(build_id)).then_some((path, image))
}
