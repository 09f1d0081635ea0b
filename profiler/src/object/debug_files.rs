//! Separate debug files: by build id in the directories of distributions, or by `.gnu_debuglink`. The target controls
//! that name: only a base name is accepted, and only regular files beneath the target's own root directory are opened.
//!
//! <https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html>

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::{mounts, process};
use heapbpf_linux::rights::Rights;
use tracing::warn;

use super::ObjectError;
use super::elf::{BuildId, Elf};
use super::image::{self, Image, open_beneath};
use crate::reader::Wanted;

/// `.gnu_debuglink`: a name, padding and a checksum.
const SECTION_BYTES_MAX: u64 = 512;
const NAME_BYTES_MAX: usize = 255;
/// Debug files of browsers have 4 GiB.
pub(crate) const DEBUG_FILE_BYTES_MAX: u64 = 8 << 30;
/// Directories of distributions' debug files, for use after those that the user gives. The first also has them by the directory of the
/// module.
const DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/usr/local/lib/debug"];

#[derive(Debug)]
pub struct DebugLink {
    /// Its checksum determines whether it belongs to the module.
    pub image: Image,
    /// CRC-32 of the file that the module was split from.
    pub checksum: u32,
}

/// Opened with the rights of the process whose module it is. `None` for a module that contains its own line information.
pub(super) fn find_linked(pid: Pid, path: &Path, image: &Image, elf: &Elf) -> Option<DebugLink> {
    let section = elf.section(".gnu_debuglink").filter(|_| elf.section(".debug_info").is_none())?;
    let bytes = image.read(section.offset, section.size_bytes, SECTION_BYTES_MAX).ok()?;
    let (name, checksum) = parse_debug_link(&bytes)?;
    let (root, rights) = (process::root(pid).ok()?, Rights::of(pid)?);
    let this = image.identity();
    let is_other = |found: &Image| (found.identity().device, found.identity().inode) != (this.device, this.inode);
    let open = |path: PathBuf| {
        let wanted = Wanted { path: &path, follows: true, owners: None, bytes_max: DEBUG_FILE_BYTES_MAX };
        Image::open_for(&rights, &root, wanted).ok().filter(is_other)
    };
    let image = candidates(path.parent()?, name).into_iter().find_map(open)?;
    Some(DebugLink { image, checksum })
}

/// Files with debug information that a module names by their paths, which a target controls. They are opened beneath the root
/// directory and with the rights of a process that has mapped the module.
#[derive(Debug)]
pub(crate) struct NamedFiles {
    rights: Rights,
    root: File,
    directory: PathBuf,
    /// Debug information of all units (`.dwp`).
    pub(crate) package: Option<Image>,
    /// The file that it shares strings and types with (dwz(1)).
    pub(crate) shared: Option<(BuildId, Image)>,
}

impl NamedFiles {
    /// `None` if the module names no files.
    pub(super) fn find(pid: Pid, path: &Path, image: &Image, elf: &Elf, link: Option<&DebugLink>) -> Option<Self> {
        let linked = link.and_then(|link| Elf::read(&link.image).ok());
        let has =
            |name: &str| [Some(elf), linked.as_ref()].into_iter().flatten().any(|elf| elf.section(name).is_some());
        let (is_split, is_shared) = (UNIT_SECTIONS.into_iter().any(has), has(ALTERNATIVE_LINK));
        if !is_split && !is_shared {
            return None;
        }
        let (root, rights) = (process::root(pid).ok()?, Rights::of(pid)?);
        let directory = path.parent()?.to_owned();
        let mut files = Self { rights, root, directory, package: None, shared: None };
        if is_split {
            files.package = files.open(&package_of(path));
        }
        let referring = [Some(image), link.map(|link| &link.image)].into_iter().flatten();
        files.shared = referring.filter_map(shared_link).find_map(|link| {
            let image = files.open(Path::new(link.path.as_ref()?))?;
            is_of(&image, &link.build_id).then_some((link.build_id, image))
        });
        Some(files)
    }

    /// Opens a file; relative paths begin at the module.
    pub(crate) fn open(&self, path: &Path) -> Option<Image> {
        let path = self.directory.join(path);
        let wanted = Wanted { path: &path, follows: true, owners: None, bytes_max: DEBUG_FILE_BYTES_MAX };
        Image::open_for(&self.rights, &self.root, wanted).ok()
    }
}

/// Sections of modules whose units may be described in other files (split DWARF).
const UNIT_SECTIONS: [&str; 2] = [".debug_addr", ".zdebug_addr"];

fn package_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".dwp");
    name.into()
}

/// Returns the file with the debug information of a module's units, in directories that the user gives: by name, or as below
/// /usr/lib/debug.
pub(crate) fn find_package_in(given: &[PathBuf], path: &Path) -> Option<Image> {
    let package = package_of(path);
    let (name, below) = (package.file_name()?, package.strip_prefix("/").ok()?);
    given.iter().find_map(|directory| open_below(directory, below).or_else(|| open_below(directory, Path::new(name))))
}

fn parse_debug_link(section: &[u8]) -> Option<(&OsStr, u32)> {
    let end = section.iter().position(|&byte| byte == 0)?;
    let checksum = section.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    let name = &section[..end];
    let is_base_name = (1..=NAME_BYTES_MAX).contains(&end) && !name.contains(&b'/') && name != b"." && name != b"..";
    is_base_name.then(|| (OsStr::from_bytes(name), u32::from_le_bytes(*checksum)))
}

/// In the order of GDB.
fn candidates(directory: &Path, name: &OsStr) -> [PathBuf; 3] {
    let below = directory.strip_prefix("/").unwrap_or(directory);
    [directory.join(name), directory.join(".debug").join(name), Path::new(DIRECTORIES[0]).join(below).join(name)]
}

/// A path and a build id.
pub(crate) const ALTERNATIVE_LINK: &str = ".gnu_debugaltlink";
const LINK_BYTES_MAX: u64 = 4096 + 64;
/// Directories for shared debug files, below those for debug files.
const SHARED_DIRECTORIES: [&str; 2] = [".dwz", ".dwz/x86_64-linux-gnu"];

/// The build id by which to search for the debug file of a module; `None` if the module has line information itself.
pub(super) fn wanted_build_id(elf: &Elf) -> Option<&BuildId> {
    elf.build_id.as_ref().filter(|_| elf.section(".debug_info").is_none())
}

/// Returns a distribution's file, which only root can write.
pub(crate) fn find_installed(build_id: &BuildId) -> Option<Image> {
    DIRECTORIES.iter().find_map(|directory| in_directory(Path::new(directory), build_id))
}

pub(crate) fn find_given(given: &[PathBuf], build_id: &BuildId) -> Option<Image> {
    given.iter().find_map(|directory| in_directory(directory, build_id))
}

/// Returns the file that a debug link names, below directories that the user gives, as below /usr/lib/debug.
pub(crate) fn find_linked_in(given: &[PathBuf], path: &Path, image: &Image, elf: &Elf) -> Option<DebugLink> {
    let section =
        elf.section(".gnu_debuglink").filter(|_| elf.section(".debug_info").is_none() && !given.is_empty())?;
    let bytes = image.read(section.offset, section.size_bytes, SECTION_BYTES_MAX).ok()?;
    let (name, checksum) = parse_debug_link(&bytes)?;
    let below = path.parent()?.strip_prefix("/").ok()?;
    let image = given.iter().find_map(|directory| open_below(directory, &below.join(name)))?;
    Some(DebugLink { image, checksum })
}

fn open_below(directory: &Path, path: &Path) -> Option<Image> {
    let whole = directory.join(path);
    if mounts::first_distant(&whole).is_none() {
        return open_beneath(&File::open(directory).ok()?, path, DEBUG_FILE_BYTES_MAX).ok();
    }
    let stays_below = path.components().all(|part| matches!(part, Component::Normal(_)));
    if stays_below { open_named(&whole) } else { None }
}

/// Directories of file systems that did not answer.
static UNANSWERED: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());

/// A directory that does not answer is a warning, once.
fn open_named(path: &Path) -> Option<Image> {
    image::open_named(path)
        .inspect_err(|error| {
            if let ObjectError::Unanswered(directory) = error
                && UNANSWERED.lock().unwrap_or_else(PoisonError::into_inner).insert(Arc::clone(directory))
            {
                warn!("{error}: debug files below it are not used");
            }
        })
        .ok()
}

/// The file that a debug file shares strings and types with (dwz(1)).
#[derive(Debug)]
pub(crate) struct SharedLink {
    path: Option<OsString>,
    pub(crate) build_id: BuildId,
}

pub(crate) fn shared_link(image: &Image) -> Option<SharedLink> {
    let elf = Elf::read(image).ok()?;
    let section = elf.section(ALTERNATIVE_LINK)?;
    let bytes = image.read(section.offset, section.size_bytes, LINK_BYTES_MAX).ok()?;
    let (path, build_id) = parse_alternative_link(&bytes)?;
    Some(SharedLink { path: (!path.is_empty()).then(|| path.to_owned()), build_id })
}

impl SharedLink {
    /// Returns the file, if it is in one of the user's directories or installed.
    pub(crate) fn find(&self, given: &[PathBuf]) -> Option<Image> {
        given.iter().map(PathBuf::as_path).chain(DIRECTORIES.map(Path::new)).find_map(|directory| {
            // The path may be forged: only its last part is used.
            let name = self.path.as_ref().and_then(|path| Path::new(path).file_name());
            let by_name = |shared: &&str| open_if_of(&directory.join(shared).join(name?), &self.build_id);
            in_directory(directory, &self.build_id).or_else(|| SHARED_DIRECTORIES.iter().find_map(by_name))
        })
    }
}

fn parse_alternative_link(section: &[u8]) -> Option<(&OsStr, BuildId)> {
    let end = section.iter().position(|&byte| byte == 0)?;
    Some((OsStr::from_bytes(&section[..end]), BuildId::recorded(&section[end + 1..])?))
}

fn in_directory(directory: &Path, build_id: &BuildId) -> Option<Image> {
    let name = build_id.to_string();
    let (first, rest) = name.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    let path = directory.join(".build-id").join(first).join(format!("{rest}.debug"));
    open_if_of(&path, build_id)
}

fn open_if_of(path: &Path, build_id: &BuildId) -> Option<Image> {
    open_named(path).filter(|image| is_of(image, build_id))
}

fn is_of(image: &Image, build_id: &BuildId) -> bool {
    Elf::read(image).is_ok_and(|elf| elf.build_id.as_ref() == Some(build_id))
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
        let name =
            |bytes: &[u8]| parse_debug_link(&section(bytes, 7)).map(|(name, checksum)| (name.to_owned(), checksum));
        assert_eq!(name(b"x.debug"), Some(("x.debug".into(), 7)));
        assert_eq!(name(&[b'a'; 255]).map(|(name, _)| name.len()), Some(255));
        for refused in [&b""[..], b".", b"..", b"/dev/zero", b"../x.debug", b"a/b", &[b'a'; 256]] {
            assert_eq!(name(refused), None, "{refused:?}");
        }
        for malformed in [&b""[..], b"x.debug", b"x\0\0\0", b"x\0\0\0abc"] {
            assert_eq!(parse_debug_link(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn candidates_are_beside_the_module_and_in_the_global_directory() {
        let paths = candidates(Path::new("/opt/app"), OsStr::new("x.debug"));
        let expected = ["/opt/app/x.debug", "/opt/app/.debug/x.debug", "/usr/lib/debug/opt/app/x.debug"];
        assert_eq!(paths, expected.map(PathBuf::from));
    }

    #[test]
    fn a_link_to_a_shared_file_has_a_path_and_a_build_id() {
        let parsed = |section: &[u8]| {
            let (path, build_id) = parse_alternative_link(section)?;
            Some((path.to_owned(), build_id.to_string()))
        };
        assert_eq!(parsed(b"../x.debug\0\x12\xab"), Some(("../x.debug".into(), "12ab".to_owned())));
        assert_eq!(parsed(b"\0\x12"), Some(("".into(), "12".to_owned())));
        for malformed in [&b""[..], b"x.debug", b"x.debug\0", &[b"x\0", &[7; 65][..]].concat()] {
            assert_eq!(parsed(malformed), None, "{malformed:?}");
        }
    }

    #[test]
    fn a_package_is_named_after_its_module() {
        assert_eq!(package_of(Path::new("/opt/app/x.so.1")), Path::new("/opt/app/x.so.1.dwp"));
    }
}
