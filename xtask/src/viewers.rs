//! `cargo xtask viewers`: installs third-party readers of heapbpf's formats, in exact versions. The registries are
//! those of pip's and npm's configuration. Debian packages are in `packages`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::command::{self, Repository};
use crate::packages;

const PYTHON_LIST: &str = "requirements.txt";
const NODE_LIST: &str = "package.json";
/// Written last, with both lists: an incomplete installation has none.
const STAMP: &str = "installed";

/// Installs the programs that tests open profiles with.
///
/// `target/viewers/venv` is a Python environment with the packages of `tests/viewers/requirements.txt`, including node and npm;
/// `target/viewers/node_modules` has those of `tests/viewers/package.json`. Both are reused while the lists have not changed.
/// `cargo xtask test` does this, too.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask viewers             installs missing packages
  cargo xtask viewers --again     reinstalls everything")]
pub(crate) struct Arguments {
    /// Reinstall everything.
    #[arg(long)]
    again: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    packages::install(packages::VIEWERS)?;
    let repository = Repository::find()?;
    if arguments.again {
        command::empty_folder(&folder(&repository))?;
    }
    let viewers = install(&repository)?;
    println!("{}", viewers.display());
    Ok(())
}

/// Returns the folder, which is `HEAPBPF_VIEWERS` of tests.
pub(crate) fn install(repository: &Repository) -> Result<PathBuf> {
    let viewers = folder(repository);
    fs::create_dir_all(&repository.target)?;
    // `prepare` may be running beside another command.
    let lock = File::create(repository.target.join("viewers.lock"))?;
    lock.lock()?;
    let lists = repository.root.join("tests/viewers");
    let read = |name| fs::read_to_string(lists.join(name)).with_context(|| format!("could not read `{name}`"));
    let wanted = format!("{}\n{}", read(PYTHON_LIST)?, read(NODE_LIST)?);
    if fs::read_to_string(viewers.join(STAMP)).is_ok_and(|found| found == wanted) {
        return Ok(viewers);
    }
    eprintln!("installing readers of profiles into {}", viewers.display());
    command::empty_folder(&viewers)?;
    install_python(&viewers.join("venv"), ["--requirement".into(), lists.join(PYTHON_LIST)])?;
    install_node(&lists, &viewers)?;
    fs::write(viewers.join(STAMP), wanted)?;
    Ok(viewers)
}

fn folder(repository: &Repository) -> PathBuf {
    repository.target.join("viewers")
}

/// Makes a Python environment. `requirements` are arguments of `pip install`.
pub(crate) fn install_python(
    environment: &Path,
    requirements: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    command::run(Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(environment))?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    command::run(pip.args(requirements))
}

/// Returns npm of the Python environment, with its node: a distribution's may be too old.
pub(crate) fn npm(viewers: &Path) -> Result<Command> {
    let programs = viewers.join("venv/bin");
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs.clone()).chain(std::env::split_paths(&inherited)))?;
    let mut npm = Command::new(programs.join("npm"));
    npm.env("PATH", path);
    Ok(npm)
}

fn install_node(lists: &Path, viewers: &Path) -> Result<()> {
    fs::copy(lists.join(NODE_LIST), viewers.join(NODE_LIST))?;
    let mut npm = npm(viewers)?;
    npm.current_dir(viewers).args(["install", "--no-package-lock", "--ignore-scripts"]);
    command::run(npm.args(["--no-audit", "--no-fund", "--loglevel=error"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_contain_exact_versions_and_no_urls() {
        let lists = crate::command::root().expect("it has not moved").join("tests/viewers");
        let python = fs::read_to_string(lists.join(PYTHON_LIST)).expect("it is there");
        for line in python.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.contains("=="), "{line}");
        }
        let node = fs::read_to_string(lists.join(NODE_LIST)).expect("it is there");
        assert!(!python.contains("://") && !node.contains("://"));
        let node: serde_json::Value = serde_json::from_str(&node).expect("it is JSON");
        for (name, version) in node["dependencies"].as_object().expect("it has dependencies") {
            let version = version.as_str().expect("versions are text");
            assert!(version.chars().all(|c| c.is_ascii_digit() || c == '.'), "{name} {version}");
        }
    }
}
