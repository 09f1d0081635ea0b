//! The package that has a module's debug information: by the package note of the file, else by dpkg's lists of files.
//!
//! <https://systemd.io/PACKAGE_METADATA_FOR_EXECUTABLE_FILES/>

use std::fs;
use std::path::Path;

use heapbpf_linux::files;
use object::LittleEndian as LE;
use object::elf::FileHeader64;
use object::read::elf::NoteIterator;
use serde::Deserialize;

use crate::object::image::identity_here;
use crate::object::module::Module;

const NOTE_BYTES_MAX: u64 = 4096;
/// `FDO_PACKAGING_METADATA`
const NOTE_TYPE: u32 = 0xcafe_1a7e;
const NAME_BYTES_MAX: usize = 128;
const DPKG_LISTS: &str = "/var/lib/dpkg/info";
const LIST_BYTES_MAX: u64 = 16 << 20;
const LISTS_MAX: usize = 20_000;

#[derive(Deserialize)]
struct Note {
    #[serde(rename = "type")]
    kind: String,
    name: String,
}

/// `git-dbgsym` of Debian, `git-debuginfo` of distributions with RPM. `None` where unknown.
pub(super) fn debug_package(module: &Module) -> Option<String> {
    noted(module).or_else(|| listed(module))
}

/// The file may be forged: only plain names are accepted.
fn debug_name(kind: &str, name: &str) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return None;
    }
    match kind {
        // The only one of Debian's that is older than automatic packages.
        "deb" if name == "libc6" => Some("libc6-dbg".to_owned()),
        "deb" => Some(format!("{name}-dbgsym")),
        "rpm" => Some(format!("{name}-debuginfo")),
        _ => None,
    }
}

fn noted(module: &Module) -> Option<String> {
    let section = module.elf().ok()?.section(".note.package")?;
    let bytes = module.image().ok()?.read(section.offset, section.size_bytes, NOTE_BYTES_MAX).ok()?;
    let mut notes = NoteIterator::<FileHeader64<LE>>::new(LE, 4, &bytes).ok()?;
    while let Ok(Some(note)) = notes.next() {
        if note.name() == b"FDO" && note.n_type(LE) == NOTE_TYPE {
            let text = note.desc().split(|&byte| byte == 0).next()?;
            let note: Note = serde_json::from_slice(text).ok()?;
            return debug_name(&note.kind, &note.name);
        }
    }
    None
}

/// The file must be the one of this machine, not one of that name in a container.
fn listed(module: &Module) -> Option<String> {
    let path: &str = module.path();
    if Some(module.image().ok()?.file_identity()) != identity_here(Path::new(path)) {
        return None;
    }
    // Lists have paths from before directories of the root were merged into /usr.
    let short = path.strip_prefix("/usr").unwrap_or(path);
    let is_of = |line: &str| line == path || line == short;
    for entry in fs::read_dir(DPKG_LISTS).ok()?.flatten().take(LISTS_MAX) {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".list")) else { continue };
        let text = files::read_text(&entry.path(), LIST_BYTES_MAX).unwrap_or_default();
        if text.lines().any(is_of) {
            return debug_name("deb", name.split(':').next().unwrap_or(name));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::module::ModuleStore;

    #[test]
    fn only_plain_names_of_known_packagings_are_used() {
        assert_eq!(debug_name("deb", "git").as_deref(), Some("git-dbgsym"));
        assert_eq!(debug_name("deb", "libc6").as_deref(), Some("libc6-dbg"));
        assert_eq!(debug_name("rpm", "libstdc++").as_deref(), Some("libstdc++-debuginfo"));
        for (kind, name) in [("deb", ""), ("deb", "a b"), ("deb", "$(x)"), ("pacman", "git"), ("rpm", "a/b")] {
            assert_eq!(debug_name(kind, name), None, "{kind} {name}");
        }
        assert_eq!(debug_name("deb", &"a".repeat(200)), None);
    }

    #[test]
    fn dpkg_knows_the_package_of_an_installed_program() {
        let mut modules = ModuleStore::default();
        let id = modules.intern_path(Path::new("/usr/bin/dpkg")).expect("dpkg is installed");
        assert_eq!(debug_package(modules.get(id)).as_deref(), Some("dpkg-dbgsym"));
    }
}
