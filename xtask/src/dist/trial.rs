//! Tests of the packages: each is installed where nothing else of this machine helps it, and used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::build::Checkout;
use super::pack::SUMS;
use super::read;
use crate::command::{self, Privilege};
use crate::packages;

const CHROOT: &str = include_str!("chroot.sh");
/// Of the site that apt uses: it may be a mirror.
const DEBOOTSTRAP: &str = r#"
site=$(apt-get indextargets --format '$(SITE) $(CODENAME)' 'Identifier: Packages' | awk -v name="$2" '$2 == name { print $1; exit }')
/usr/sbin/debootstrap --variant=minbase "$2" "$1" "$site"
"#;
const UNIT: &str = "usr/lib/systemd/system/heapbpf@.service";
/// dpkg and perl-base are in every Debian system, and need not be installed.
const DEBIAN: &str = "bookworm";

pub(super) fn run(checkout: &Checkout, folder: &Path, files: &[PathBuf]) -> Result<()> {
    packages::install(packages::DIST)?;
    let file = |extension: &str| {
        let found = files.iter().find(|file| file.extension().is_some_and(|found| found == extension));
        found.with_context(|| format!("there is no .{extension} file"))
    };
    check_sums(file(SUMS)?, folder)?;
    rpm(file("rpm")?, &folder.join("root"))?;
    debian(file("deb")?)?;
    crates(checkout)?;
    println!("the .deb, the .rpm and the crate were installed and work");
    Ok(())
}

fn check_sums(sums: &Path, folder: &Path) -> Result<()> {
    let mut check = Command::new("sha256sum");
    command::run(check.args(["--check", "--quiet"]).arg(std::path::absolute(sums)?).current_dir(folder))
}

/// Installs into an empty folder, with a package database of its own.
fn rpm(package: &Path, root: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut rpm = as_root("rpm")?;
    rpm.arg("--root").arg(folder.path()).args(["--force-debian", "--install"]);
    command::run(rpm.arg(std::path::absolute(package)?))?;
    for path in ["usr/bin/heapbpf", "usr/share/man/man1/heapbpf.1.gz", "etc/heapbpf/agent.toml", UNIT] {
        let installed = read(&folder.path().join(path))?;
        ensure!(installed == read(&root.join(path))?, "the .rpm installed another `{path}` than was packed");
    }
    let completions = folder.path().join("usr/share/zsh/site-functions/_heapbpf");
    ensure!(completions.exists(), "the .rpm has no completions for zsh");
    let mut binary = Command::new(folder.path().join("usr/bin/heapbpf"));
    println!("installed from the .rpm: {}", command::output(binary.arg("--version"))?.trim());
    remove(folder.path())
}

/// Installs into a new Debian system, records a process there, and inspects the reports.
fn debian(package: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let root = folder.path().join(DEBIAN);
    command::run(as_root("sh")?.args(["-euc", DEBOOTSTRAP, "sh"]).arg(&root).arg(DEBIAN))?;
    let mut shell = as_root("unshare")?;
    shell.args(["--mount", "--propagation", "private", "bash", "-o", "pipefail", "-euc", CHROOT, "bash"]);
    command::run(shell.arg(&root).arg(package))?;
    let report: Value = serde_json::from_slice(&read(&root.join("tmp/heap.json"))?)?;
    check_report(&report)?;
    // The page's data is compressed.
    for (name, content) in [("heap.html", "<!doctype html>"), ("heap.svg", "perl")] {
        let text = String::from_utf8(read(&root.join("tmp").join(name))?)?;
        ensure!(text.to_lowercase().contains(content), "`{name}` does not contain `{content}`");
    }
    remove(folder.path())
}

/// The process allocates a thousand strings of 1 KiB a second for 3 s; a busy machine may let it make a third of them.
fn check_report(report: &Value) -> Result<()> {
    let target = report["targets"].as_array().and_then(|targets| targets.first()).context("no process was recorded")?;
    let live = target["totals"]["live_bytes"].as_f64().context("the report has no live bytes")?;
    ensure!(live > 1e6, "the process kept {live} bytes, about 3 MB were expected");
    let stacks =
        target["callsites"].as_array().into_iter().flatten().filter_map(|callsite| callsite["stack"].as_array());
    let functions: Vec<&str> = stacks.flatten().filter_map(|frame| frame["function"].as_str()).collect();
    if !functions.iter().any(|function| function.starts_with("Perl_")) {
        bail!("no function of perl has a name: {functions:?}");
    }
    println!("recorded in the chroot: {live} live bytes");
    Ok(())
}

/// What is published: the agent, and what it is made of.
const CRATES: [&str; 6] =
    ["profiler-common", "heapbpf-base", "heapbpf-linux", "heapbpf-ledger", "heapbpf-report", "heapbpf"];

/// `cargo install` with a registry in a folder, which has the crates of this repository as they would be published, and
/// their dependencies. `CARGO_HOME` is new: what is not in that folder is missing.
fn crates(checkout: &Checkout) -> Result<()> {
    let folder = checkout.target.join("install");
    let (vendor, packaged, home) = (folder.join("registry"), folder.join("packaged"), folder.join("home"));
    command::empty_folder(&folder)?;
    let mut vendoring = checkout.command(command::cargo());
    command::output(vendoring.args(["vendor", "--locked", "--versioned-dirs"]).arg(&vendor))?;
    let mut package = checkout.command(command::cargo());
    package.args(["package", "--no-verify", "--allow-dirty"]);
    package.args(CRATES.iter().flat_map(|name| ["--package", name]));
    command::run(package.env("CARGO_TARGET_DIR", &packaged))?;
    for name in CRATES {
        let file = packaged.join("package").join(format!("{name}-{}.crate", checkout.version));
        unpack(&file, &vendor, &format!("{name}-{}", checkout.version))?;
    }
    let mut install = command::cargo();
    install.current_dir("/").env("CARGO_HOME", home).env("CARGO_TARGET_DIR", folder.join("target"));
    install.args(["install", "heapbpf", "--debug", "--offline", "--locked", "--version", &checkout.version, "--root"]);
    install.arg(&folder).args(["--config", r#"source.crates-io.replace-with="local""#, "--config"]);
    command::run(install.arg(format!("source.local.directory={:?}", vendor.display().to_string())))?;
    let installed = folder.join("bin/heapbpf");
    let version = command::output(Command::new(&installed).arg("--version"))?;
    ensure!(version.trim() == format!("heapbpf {}", checkout.version), "cargo installed `{}`", version.trim());
    // Loads the BPF object, which has to be in the crate.
    command::run(as_root(&installed)?.arg("doctor"))?;
    fs::remove_dir_all(&folder).with_context(|| format!("could not remove `{}`", folder.display()))
}

/// Adds a crate to a folder as `cargo vendor` would.
fn unpack(file: &Path, vendor: &Path, name: &str) -> Result<()> {
    command::run(Command::new("tar").arg("--extract").arg("--file").arg(file).arg("--directory").arg(vendor))?;
    let sum = command::output(Command::new("sha256sum").arg(file))?;
    let sum = sum.split(' ').next().context("sha256sum printed nothing")?;
    let checksums = serde_json::json!({ "files": {}, "package": sum });
    fs::write(vendor.join(name).join(".cargo-checksum.json"), checksums.to_string())?;
    Ok(())
}

fn as_root(program: impl AsRef<std::ffi::OsStr>) -> Result<Command> {
    Privilege::find().command(program).context("installing packages requires root, and sudo is not available")
}

/// Removes files of root, too.
fn remove(folder: &Path) -> Result<()> {
    command::run(as_root("rm")?.args(["--recursive", "--force", "--one-file-system"]).arg(folder))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_need_bytes_and_names() {
        let report = |live: f64, function: &str| {
            let callsite = json!({ "stack": [{ "function": function }] });
            json!({ "targets": [{ "totals": { "live_bytes": live }, "callsites": [callsite] }] })
        };
        assert!(check_report(&report(3e6, "Perl_sv_grow")).is_ok());
        assert!(check_report(&report(3e6, "perl+0x1234")).is_err());
        assert!(check_report(&report(10.0, "Perl_sv_grow")).is_err());
        assert!(check_report(&json!({ "targets": [] })).is_err());
    }
}
