//! Names of files that belong to one output: those of its windows and of the peak.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::report::Format;

/// `heap.svg`'s window 3: `heap.0003.svg`.
pub(super) fn of_window(path: &Path, number: u32) -> PathBuf {
    between(path, &format!("{number:04}"))
}

/// `heap.svg`'s peak: `heap.peak.svg`.
pub(super) fn of_peak(path: &Path) -> PathBuf {
    between(path, "peak")
}

/// Between the name and its extension.
fn between(path: &Path, word: &str) -> PathBuf {
    let whole = path.file_name().unwrap_or(OsStr::new("heapbpf"));
    let stem_bytes = Format::split(path).map(|(stem_bytes, _)| stem_bytes);
    let stem_bytes = stem_bytes.or_else(|| Some(path.file_stem()?.len())).unwrap_or(whole.len());
    let (stem, extension) = whole.as_bytes().split_at(stem_bytes);
    let mut name = OsString::from(OsStr::from_bytes(stem));
    name.push(".");
    name.push(word);
    name.push(OsStr::from_bytes(extension));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, number: u32, expected: &str) {
        assert_eq!(of_window(Path::new(path), number), Path::new(expected));
    }

    #[test]
    fn the_number_is_before_the_extension() {
        check("heap.svg", 1, "heap.0001.svg");
        check("/var/tmp/my.heap.json", 42, "/var/tmp/my.heap.0042.json");
        check("./heapbpf-redis-12.folded", 9999, "./heapbpf-redis-12.9999.folded");
        check("a.SVG", 12_345, "a.12345.SVG");
        check("b.d/heap.svg", 7, "b.d/heap.0007.svg");
        check("heap.pb.gz", 7, "heap.0007.pb.gz");
        check("my.heap.Perfetto-Trace", 7, "my.heap.0007.Perfetto-Trace");
        check("x.dhat.json", 7, "x.0007.dhat.json");
        check("forced", 7, "forced.0007");
    }

    #[test]
    fn names_order_as_their_windows_do() {
        let names: Vec<PathBuf> = [2, 10, 9, 100].map(|number| of_window(Path::new("x.svg"), number)).into();
        let mut sorted = names.clone();
        sorted.sort();
        assert_eq!(sorted, [&names[0], &names[2], &names[1], &names[3]].map(Clone::clone));
    }

    #[test]
    fn the_peak_has_a_name_of_its_own() {
        assert_eq!(of_peak(Path::new("out/heap.svg")), Path::new("out/heap.peak.svg"));
    }
}
