//! The repository's root, cargo's target directory, and the programs built there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::command;

pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Repository {
    /// Asks cargo, so that `CARGO_TARGET_DIR` and configuration files are honoured.
    pub(crate) fn find() -> Result<Self> {
        let root = root()?;
        let metadata = command::output(
            cargo()
                .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
                .arg(root.join("Cargo.toml")),
        )?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata).context("cargo metadata wrote no JSON")?;
        let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        Ok(Self { root, target: target.into() })
    }

    pub(crate) fn heapbpf(&self) -> Result<PathBuf> {
        if let Some(given) = std::env::var_os("HEAPBPF_BIN") {
            return Ok(std::path::absolute(given)?);
        }
        self.build_release(&["--bin", "heapbpf"])?;
        Ok(self.target.join("release/heapbpf"))
    }

    pub(crate) fn example(&self, name: &str) -> Result<PathBuf> {
        self.build_release(&["--example", name])?;
        Ok(self.target.join("release/examples").join(name))
    }

    fn build_release(&self, arguments: &[&str]) -> Result<()> {
        command::run(self.cargo().args(["build", "--release", "--package", "heapbpf"]).args(arguments))
    }

    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = cargo();
        cargo.current_dir(&self.root);
        cargo
    }
}

pub(crate) fn root() -> Result<PathBuf> {
    let manifest_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest_folder.parent().context("xtask is at the root of the file system")?;
    root.canonicalize().with_context(|| format!("the repository `{}` has moved: build xtask again", root.display()))
}

/// The cargo that runs this xtask, for everything in user space.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
}
