//! Language runtimes with allocators of their own, recognised by the mappings of a process.

use std::path::Path;

use crate::linux::proc::maps::{Region, RegionKind};
use crate::model::Runtime;

/// Runtimes by the names of executables and libraries. Go programs have none in common: see [`is_go`].
const FILES: [(Runtime, &[&str]); 7] = [
    (Runtime::Cpython, &["python", "libpython"]),
    (Runtime::Php, &["php", "libphp", "mod_php"]),
    (Runtime::Chromium, &["chrome", "chromium", "headless_shell", "electron", "libcef.so", "msedge", "brave"]),
    (Runtime::Node, &["node", "libnode.so"]),
    (Runtime::Jvm, &["libjvm.so"]),
    (Runtime::Ruby, &["ruby", "libruby"]),
    (Runtime::Dotnet, &["libcoreclr.so"]),
];

/// The runtimes that a process has loaded, in the order of [`FILES`].
pub(crate) fn runtimes<'a>(mut regions: impl Iterator<Item = &'a Region> + Clone) -> Vec<Runtime> {
    let names: Vec<&str> = regions.clone().filter(|region| region.executable).filter_map(file_name).collect();
    let found = FILES.iter().filter(|(_, files)| names.iter().any(|name| files.iter().any(|file| is_file(name, file))));
    let mut found: Vec<Runtime> = found.map(|(runtime, _)| *runtime).collect();
    if regions.any(is_go) {
        found.push(Runtime::Go);
    }
    found
}

fn file_name(region: &Region) -> Option<&str> {
    let RegionKind::File { path } = &region.kind else { return None };
    Path::new(path).file_name()?.to_str()
}

/// Whether the name is that of the file, with or without a version: `python`, `python3.11`, `php8.2`, `libruby-3.1.so.3.1`.
fn is_file(name: &str, file: &str) -> bool {
    name.strip_prefix(file).is_some_and(|rest| {
        let is_version = |character: char| character.is_ascii_digit() || ".-_".contains(character);
        rest.is_empty() || rest.starts_with(is_version) || rest.starts_with(".so")
    })
}

/// Whether a region belongs to Go's runtime, which reserves its heap at a fixed address on 64-bit systems (`mallocinit` in
/// runtime/malloc.go), and names it since 1.25.
fn is_go(region: &Region) -> bool {
    const ARENAS: u64 = 0xc0_0000_0000;
    let is_named = matches!(&region.kind, RegionKind::Anonymous { name: Some(name) } if name.starts_with("Go: "));
    is_named || (region.start.0 == ARENAS && matches!(region.kind, RegionKind::Anonymous { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(path: &str) -> Region {
        let kind = RegionKind::File { path: path.into() };
        Region { executable: true, ..Region::synthetic(0x1000, 0x1000, kind) }
    }

    #[test]
    fn runtimes_are_recognised_by_their_files() {
        for (path, expected) in [
            ("/usr/bin/python3.11", Some(Runtime::Cpython)),
            ("/usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0", Some(Runtime::Cpython)),
            ("/usr/bin/php8.2", Some(Runtime::Php)),
            ("/usr/lib/chromium/chromium", Some(Runtime::Chromium)),
            ("/usr/bin/node", Some(Runtime::Node)),
            ("/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", Some(Runtime::Jvm)),
            ("/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2", Some(Runtime::Ruby)),
            ("/usr/bin/pythonista", None),
            ("/usr/bin/nodejs-helper", None),
            ("/usr/bin/redis-server", None),
        ] {
            assert_eq!(runtimes([code(path)].iter()), Vec::from_iter(expected), "{path}");
        }
    }

    #[test]
    fn data_files_are_no_runtime() {
        let data = Region { executable: false, ..code("/usr/bin/python3.11") };
        assert_eq!(runtimes([data].iter()), []);
    }

    #[test]
    fn go_is_recognised_by_its_heap() {
        let heap = |start, name: Option<&str>| {
            Region::synthetic(start, 0x1000, RegionKind::Anonymous { name: name.map(str::to_owned) })
        };
        assert_eq!(runtimes([heap(0xc0_0000_0000, None)].iter()), [Runtime::Go]);
        assert_eq!(runtimes([heap(0x7000, Some("Go: heap"))].iter()), [Runtime::Go]);
        assert_eq!(runtimes([heap(0xc0_0000_1000, None)].iter()), []);
    }
}
