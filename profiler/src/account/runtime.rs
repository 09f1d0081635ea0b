//! Language runtimes with allocators of their own, recognised by the mappings of a process.

use std::collections::BTreeSet;
use std::path::Path;

use heapbpf_base::language::Language;
use heapbpf_base::language::facts::HeapMark;
use heapbpf_base::memory::Span;
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

/// Name of the mappings of Go's heap, since Go 1.25 (`runtime/set_vma_name_linux.go`); others begin with `Go: `, too.
const GO_HEAP: &str = "Go: heap";

/// Memory of Go's heap and of its bookkeeping, by rising address: all that has no name, where the program has no other code than its own,
/// as those have that do not use C. Else mappings with its name, since Go 1.25, and what follows its first address.
pub(crate) fn go_heap<'a>(regions: impl Iterator<Item = &'a Region> + Clone) -> Vec<Span> {
    let Some(mark) = &Language::Go.facts().heap_mark else { return Vec::new() };
    let files: BTreeSet<&str> = regions.clone().filter(|region| region.executable).filter_map(file_name).collect();
    let is_alone = files.len() <= 1;
    let mut spans: Vec<Span> = Vec::new();
    for region in regions.filter(|region| region.is_anonymous() && region.writable && !region.shared) {
        let follows = spans.last().is_some_and(|last| last.start.0 >= mark.address && last.end == region.start);
        let is_named = matches!(&region.kind, RegionKind::Anonymous { name: Some(name) } if name.starts_with(GO_HEAP));
        if is_alone && matches!(region.kind, RegionKind::Anonymous { .. })
            || region.start.0 == mark.address
            || is_named
            || follows
        {
            spans.push(region.start..region.end);
        }
    }
    spans
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
    use heapbpf_base::address::TargetAddr;

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

    #[test]
    fn the_heap_of_go_is_what_follows_its_first_address_or_has_its_name() {
        let region = |start, name: Option<&str>, writable| {
            let kind = RegionKind::Anonymous { name: name.map(str::to_owned) };
            Region { writable, ..Region::synthetic(start, 0x1000, kind) }
        };
        let first = 0xc0_0000_0000;
        let mut regions = vec![
            code("/srv/server"),
            code("/lib/libc.so.6"),
            region(0x1000, None, true),
            region(first, None, true),
            region(first + 0x1000, None, true),
            region(first + 0x2000, None, false),
            region(first + 0x3000, None, true),
            region(0xc1_0000_0000, Some("Go: heap"), true),
            region(0xc2_0000_0000, Some("Go: immortal metadata"), true),
        ];
        let span = |start| TargetAddr(start)..TargetAddr(start + 0x1000);
        assert_eq!(go_heap(regions.iter()), [span(first), span(first + 0x1000), span(0xc1_0000_0000)]);
        regions.remove(1);
        assert_eq!(go_heap(regions.iter()).len(), 6, "all that can be written");
    }
}
