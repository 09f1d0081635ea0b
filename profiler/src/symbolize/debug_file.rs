//! Finds separate debug files of distributions by build id. Debug files that are linked by name (`.gnu_debuglink`)
//! are in `object::debug_link`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::object::elf::{BuildId, Elf};
use crate::object::image::Image;
use crate::object::module::Module;
use crate::object::open;

/// Maximum size of `.gnu_debugaltlink`: a path and a build id.
const LINK_BYTES_MAX: u64 = 4096 + 64;
/// Directories for shared debug files, below those for debug files.
const SHARED_DIRECTORIES: [&str; 2] = [".dwz", ".dwz/x86_64-linux-gnu"];

const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];

/// Returns the installed debug file of a module, with a matching build id. `None` if the module has line information
/// itself.
pub(crate) fn find(module: &Module) -> Option<(PathBuf, Image)> {
    let elf = module.elf().ok()?;
    let build_id = elf.build_id.as_ref()?;
    if elf.section(".debug_info").is_some() {
        return None;
    }
    DIRECTORIES.iter().find_map(|directory| in_directory(Path::new(directory), build_id))
}

/// Returns the installed file that a debug file shares strings and types with (dwz(1)), and its build id.
pub(crate) fn find_shared(image: &Image) -> Option<(BuildId, Image)> {
    let elf = Elf::read(image).ok()?;
    let section = elf.section(".gnu_debugaltlink")?;
    let bytes = image.read(section.offset, section.size_bytes, LINK_BYTES_MAX).ok()?;
    let (name, build_id) = parse_link(&bytes)?;
    let has_build_id = |path: PathBuf| {
        let image = open::open_regular(&path).ok()?;
        (Elf::read(&image).ok()?.build_id.as_ref() == Some(&build_id)).then_some(image)
    };
    let found = DIRECTORIES.iter().map(Path::new).find_map(|directory| {
        let by_name = || {
            let name = name?;
            SHARED_DIRECTORIES.iter().map(|shared| directory.join(shared).join(name)).find_map(has_build_id)
        };
        in_directory(directory, &build_id).map(|(_, image)| image).or_else(by_name)
    })?;
    Some((build_id, found))
}

/// Returns the base name of the path, which may be forged, and the build id.
fn parse_link(section: &[u8]) -> Option<(Option<&OsStr>, BuildId)> {
    let end = section.iter().position(|&byte| byte == 0)?;
    let name = Path::new(OsStr::from_bytes(&section[..end])).file_name();
    Some((name, BuildId::recorded(&section[end + 1..])?))
}

fn in_directory(directory: &Path, build_id: &BuildId) -> Option<(PathBuf, Image)> {
    let name = build_id.to_string();
    let (first, rest) = name.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    let path = directory.join(".build-id").join(first).join(format!("{rest}.debug"));
    let image = open::open_regular(&path).ok()?;
    (Elf::read(&image).ok()?.build_id.as_ref() == Some(build_id)).then_some((path, image))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_base_name_and_build_id_of_a_shared_file_are_used() {
        let parsed = |section: &[u8]| {
            let (name, build_id) = parse_link(section)?;
            Some((name.map(OsStr::to_owned), build_id.to_string()))
        };
        assert_eq!(parsed(b"../../.dwz/x.debug\0\x12\xab"), Some((Some("x.debug".into()), "12ab".to_owned())));
        assert_eq!(parsed(b"/dev/zero\0\x12"), Some((Some("zero".into()), "12".to_owned())));
        assert_eq!(parsed(b"..\0\x12"), Some((None, "12".to_owned())));
        for malformed in [&b""[..], b"x.debug", b"x.debug\0", &[b"x\0", &[7; 65][..]].concat()] {
            assert_eq!(parsed(malformed), None, "{malformed:?}");
        }
    }
}
