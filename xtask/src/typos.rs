//! Misspelled words, which `typos` finds in text and in names. `_typos.toml` lists exceptions.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::command::{self, Repository};
use crate::{packages, viewers};

/// A program in a wheel of PyPI, in an exact version: another one knows other words.
const REQUIREMENT: &str = "typos==1.52.0";

/// Fails if a word in a file that git tracks or would track is misspelled. Installs `typos` below `target` at first.
pub(crate) fn check(repository: &Repository) -> Result<()> {
    let environment = repository.target.join(REQUIREMENT);
    let program = environment.join("bin/typos");
    if !program.exists() {
        packages::install("python3 python3-venv")?;
        viewers::install_python(&environment, [REQUIREMENT])?;
    }
    command::run(Command::new(program).current_dir(&repository.root).args(["--format", "brief"]))
        .context("words are misspelled; exceptions are in `_typos.toml`")
}
