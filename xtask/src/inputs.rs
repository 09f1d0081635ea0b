//! Fingerprints of committed files and of what they are built from: checks skip what has not changed since it was built.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ignore::WalkBuilder;
use sha2::{Digest as _, Sha256};

/// What is built from what, both as paths in the repository: files or folders. Files that git ignores are none of them.
pub(crate) struct Recipe<'a> {
    pub(crate) from: &'a [&'a str],
    pub(crate) built: &'a [&'a str],
    /// The committed file with the fingerprint.
    pub(crate) record: &'a str,
}

impl Recipe<'_> {
    /// Whether neither the inputs nor what is built from them has changed since it was built.
    pub(crate) fn is_unchanged(&self, root: &Path) -> Result<bool> {
        let recorded = fs::read_to_string(root.join(self.record)).unwrap_or_default();
        Ok(recorded.trim() == self.fingerprint(root)?)
    }

    /// Records that it was just built.
    pub(crate) fn record(&self, root: &Path) -> Result<()> {
        let path = root.join(self.record);
        let content = self.fingerprint(root)? + "\n";
        fs::write(&path, content).with_context(|| format!("could not write `{}`", path.display()))
    }

    fn fingerprint(&self, root: &Path) -> Result<String> {
        let mut hasher = Sha256::new();
        for name in self.from.iter().chain(self.built) {
            let mut walk = WalkBuilder::new(root.join(name));
            walk.hidden(false).sort_by_file_path(Path::cmp);
            for entry in walk.build() {
                let entry = entry.with_context(|| format!("cannot read the folder `{name}`"))?;
                let path = entry.path();
                // The record cannot cover itself.
                if !entry.file_type().is_some_and(|kind| kind.is_file()) || path == root.join(self.record) {
                    continue;
                }
                let content = fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
                let relative = path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
                for part in [relative.as_bytes(), &content] {
                    hasher.update(part.len().to_le_bytes());
                    hasher.update(part);
                }
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_inputs_and_of_what_is_built_are_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let write = |name: &str, content: &str| {
            fs::create_dir_all(root.join(name).parent().expect("it has one")).expect("it can be created");
            fs::write(root.join(name), content).expect("it can be written");
        };
        write("source/a.ts", "a");
        write("source/deep/b.ts", "b");
        write("dist/page.js", "ab");
        let recipe = Recipe { from: &["source"], built: &["dist"], record: "dist/source.sha256" };
        let is_unchanged = || recipe.is_unchanged(root).expect("readable");
        assert!(!is_unchanged(), "nothing is recorded");
        recipe.record(root).expect("writable");
        assert!(is_unchanged());
        for (name, original, changed) in [("source/deep/b.ts", "b", "c"), ("dist/page.js", "ab", "")] {
            write(name, changed);
            assert!(!is_unchanged(), "{name}");
            write(name, original);
            assert!(is_unchanged());
        }
        write("source/c.ts", "");
        assert!(!is_unchanged(), "a new file");
    }
}
