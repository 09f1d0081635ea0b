//! Packages of every Debian suite, beside the machine's own package lists: apt with lists, cache and status in a folder of
//! ours. Installs nothing and needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::command;

/// Suites that have kernels, by the label of the archive they are in. The mirrors are those that this machine uses.
const SUITES: [(&str, &[&str]); 2] = [
    ("Debian", &["bullseye", "bookworm", "trixie", "trixie-backports", "sid"]),
    ("Debian-Security", &["bullseye-security", "bookworm-security", "trixie-security"]),
];

/// apt with a state of its own.
#[derive(Debug)]
pub(super) struct Archive {
    configuration: PathBuf,
}

impl Archive {
    /// Prepares `folder`; downloads nothing.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        if command::find("apt-get").is_none() {
            bail!("this machine has no apt-get to fetch a kernel with: specify an image, `--kernel PATH`");
        }
        let mirrors = command::output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ]))?;
        let sources = sources(&mirrors);
        if sources.is_empty() {
            bail!("this machine's apt has no Debian mirror to fetch a kernel from: specify an image, `--kernel PATH`");
        }
        for part in ["state/lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).with_context(|| format!("cannot create `{}`", folder.display()))?;
        }
        let write = |name: &str, content: String| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write `{}`", path.display()))?;
            Ok(path)
        };
        let list = write("sources.list", sources)?;
        let status = write("status", String::new())?;
        let configuration = write(
            "apt.conf",
            format!(
                "Dir::State {:?};\nDir::State::status {status:?};\nDir::Cache {:?};\nDir::Etc::sourcelist {list:?};\n\
                 Dir::Etc::sourceparts \"/dev/null\";\nAPT::Architectures \"amd64\";\n",
                folder.join("state"),
                folder.join("cache"),
            ),
        )?;
        Ok(Self { configuration })
    }

    /// Downloads new package lists.
    pub(super) fn update(&self) -> Result<()> {
        command::run(self.apt("apt-get").args(["update", "--quiet"]))
    }

    /// Packages whose names match, as `NAME - DESCRIPTION` lines.
    pub(super) fn search(&self, pattern: &str) -> Result<String> {
        command::output(self.apt("apt-cache").args(["search", "--names-only", pattern]))
    }

    /// Downloads a package into `folder`.
    pub(super) fn download(&self, package: &str, folder: &Path) -> Result<()> {
        command::run(self.apt("apt-get").args(["download", "--quiet", package]).current_dir(folder))
    }

    fn apt(&self, program: &str) -> Command {
        let mut apt = Command::new(program);
        apt.env("APT_CONFIG", &self.configuration);
        apt
    }
}

/// Lines for `sources.list(5)` of all suites, from `LABEL URI` lines of the machine's own sources.
fn sources(mirrors: &str) -> String {
    let mut lines = String::new();
    for (label, suites) in SUITES {
        let uri = mirrors.lines().filter_map(|line| line.split_once(' ')).find(|(its, _)| *its == label);
        let Some((_, uri)) = uri else { continue };
        for suite in suites {
            lines.push_str(&format!("deb {uri} {suite} main\n"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_comes_from_the_machines_mirrors() {
        let lines = sources("Node m://node/\nDebian m://one/debian/\nDebian m://two/\nDebian-Security m://three/\n");
        assert!(lines.starts_with("deb m://one/debian/ bullseye main\n"), "{lines}");
        assert!(lines.contains("deb m://one/debian/ sid main\n"), "{lines}");
        assert!(lines.ends_with("deb m://three/ trixie-security main\n"), "{lines}");
        assert_eq!(sources("Node m://node/\n"), "");
    }
}
