//! Language runtimes with allocators of their own, recognised by the mappings of a process.

use std::path::Path;

use heapbpf_base::language::Language;
use heapbpf_base::language::facts::HeapMark;
use heapbpf_linux::proc::maps::{Region, RegionKind};
use strum::IntoEnumIterator;

/// The languages whose runtimes a process has loaded: those with files, then those that only their heaps show.
pub(crate) fn runtimes<'a>(regions: impl Iterator<Item = &'a Region> + Clone) -> Vec<Language> {
    let names: Vec<&str> = regions.clone().filter(|region| region.executable).filter_map(file_name).collect();
    let has_file = |language: &Language| {
        let files = language.facts().files;
        names.iter().any(|name| files.iter().any(|file| is_file(name, file)))
    };
    let mut found: Vec<Language> = Language::iter().filter(has_file).collect();
    found.extend(Language::iter().filter(|language| {
        language.facts().heap_mark.as_ref().is_some_and(|mark| regions.clone().any(|region| is_heap(region, mark)))
    }));
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

fn is_heap(region: &Region, mark: &HeapMark) -> bool {
    let RegionKind::Anonymous { name } = &region.kind else { return false };
    region.start.0 == mark.address || name.as_ref().is_some_and(|name| name.starts_with(mark.name))
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
            ("/usr/bin/python3.11", Some(Language::Python)),
            ("/usr/lib/x86_64-linux-gnu/libpython3.13.so.1.0", Some(Language::Python)),
            ("/usr/bin/php8.2", Some(Language::Php)),
            ("/usr/lib/chromium/chromium", Some(Language::Chromium)),
            ("/usr/bin/node", Some(Language::JavaScript)),
            ("/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so", Some(Language::Java)),
            ("/usr/lib/x86_64-linux-gnu/libruby-3.1.so.3.1.2", Some(Language::Ruby)),
            ("/home/me/.deno/bin/deno", Some(Language::Deno)),
            ("/srv/node_modules/bun/bin/bun.exe", Some(Language::Bun)),
            ("/usr/bin/bundle", None),
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
        assert_eq!(runtimes([heap(0xc0_0000_0000, None)].iter()), [Language::Go]);
        assert_eq!(runtimes([heap(0x7000, Some("Go: heap"))].iter()), [Language::Go]);
        assert_eq!(runtimes([heap(0xc0_0000_1000, None)].iter()), []);
    }
}
