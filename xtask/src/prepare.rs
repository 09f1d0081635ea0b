//! `cargo xtask prepare`: installs what tests start besides heapbpf and what they compile.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::command::{self, Repository};
use crate::{interpreters, packages, viewers};

/// The first version with all settings of `.config/nextest.toml`.
const NEXTEST: &str = "^0.9.143";
pub(crate) const INTERPRETERS: &str = "HEAPBPF_INTERPRETERS";

/// Installs what tests need, besides what they compile.
///
/// These are Debian packages (with apt-get), cargo-nextest (with `cargo install`), viewers (`cargo xtask viewers`) and interpreters
/// (`cargo xtask interpreters`). What is there already is left as it is. `cargo xtask test` does this, too: by itself it takes
/// minutes of waiting for the network, which `.ci/run` spends beside the first checks.
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: &Arguments) -> Result<()> {
    tools()?;
    programs(&Repository::find()?).map(drop)
}

/// What is installed in folders.
pub(crate) struct Programs {
    pub(crate) viewers: PathBuf,
    pub(crate) interpreters: PathBuf,
}

/// Installs packages and cargo-nextest.
pub(crate) fn tools() -> Result<()> {
    packages::install(packages::TESTS)?;
    packages::install(packages::VIEWERS)?;
    install_nextest()
}

/// Installs viewers and interpreters, for which it takes some of the packages.
pub(crate) fn programs(repository: &Repository) -> Result<Programs> {
    let viewers = viewers::install(repository)?;
    let interpreters = interpreters(repository, &viewers)?;
    Ok(Programs { viewers, interpreters })
}

fn install_nextest() -> Result<()> {
    if command::find("cargo-nextest").is_some() {
        return Ok(());
    }
    eprintln!("installing cargo-nextest, which runs the tests");
    command::run(command::cargo().args(["install", "cargo-nextest", "--version", NEXTEST, "--locked", "--debug"]))
}

/// Returns the folder that the user has set, or installs one.
fn interpreters(repository: &Repository, viewers: &Path) -> Result<PathBuf> {
    match std::env::var_os(INTERPRETERS).filter(|given| !given.is_empty()) {
        Some(given) => Ok(std::path::absolute(given)?),
        None => interpreters::install(repository, viewers),
    }
}
