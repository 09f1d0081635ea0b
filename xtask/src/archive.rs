//! Debian's package archive: apt with a state of its own, which needs no root and leaves the machine's packages alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::architecture::Architecture;
use crate::command;

/// The label of an archive (`Debian`, `Debian-Security`), and suites in it.
pub(crate) type Suites<'a> = (&'a str, &'a [&'a str]);

#[derive(Debug)]
pub(crate) struct Archive {
    configuration: PathBuf,
    downloads: PathBuf,
}

impl Archive {
    /// Writes the configuration of an apt that knows only these suites, on the mirrors of this machine, and regards no
    /// package as installed.
    pub(crate) fn open(folder: &Path, architecture: Architecture, suites: &[Suites<'_>]) -> Result<Self> {
        if command::find("apt-get").is_none() {
            bail!("this machine has no apt-get");
        }
        let mirrors = command::output(Command::new("apt-get").args([
            "indextargets",
            "--format",
            "$(LABEL) $(REPO_URI)",
            "Created-By: Packages",
        ]))?;
        let sources = sources(&mirrors, suites);
        if sources.is_empty() {
            bail!("this machine's apt has no Debian mirror");
        }
        let (state, cache) = (folder.join("state"), folder.join("cache"));
        let downloads = cache.join("archives");
        for part in [state.join("lists/partial"), downloads.join("partial")] {
            fs::create_dir_all(&part).with_context(|| format!("cannot create `{}`", part.display()))?;
        }
        let write = |name: &str, content: String| -> Result<PathBuf> {
            let path = folder.join(name);
            fs::write(&path, content).with_context(|| format!("cannot write `{}`", path.display()))?;
            Ok(path)
        };
        let list = write("sources.list", sources)?;
        let status = write("status", String::new())?;
        let architecture = architecture.debian();
        let configuration = write(
            "apt.conf",
            format!(
                "Dir::State {state:?};\nDir::State::status {status:?};\nDir::Cache {cache:?};\n\
                 Dir::Etc::sourcelist {list:?};\nDir::Etc::sourceparts \"/dev/null\";\nAPT::Architecture {architecture:?};\n\
                 APT::Architectures {architecture:?};\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
                 Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n",
            ),
        )?;
        Ok(Self { configuration, downloads })
    }

    pub(crate) fn apt(&self, program: &str) -> Command {
        let mut apt = Command::new(program);
        apt.env("APT_CONFIG", &self.configuration);
        apt
    }

    /// Downloads packages, without those that they depend on, and unpacks them into a folder, unless it has them already.
    /// A package may be followed by `=VERSION`.
    pub(crate) fn unpack(&self, packages: &[&str], folder: &Path) -> Result<()> {
        // Written last, so a folder that has it is complete.
        let stamp = folder.join(".packages");
        let wanted = packages.join("\n");
        if fs::read_to_string(&stamp).is_ok_and(|unpacked| unpacked == wanted) {
            return Ok(());
        }
        command::empty_folder(folder)?;
        let downloads = folder.join(".downloads");
        command::empty_folder(&downloads)?;
        command::run(self.apt("apt-get").args(["update", "--quiet"]))?;
        command::run(self.apt("apt-get").args(["download", "--quiet"]).args(packages).current_dir(&downloads))?;
        merge_usr(folder)?;
        for entry in fs::read_dir(&downloads)? {
            extract(&entry?.path(), folder)?;
        }
        fs::remove_dir_all(&downloads)?;
        fs::write(&stamp, wanted).with_context(|| format!("cannot write `{}`", stamp.display()))
    }

    /// Returns the packages that `apt-get install --download-only` has left, sorted.
    pub(crate) fn downloaded(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.downloads);
        let entries = entries.with_context(|| format!("cannot read `{}`", self.downloads.display()))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
        let mut packages: Vec<_> = paths.into_iter().filter(is_package).collect();
        packages.sort();
        Ok(packages)
    }
}

/// Makes the links of a merged `/usr`, which packages before Debian 13 expect to be there.
pub(crate) fn merge_usr(root: &Path) -> Result<()> {
    for folder in ["bin", "sbin", "lib", "lib64"] {
        let merged = Path::new("usr").join(folder);
        fs::create_dir_all(root.join(&merged))?;
        symlink(&merged, root.join(folder))
            .with_context(|| format!("cannot make the link `{folder}` in `{}`", root.display()))?;
    }
    Ok(())
}

/// Extracts the files of a package. Runs none of its scripts.
pub(crate) fn extract(package: &Path, root: &Path) -> Result<()> {
    let script =
        r#"dpkg-deb --fsys-tarfile "$1" | tar --extract --keep-directory-symlink --no-same-owner --directory "$2""#;
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script, "bash"]).arg(package).arg(root);
    command::output(&mut shell).map(|_| ())
}

/// The name of this machine's Debian release: programs that its compilers build require its libraries, or later ones.
pub(crate) fn release() -> Result<String> {
    let text = fs::read_to_string("/etc/os-release").context("cannot read `/etc/os-release`")?;
    release_of(&text).context("`/etc/os-release` does not name a release of Debian")
}

fn release_of(text: &str) -> Option<String> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value("ID").filter(|id| *id == "debian")?;
    Some(value("VERSION_CODENAME")?.trim_matches('"').to_owned())
}

/// Lines for `sources.list(5)` of all suites, from `LABEL URI` lines of the machine's sources.
fn sources(mirrors: &str, suites: &[Suites<'_>]) -> String {
    let mut lines = String::new();
    for (label, suites) in suites {
        let uri = mirrors.lines().filter_map(|line| line.split_once(' ')).find(|(its, _)| its == label);
        let Some((_, uri)) = uri else { continue };
        for suite in *suites {
            lines.push_str(&format!("deb {uri} {suite} main\n"));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [Suites<'_>; 2] = [("Debian", &["bullseye", "sid"]), ("Debian-Security", &["trixie-security"])];

    #[test]
    fn every_suite_comes_from_the_machines_mirrors() {
        let mirrors = "Node m://node/\nDebian m://one/debian/\nDebian m://two/\nDebian-Security m://three/\n";
        assert_eq!(
            sources(mirrors, &SUITES),
            "deb m://one/debian/ bullseye main\ndeb m://one/debian/ sid main\ndeb m://three/ trixie-security main\n"
        );
        assert_eq!(sources(mirrors, &SUITES[1..]), "deb m://three/ trixie-security main\n");
        assert_eq!(sources("Node m://node/\n", &SUITES), "");
    }

    #[test]
    fn releases_of_debian_have_names() {
        let text = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(release_of(text).as_deref(), Some("bookworm"));
        assert_eq!(release_of("ID=fedora\nVERSION_CODENAME=\"\"\n"), None);
        assert_eq!(release_of("ID=debian\n"), None);
    }
}
