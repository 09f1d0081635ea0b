//! Every module installed on this machine: nothing panics, and hardly any rule is unsupported.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::super::arch::Unsupported;
use super::super::{RuleTable, build};

/// Directories of modules.
const ROOTS: [&str; 3] = ["/usr/bin", "/usr/lib", "/usr/lib64"];

/// Maximum number of rows, to limit the time: larger libraries are skipped.
const ROWS: u64 = 6_000_000;

/// ELF files below a directory, without following links, in a deterministic order.
pub(super) fn elf_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let Ok(entries) = std::fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => directories.push(entry.path()),
                Ok(kind) if kind.is_file() && is_elf(&entry.path()) => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    files
}

pub(super) fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"\x7fELF"
}

#[test]
fn nearly_all_rows_of_all_modules_have_a_rule() {
    let mut shared = RuleTable::default();
    let (mut modules, mut rows, mut bytes) = (0, 0, 0);
    let (mut unsupported_rows, mut breaking_rows, mut breaking_bytes) = (0, 0, 0);
    let mut files: Vec<PathBuf> = ROOTS.iter().flat_map(|root| elf_files(Path::new(root))).collect();
    files.dedup();
    for path in files {
        let length = path.metadata().map_or(0, |metadata| metadata.len());
        if rows > ROWS || length > 40 << 20 {
            continue;
        }
        let cache = crate::object::image::Image::new(File::open(&path).expect("was opened before")).expect("a file");
        let Ok(table) = build(&cache) else { continue };
        assert!(table.is_consistent(), "{}", path.display());
        assert!(!table.stats.truncated, "{}: cut short", path.display());
        let _ = table.number_rules(&mut shared);
        modules += 1;
        rows += table.stats.rows_read;
        bytes += table.stats.bytes_read;
        for (reason, tally) in <Unsupported as strum::VariantArray>::VARIANTS.iter().zip(table.stats.unsupported) {
            unsupported_rows += tally.rows;
            if reason.breaks_stacks() {
                breaking_rows += tally.rows;
                breaking_bytes += tally.bytes;
            }
        }
    }
    assert!(modules >= 50, "only {modules} modules found below {ROOTS:?}: this machine cannot show anything");
    assert!(unsupported_rows * 1000 < rows, "{unsupported_rows} of {rows} rows in {modules} modules are unsupported");
    assert!(breaking_rows * 5000 < rows, "{breaking_rows} of {rows} rows can break stacks");
    assert!(breaking_bytes * 5000 < bytes, "{breaking_bytes} of {bytes} bytes can break stacks");
    // All modules together need far fewer rules than 16 bits can number.
    assert!(shared.rules().len() < 16_384, "{} distinct rules", shared.rules().len());
}
