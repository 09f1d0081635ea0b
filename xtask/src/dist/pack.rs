//! The packages, of the same contents: by cargo-deb, cargo-generate-rpm and tar. Their tables are in profiler/Cargo.toml.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::build::{Checkout, PROFILE};
use super::stage::SBOM;
use crate::command;

/// Name, and version requirement. Released versions differ in what they write.
const TOOLS: [(&str, &str); 2] = [("cargo-deb", "~3.8"), ("cargo-generate-rpm", "~0.21")];

/// Extension of the file with SHA-256 sums.
pub(super) const SUMS: &str = "sha256";

pub(super) fn install_tools() -> Result<()> {
    for (name, version) in TOOLS {
        if command::find(name).is_none() {
            command::run(command::cargo().args(["install", name, "--version", version, "--locked"]))?;
        }
    }
    Ok(())
}

/// Returns the files of the release. The last are the SHA-256 sums of the others.
pub(super) fn pack(checkout: &Checkout, root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let name = format!("heapbpf-{}-{}-linux", checkout.version, checkout.architecture.name());
    let files = vec![
        debian(checkout, folder)?,
        rpm(checkout, folder)?,
        archive(checkout, root, folder, &name)?,
        copied(&root.join("usr/bin/heapbpf"), folder.join(&name))?,
        copied(&root.join(SBOM), folder.join(format!("{name}.cdx.json")))?,
    ];
    let names: Vec<&OsStr> = files.iter().filter_map(|file| file.file_name()).collect();
    let sums = command::output(Command::new("sha256sum").arg("--").args(names).current_dir(folder))?;
    let path = folder.join(format!("{name}.{SUMS}"));
    fs::write(&path, sums)?;
    Ok(files.into_iter().chain([path]).collect())
}

fn debian(checkout: &Checkout, folder: &Path) -> Result<PathBuf> {
    let mut cargo = checkout.command(command::cargo());
    cargo.args(["deb", "--package", "heapbpf", "--no-build", "--no-strip", "--locked"]);
    cargo.args(["--target", checkout.architecture.triple()]);
    command::run(cargo.args(["--profile", PROFILE, "--output"]).arg(folder))?;
    only(folder, "deb")
}

fn rpm(checkout: &Checkout, folder: &Path) -> Result<PathBuf> {
    let mut cargo = checkout.command(command::cargo());
    cargo.args(["generate-rpm", "--package", "profiler", "--profile", PROFILE]);
    cargo.args(["--target", checkout.architecture.triple(), "--target-dir"]);
    command::run(cargo.arg(&checkout.target).arg("--output").arg(folder))?;
    only(folder, "rpm")
}

/// Unpacks into a prefix such as /usr/local.
fn archive(checkout: &Checkout, root: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.tar.gz"));
    let script = r#"tar --directory="$1" --create --sort=name --format=ustar --mtime="@$2" --owner=0 --group=0 \
        --numeric-owner --transform="s,^usr,$3," usr | gzip --best --no-name >"$4""#;
    let mut shell = Command::new("bash");
    shell.args(["-o", "pipefail", "-euc", script, "bash"]).arg(root).arg(checkout.epoch.to_string()).arg(name);
    command::run(shell.arg(&path))?;
    Ok(path)
}

fn copied(from: &Path, to: PathBuf) -> Result<PathBuf> {
    fs::copy(from, &to).with_context(|| format!("could not copy `{}` to `{}`", from.display(), to.display()))?;
    Ok(to)
}

/// The only file with this extension.
fn only(folder: &Path, extension: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found: Vec<_> = entries.filter(|path| path.extension() == Some(OsStr::new(extension))).collect();
    ensure!(found.len() == 1, "one .{extension} file was expected in `{}`: {found:?}", folder.display());
    Ok(found.into_iter().next().unwrap_or_default())
}
