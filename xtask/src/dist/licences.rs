//! The licences of all that the binary contains, as one text: it accompanies every package.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::build::Checkout;
use super::dependencies::{Crate, Dependencies};

/// Folders of a crate whose licences are searched for: its own, and those of C libraries that it contains.
const DEPTH: usize = 2;
/// The same for the HTML page's scripts of others.
const PAGE_DEPTH: usize = 4;
const NAMES: [&str; 5] = ["license", "licence", "copying", "copyright", "unlicense"];

/// Compiled in besides crates. Their terms: packaging/LGPL-2.1.txt, which the text contains, and Rust's own.
const RUNTIME: &str = "\
The GNU C Library (LGPL-2.1-or-later) and libgcc (GPL-3.0-or-later with the GCC Runtime Library Exception) are linked
statically, and the Rust standard library (MIT OR Apache-2.0) is compiled in. The binary can be relinked with a modified
GNU C Library: `cargo xtask dist` in the source of heapbpf makes it, with the library of the machine that it runs on.
";

/// Obligation of CDDL-1.0, section 3.1, and of MPL-2.0, section 3.2: recipients of binaries are informed how to obtain the source.
const COVERED: &str = "\
inferno is Covered Software under the CDDL-1.0, and dynasmrt under the MPL-2.0. They are used unchanged; their source is
the crates `inferno` and `dynasmrt` of the versions below, in Rust's package registry and in their repositories.
";

pub(super) fn text(checkout: &Checkout, dependencies: &Dependencies) -> Result<String> {
    let mut text = format!("heapbpf {}\n\n", checkout.version);
    text.push_str("MIT or Apache-2.0, at your choice; the kernel side MIT or GPL-2.0-only. It contains:\n\n");
    writeln!(text, "{RUNTIME}\n{COVERED}")?;
    for found in dependencies.crates.iter().filter(|found| !found.is_ours()) {
        let license = found.license.as_deref().with_context(|| format!("{} has no licence", found.name))?;
        let repository = found.repository.as_deref().unwrap_or_default();
        writeln!(text, "  {} {}: {license} {repository}", found.name, found.version)?;
    }
    for (license, owners) in texts(checkout, dependencies)? {
        let owners = owners.join(", ");
        write!(text, "\n{}\n{owners}\n{}\n\n{license}\n", "=".repeat(80), "-".repeat(80))?;
    }
    Ok(text)
}

/// Each distinct licence text, with whom it covers.
fn texts(checkout: &Checkout, dependencies: &Dependencies) -> Result<BTreeMap<String, Vec<String>>> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |owner: String, path: &Path| -> Result<()> {
        let license = fs::read(path).with_context(|| format!("could not read `{}`", path.display()))?;
        let owners = texts.entry(String::from_utf8_lossy(&license).trim().replace("\r\n", "\n")).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
        Ok(())
    };
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        add("heapbpf".to_owned(), &checkout.root.join(name))?;
    }
    add("GNU C Library".to_owned(), &checkout.root.join("packaging/LGPL-2.1.txt"))?;
    // The crate does not contain it.
    add("dynasmrt".to_owned(), &checkout.root.join("packaging/MPL-2.0.txt"))?;
    for path in license_files(&checkout.root.join("profiler/crates/report/src/html"), PAGE_DEPTH)? {
        let component = path.parent().and_then(Path::file_name).context("a vendored file has a folder")?;
        add(component.to_string_lossy().into_owned(), &path)?;
    }
    for found in dependencies.crates.iter().filter(|found| !found.is_ours()) {
        for path in license_files(folder(found)?, DEPTH)? {
            add(format!("{} {}", found.name, found.version), &path)?;
        }
    }
    ensure!(texts.keys().any(|text| text.contains("COMMON DEVELOPMENT AND DISTRIBUTION")), "CDDL-1.0 is missing");
    Ok(texts)
}

fn folder(found: &Crate) -> Result<&Path> {
    found.manifest_path.parent().context("a manifest is in a folder")
}

fn license_files(folder: &Path, depth: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("could not read `{}`", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let is_file = entry.file_type()?.is_file();
        if is_file && NAMES.iter().any(|start| name.starts_with(start)) && !name.ends_with(".rs") {
            found.push(entry.path());
        } else if entry.file_type()?.is_dir() && depth > 1 {
            found.extend(license_files(&entry.path(), depth - 1)?);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_of_contained_libraries_are_found() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let write = |path: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("is in a folder")).expect("a folder can be made");
            fs::write(path, "text").expect("a file can be written");
        };
        for path in ["LICENSE-MIT", "zstd/COPYING", "src/license.rs", "a/b/LICENSE", "README.md"] {
            write(path);
        }
        let found = license_files(folder.path(), DEPTH).expect("it can be read");
        let names: Vec<_> = found.iter().map(|path| path.strip_prefix(folder.path()).expect("is in it")).collect();
        assert_eq!(names, [Path::new("LICENSE-MIT"), Path::new("zstd/COPYING")]);
    }
}
