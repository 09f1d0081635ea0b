//! The contents of the packages, in the folders where they are installed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, ensure};
use regex::Regex;

use super::build::Checkout;
use super::dependencies::Dependencies;
use super::licences;
use crate::command;

const DOCUMENTATION: &str = "usr/share/doc/heapbpf";
const MANUAL: &str = "usr/share/man/man1";
/// Shell, and the file of its completions. Fedora's folder for zsh is in the table `generate-rpm` of profiler/Cargo.toml.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/heapbpf"),
    ("zsh", "usr/share/zsh/vendor-completions/_heapbpf"),
    ("fish", "usr/share/fish/vendor_completions.d/heapbpf.fish"),
];
const UNITS: [&str; 2] = ["heapbpf@.service", "heapbpf-agent.service"];
pub(super) const SBOM: &str = "usr/share/doc/heapbpf/heapbpf.cdx.json";

/// Returns the folder `root`. `runnable` is the same program for this machine. cargo-deb and cargo-generate-rpm read it through a link next to the binary.
pub(super) fn stage(checkout: &Checkout, binary: &Path, runnable: &Path, folder: &Path) -> Result<PathBuf> {
    let root = folder.join("root");
    copy(binary, &root.join("usr/bin/heapbpf"))?;
    for page in manual_pages(runnable)? {
        let arguments: Vec<&str> = std::iter::once("man").chain(page.split_once('-').map(|(_, name)| name)).collect();
        let path = root.join(MANUAL).join(format!("{page}.1"));
        write(&path, command::output(Command::new(runnable).args(arguments))?.as_bytes())?;
        command::run(Command::new("gzip").args(["--best", "--no-name"]).arg(&path))?;
    }
    for (shell, path) in COMPLETIONS {
        write(&root.join(path), command::output(Command::new(runnable).args(["completions", shell]))?.as_bytes())?;
    }
    for unit in UNITS {
        copy(&checkout.root.join("packaging").join(unit), &root.join("usr/lib/systemd/system").join(unit))?;
    }
    let config = command::output(Command::new(runnable).args(["agent", "--print-config"]))?;
    write(&root.join("etc/heapbpf/agent.toml"), config.as_bytes())?;
    documentation(checkout, &root)?;
    set_modes(&root)?;
    let link = checkout.built().join("root");
    if link.symlink_metadata().is_ok() {
        fs::remove_file(&link).with_context(|| format!("could not remove `{}`", link.display()))?;
    }
    std::os::unix::fs::symlink(&root, &link).with_context(|| format!("could not make `{}`", link.display()))?;
    Ok(root)
}

fn documentation(checkout: &Checkout, root: &Path) -> Result<()> {
    let folder = root.join(DOCUMENTATION);
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&checkout.root.join(name), &folder.join(name))?;
    }
    for entry in fs::read_dir(checkout.root.join("docs"))? {
        let path = entry?.path();
        let name = path.file_name().context("an entry of a folder has a name")?;
        copy(&path, &folder.join("docs").join(name))?;
    }
    let dependencies = Dependencies::of(checkout)?;
    write(&folder.join("copyright"), licences::text(checkout, &dependencies)?.as_bytes())?;
    let bill = serde_json::to_vec_pretty(&dependencies.bill_of_materials(checkout)?)?;
    write(&root.join(SBOM), &bill)
}

/// `heapbpf`, and the pages that it refers to.
fn manual_pages(binary: &Path) -> Result<Vec<String>> {
    let main = command::output(Command::new(binary).arg("man"))?;
    let pages: Vec<String> = std::iter::once("heapbpf".to_owned()).chain(references(&main)).collect();
    ensure!(pages.len() > 2, "the manual page refers to no page of a command");
    Ok(pages)
}

fn references(page: &str) -> Vec<String> {
    static REFERENCE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^(heapbpf\\-[a-z]+)\(1\)$").expect("is a regular expression"));
    let names = page.lines().filter_map(|line| Some(REFERENCE.captures(line)?[1].replace(r"\-", "-")));
    names.filter(|name| name != "heapbpf-help").collect()
}

/// Independent of the umask and of the modes of the checkout.
fn set_modes(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            set_modes(&path)?;
        } else {
            let mode = if path.ends_with("usr/bin/heapbpf") { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("could not copy `{}` to `{}`", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    make_parent(path)?;
    fs::write(path, bytes).with_context(|| format!("could not write `{}`", path.display()))
}

fn make_parent(path: &Path) -> Result<()> {
    let folder = path.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("could not make the folder `{}`", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_commands_are_found_in_the_manual_page() {
        let page =
            ".SH SUBCOMMANDS\n.TP\nheapbpf\\-record(1)\nProfile\n.TP\nheapbpf\\-leaks(1)\nFind heapbpf\\-x(1) here\n";
        assert_eq!(references(page), ["heapbpf-record", "heapbpf-leaks"]);
    }
}
