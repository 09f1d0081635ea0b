//! Finds a module's debug file by `.gnu_debuglink`. The target controls that name, so only a base name is accepted, the file is
//! searched beneath the target's own root directory, and only regular files are opened.
//!
//! <https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::Elf;
use super::image::Image;
use super::open;

/// Maximum size of the section: a name, padding and a checksum.
const SECTION_BYTES_MAX: u64 = 512;
/// Maximum length of a file name (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Maximum size of a debug file, in bytes. Those of browsers have 4 GiB.
pub(crate) const DEBUG_FILE_BYTES_MAX: u64 = 8 << 30;
/// Directory of distributions' debug files, by the directory of the module.
const GLOBAL_DIRECTORY: &str = "/usr/lib/debug";

/// A debug file found by its name.
#[derive(Debug)]
pub struct DebugLink {
    /// The file. Its checksum determines whether it belongs to the module.
    pub image: Image,
    /// CRC-32 of the file that the module was split from.
    pub checksum: u32,
}

/// Opens the debug file of a module at `path` beneath `root`. `None` for a module that contains its own line information.
pub(super) fn find(root: &Path, path: &Path, image: &Image, elf: &Elf) -> Option<DebugLink> {
    let section = elf.section(".gnu_debuglink").filter(|_| elf.section(".debug_info").is_none())?;
    let bytes = image.read(section.offset, section.size_bytes, SECTION_BYTES_MAX).ok()?;
    let (name, checksum) = parse(&bytes)?;
    let root = File::open(root).ok()?;
    let candidate = |path: PathBuf| {
        let found = open::beneath(&root, &path, DEBUG_FILE_BYTES_MAX).ok()?;
        let is_other = |file: &Image| {
            let (one, other) = (file.identity(), image.identity());
            (one.device, one.inode) != (other.device, other.inode)
        };
        Some(found).filter(is_other)
    };
    let image = candidates(path.parent()?, name).into_iter().find_map(candidate)?;
    Some(DebugLink { image, checksum })
}

/// Parses a base name and a checksum.
fn parse(section: &[u8]) -> Option<(&OsStr, u32)> {
    let end = section.iter().position(|&byte| byte == 0)?;
    let checksum = section.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    let name = &section[..end];
    let is_base_name = (1..=NAME_BYTES_MAX).contains(&end) && !name.contains(&b'/') && name != b"." && name != b"..";
    is_base_name.then(|| (OsStr::from_bytes(name), u32::from_le_bytes(*checksum)))
}

/// Candidate paths, in the order of GDB.
fn candidates(directory: &Path, name: &OsStr) -> [PathBuf; 3] {
    let below = directory.strip_prefix("/").unwrap_or(directory);
    [directory.join(name), directory.join(".debug").join(name), Path::new(GLOBAL_DIRECTORY).join(below).join(name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(name: &[u8], checksum: u32) -> Vec<u8> {
        let mut bytes = name.to_vec();
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    #[test]
    fn only_base_names_are_accepted() {
        let name = |bytes: &[u8]| parse(&section(bytes, 7)).map(|(name, checksum)| (name.to_owned(), checksum));
        assert_eq!(name(b"x.debug"), Some(("x.debug".into(), 7)));
        assert_eq!(name(&[b'a'; 255]).map(|(name, _)| name.len()), Some(255));
        for refused in [&b""[..], b".", b"..", b"/dev/zero", b"../x.debug", b"a/b", &[b'a'; 256]] {
            assert_eq!(name(refused), None, "{refused:?}");
        }
        for malformed in [&b""[..], b"x.debug", b"x\0\0\0", b"x\0\0\0abc"] {
            assert_eq!(parse(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn candidates_are_beside_the_module_and_in_the_global_directory() {
        let paths = candidates(Path::new("/opt/app"), OsStr::new("x.debug"));
        let expected = ["/opt/app/x.debug", "/opt/app/.debug/x.debug", "/usr/lib/debug/opt/app/x.debug"];
        assert_eq!(paths, expected.map(PathBuf::from));
    }
}
