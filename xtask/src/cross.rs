//! Builds heapbpf as a static program, also for another processor than this machine's: with rustup's compiler and its
//! standard library for that target, or with Debian's. Installs missing parts. Debian's standard library is unpacked below
//! cargo's target directory instead: installing it would require `dpkg --add-architecture`, which changes the packages that
//! apt offers on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::architecture::Architecture;
use crate::archive::{self, Archive};
use crate::command::{self, Repository, without_parent_cargo};
use crate::packages;

/// Linker of static programs for arm64, in the repository.
const STATIC_PIE: &str = "xtask/src/static-pie.sh";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compiler {
    Rustup,
    Debian,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

/// Builds with rustup's compiler, or else with Debian's. Returns the path of the program.
pub(crate) fn build(repository: &Repository, architecture: Architecture, profile: Profile) -> Result<PathBuf> {
    let toolchain = Toolchain::install(repository, architecture)?;
    toolchain.build(repository, profile)
}

/// A cargo that builds static programs for an architecture.
#[derive(Debug)]
pub(crate) struct Toolchain {
    architecture: Architecture,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The toolchain that runs this program.
    Own,
    /// Debian's, and the folder that has its standard library for the architecture.
    Debian(PathBuf),
}

impl Toolchain {
    pub(crate) fn install(repository: &Repository, architecture: Architecture) -> Result<Self> {
        let own = Self::install_from(repository, architecture, Compiler::Rustup);
        own.or_else(|own| {
            eprintln!("{own:#}; trying Debian's compiler");
            let debian = Self::install_from(repository, architecture, Compiler::Debian);
            debian.map_err(|debian| {
                debian.context(format!("no Rust compiler for {}: {own:#}; and Debian's", architecture.triple()))
            })
        })
    }

    pub(crate) fn install_from(
        repository: &Repository,
        architecture: Architecture,
        compiler: Compiler,
    ) -> Result<Self> {
        let source = match compiler {
            Compiler::Rustup => {
                add_compiler(repository, architecture)?;
                Source::Own
            }
            Compiler::Debian => {
                install_packages(architecture)?;
                Source::Debian(debian_library(repository, architecture)?)
            }
        };
        Ok(Self { architecture, source })
    }

    pub(crate) fn build(&self, repository: &Repository, profile: Profile) -> Result<PathBuf> {
        let triple = self.architecture.triple();
        let mut cargo = self.cargo(repository);
        // Naming the target, also the host's, keeps flags away from build scripts and macros, which must be dynamic.
        cargo.args(["build", "--package", "heapbpf", "--bin", "heapbpf", "--target", triple]);
        if profile == Profile::Release {
            cargo.arg("--release");
        }
        command::run(&mut cargo)?;
        let folder = if profile == Profile::Release { "release" } else { "debug" };
        Ok(repository.target.join(triple).join(folder).join("heapbpf"))
    }

    /// Builds an integration test of a package. Returns the path of the program.
    pub(crate) fn build_test(&self, repository: &Repository, package: &str, name: &str) -> Result<PathBuf> {
        let mut cargo = self.cargo(repository);
        cargo.args(["test", "--no-run", "--package", package, "--test", name]);
        cargo.args(["--target", self.architecture.triple(), "--message-format", "json-render-diagnostics"]);
        eprintln!("+ {}", command::line(&cargo));
        let messages = command::output(&mut cargo)?;
        executable(&messages, name).with_context(|| format!("cargo has not built the test `{name}`"))
    }

    fn cargo(&self, repository: &Repository) -> Command {
        let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
        let mut cargo = match &self.source {
            Source::Own => command::cargo(),
            Source::Debian(sysroot) => {
                flags.push(format!("--sysroot={}", sysroot.display()));
                let mut cargo = Command::new("/usr/bin/cargo");
                without_parent_cargo(&mut cargo).env("RUSTC", "/usr/bin/rustc");
                cargo.env("CARGO_TARGET_DIR", &repository.target);
                cargo
            }
        };
        cargo
            .current_dir(&repository.root)
            .env_remove("RUSTFLAGS")
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        set_linker(&mut cargo, &repository.root, self.architecture);
        cargo
    }
}

/// Sets the linker of static position-independent programs; `root` is the repository's. On x86-64, rustc uses its own linker for
/// programs for that processor, unless another one is specified. Crates that contain C derive the compiler's name from the target.
pub(crate) fn set_linker(cargo: &mut Command, root: &Path, architecture: Architecture) {
    let triple = architecture.triple().to_uppercase().replace('-', "_");
    let compiler = architecture.compiler();
    let linker = match architecture {
        Architecture::X86_64 if architecture.is_host() => return,
        Architecture::X86_64 => PathBuf::from(&compiler),
        Architecture::Aarch64 => root.join(STATIC_PIE),
    };
    cargo.env(format!("CARGO_TARGET_{triple}_LINKER"), linker).env("STATIC_PIE_COMPILER", compiler);
}

/// Installs what the toolchain that runs this program needs for an architecture.
pub(crate) fn add_compiler(repository: &Repository, architecture: Architecture) -> Result<()> {
    install_packages(architecture)?;
    add_target(repository, architecture)
}

fn install_packages(architecture: Architecture) -> Result<()> {
    match architecture {
        Architecture::Aarch64 if !architecture.is_host() => packages::install(packages::AARCH64),
        _ => Ok(()),
    }
}

/// The test's path in cargo's messages, one in a line.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut tests = messages.filter(|message| message["target"]["name"] == name);
    tests.find_map(|message| Some(message["executable"].as_str()?.into()))
}

/// Adds the standard library for the architecture to the toolchain that runs this program, unless it has it.
fn add_target(repository: &Repository, architecture: Architecture) -> Result<()> {
    let triple = architecture.triple();
    let has_library = || -> Result<bool> {
        let mut rustc = Command::new("rustc");
        rustc.args(["--print", "target-libdir", "--target", triple]).current_dir(&repository.root);
        Ok(has_library(Path::new(command::output(&mut rustc)?.trim())))
    };
    if has_library()? {
        return Ok(());
    }
    if command::find("rustup").is_none() {
        bail!("`rustc` has no standard library for {triple}, and there is no `rustup` to add it");
    }
    command::run(Command::new("rustup").args(["target", "add", triple]).current_dir(&repository.root))?;
    ensure!(has_library()?, "`rustup target add {triple}` succeeded, but `rustc` has no standard library for it");
    Ok(())
}

fn has_library(folder: &Path) -> bool {
    let is_library = |name: &str| name.starts_with("libstd-") && name.ends_with(".rlib");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_library))
}

/// Unpacks the standard library of the same version as `/usr/bin/rustc`. Returns its sysroot.
fn debian_library(repository: &Repository, architecture: Architecture) -> Result<PathBuf> {
    const PACKAGE: &str = "libstd-rust-web-dev";
    packages::install(packages::RUST)?;
    if architecture.is_host() {
        return Ok("/usr".into());
    }
    let version = command::output(Command::new("dpkg-query").args(["--show", "--showformat=${Version}", "rustc-web"]))?;
    let release = archive::release()?;
    let (updates, security) = (format!("{release}-updates"), format!("{release}-security"));
    let suites: [archive::Suites<'_>; 2] = [("Debian", &[&release, &updates]), ("Debian-Security", &[&security])];
    let folder = repository.target.join("cross").join(architecture.debian());
    let archive = Archive::open(&folder.join("apt"), architecture, &suites)?;
    let root = folder.join("root");
    archive.unpack(&[&format!("{PACKAGE}={version}")], &root)?;
    let sysroot = root.join("usr");
    let libraries = sysroot.join("lib/rustlib").join(architecture.triple()).join("lib");
    ensure!(has_library(&libraries), "`{PACKAGE}` {version} has no standard library in `{}`", libraries.display());
    Ok(sysroot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_test_is_in_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"unwind"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/a/other-1"}
{"reason":"compiler-artifact","target":{"name":"unwind"},"executable":"/a/unwind-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "unwind"), Some("/a/unwind-1".into()));
        assert_eq!(executable(messages, "missing"), None);
    }

    #[test]
    fn a_folder_without_a_standard_library() {
        let folder = tempfile::tempdir().expect("can be made");
        assert!(!has_library(&folder.path().join("missing")));
        assert!(!has_library(folder.path()));
        fs::write(folder.path().join("libstd-0123456789abcdef.so"), "").expect("can be written");
        assert!(!has_library(folder.path()), "static programs need the other kind");
        fs::write(folder.path().join("libstd-0123456789abcdef.rlib"), "").expect("can be written");
        assert!(has_library(folder.path()));
    }
}
