//! Where things are: the repository's root and cargo's target directory. Knows paths only.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::command;

/// The repository this xtask was built from.
pub(crate) struct Repository {
    /// Its root, without symbolic links.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, which need not be below the root.
    pub(crate) target: PathBuf,
}

impl Repository {
    /// Asks cargo, so that `CARGO_TARGET_DIR` and configuration files are honoured.
    pub(crate) fn find() -> Result<Self> {
        let root = root()?;
        let metadata = command::output(
            Command::new(cargo())
                .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
                .arg(root.join("Cargo.toml")),
        )?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata).context("cargo metadata wrote no JSON")?;
        let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        Ok(Self { root, target: target.into() })
    }
}

/// The repository's root, for verbs that build nothing.
pub(crate) fn root() -> Result<PathBuf> {
    let manifest_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest_folder.parent().context("xtask lies at the root of the file system")?;
    root.canonicalize().with_context(|| format!("the repository `{}` has moved: build xtask again", root.display()))
}

/// The cargo that runs this xtask, for everything in user space.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}
