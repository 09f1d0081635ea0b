//! Finds or installs a Rust compiler with the source of `core`, and bpf-linker, and records their versions.
//! Every candidate is probed; the error lists why each is unsuitable.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use regex::bytes::Regex;

use super::{CPU, cargo_home};
use crate::command::{self, without_parent_cargo};
use crate::packages;

pub(super) const TARGET: &str = "bpfel-unknown-none";
/// The required bpf-linker: another version builds another object.
const LINKER_VERSION: &str = "0.13.0";
/// Older compilers lack features that the kernel side uses.
const RUSTC_MINOR_MIN: u32 = 95;

pub(super) struct Toolchain {
    pub(super) rust: Rust,
    pub(super) linker: Linker,
}

#[derive(Debug)]
pub(super) struct Rust {
    pub(super) cargo: PathBuf,
    pub(super) rustc: PathBuf,
    /// The folder of its sysroot that contains `library`.
    pub(super) source: PathBuf,
    /// The first line of `rustc -vV`.
    pub(super) version: String,
    pub(super) llvm: String,
}

#[derive(Debug)]
pub(super) struct Linker {
    pub(super) program: PathBuf,
    pub(super) version: String,
    pub(super) llvm: String,
}

impl Toolchain {
    /// Finds both; the error lists everything that is missing and how to install it.
    pub(super) fn find() -> Result<Self> {
        match (Rust::find(), Linker::find()) {
            (Ok(rust), Ok(linker)) => Self { rust, linker }.checked(),
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(rust), Err(linker)) => bail!("{rust:#}\n{linker:#}"),
        }
    }

    /// Checks that the linker can read the compiler's bitcode: LLVM reads that of older versions only.
    fn checked(self) -> Result<Self> {
        let major = |version: &str| version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if major(&self.rust.llvm) > major(&self.linker.llvm) {
            bail!(
                "`{}` has LLVM {}, which is newer than the {} of `{}`: install a bpf-linker with LLVM {0}",
                self.rust.rustc.display(),
                self.rust.llvm,
                self.linker.llvm,
                self.linker.program.display()
            );
        }
        Ok(self)
    }
}

impl Rust {
    /// The distribution's compiler, or rustup's nightly.
    fn find() -> Result<Self> {
        let error = match Self::probe("/usr/bin/cargo".into(), "/usr/bin/rustc".into()) {
            Ok(distribution) => return Ok(distribution),
            Err(error) => error,
        };
        Self::nightly().map_err(|nightly| {
            anyhow::anyhow!(
                "no Rust compiler that can build for BPF:\n  the distribution's: {error:#}\n  rustup's nightly: \
                 {nightly:#}\ninstall one:\n  Debian:    apt-get install rustc-web cargo-web rust-web-src\n  elsewhere: \
                 rustup toolchain install nightly --component rust-src\nor let `cargo xtask build-ebpf --install` do it"
            )
        })
    }

    fn nightly() -> Result<Self> {
        let rustup = command::find("rustup").context("no `rustup` in PATH")?;
        let which = |tool: &str| -> Result<PathBuf> {
            // Otherwise rustup would download a toolchain to answer.
            let mut command = Command::new(&rustup);
            command.args(["which", "--toolchain", "nightly", tool]).env("RUSTUP_AUTO_INSTALL", "0");
            Ok(command::output(&mut command)?.trim().into())
        };
        Self::probe(which("cargo")?, which("rustc")?)
    }

    fn probe(cargo: PathBuf, rustc: PathBuf) -> Result<Self> {
        for program in [&cargo, &rustc] {
            if !command::is_executable(program) {
                bail!("no `{}`", program.display());
            }
        }
        let ask = |arguments: &[&str]| command::output(without_parent_cargo(&mut Command::new(&rustc)).args(arguments));
        let (version, llvm) = parse_rustc(&ask(&["-vV"])?)?;
        if parse_minor(&version).is_none_or(|minor| minor < RUSTC_MINOR_MIN) {
            bail!("`{}` is `{version}`, but 1.{RUSTC_MINOR_MIN} or later is required", rustc.display());
        }
        if !ask(&["--print=target-list"])?.lines().any(|target| target == TARGET) {
            bail!("`{}` does not support the target `{TARGET}`", rustc.display());
        }
        let source = Path::new(ask(&["--print=sysroot"])?.trim()).join("lib/rustlib/src/rust");
        if !source.join("library/Cargo.lock").exists() {
            bail!("`{}` has no source of `core` in `{}`", rustc.display(), source.display());
        }
        Ok(Self { cargo, rustc, source, version, llvm })
    }
}

impl Linker {
    fn find() -> Result<Self> {
        let installed = cargo_home()?.join("bin/bpf-linker");
        let program = command::find("bpf-linker").or_else(|| installed.exists().then_some(installed));
        let program = program.with_context(|| format!("no `bpf-linker` in PATH; {}", Self::remedy()))?;
        let version = parse_linker(&command::output(Command::new(&program).arg("--version"))?)?;
        if version != LINKER_VERSION {
            bail!("`{}` is {version}, but {LINKER_VERSION} is required; {}", program.display(), Self::remedy());
        }
        let llvm = llvm_of(&program)?;
        Ok(Self { program, version, llvm })
    }

    fn remedy() -> String {
        format!(
            "install it:\n  Debian:    apt-get install llvm-22-dev && LLVM_PREFIX=/usr/lib/llvm-22 cargo install bpf-linker \
             --version {LINKER_VERSION} --no-default-features --features llvm-22\n  elsewhere: cargo binstall \
             bpf-linker@{LINKER_VERSION}\nor let `cargo xtask build-ebpf --install` do it"
        )
    }
}

/// The version of LLVM in a program: linked into it, or in a library that it loads.
fn llvm_of(program: &Path) -> Result<String> {
    let libraries = command::output(Command::new("ldd").arg(program)).unwrap_or_default();
    let library = libraries.lines().filter(|line| line.contains("libLLVM")).find_map(|line| {
        let path = line.split("=> ").nth(1)?.split(" (").next()?;
        Some(PathBuf::from(path))
    });
    let file = library.as_deref().unwrap_or(program);
    let content = fs::read(file).with_context(|| format!("could not read `{}`", file.display()))?;
    parse_llvm(&content).with_context(|| format!("`{}` contains no version of LLVM", file.display()))
}

fn parse_rustc(text: &str) -> Result<(String, String)> {
    let version = text.lines().next().filter(|line| line.starts_with("rustc "));
    let llvm = text.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let (version, llvm) = version.zip(llvm).context("`rustc -vV` does not name the versions of rustc and of LLVM")?;
    Ok((version.to_owned(), llvm.trim().to_owned()))
}

/// The minor version in `rustc 1.MINOR.PATCH…`.
fn parse_minor(version: &str) -> Option<u32> {
    version.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

/// The version in `bpf-linker VERSION`.
fn parse_linker(text: &str) -> Result<String> {
    let version = text.trim().strip_prefix("bpf-linker ").with_context(|| format!("not a bpf-linker: `{text}`"))?;
    Ok(version.trim().to_owned())
}

/// The version in the text `LLVM version X.Y.Z`, which every LLVM contains.
fn parse_llvm(content: &[u8]) -> Option<String> {
    let version = Regex::new(r"LLVM version (\d+\.\d+\.\d+)").expect("is valid").captures(content)?;
    Some(String::from_utf8_lossy(&version[1]).into_owned())
}

pub(super) fn find_or_install() -> Result<Toolchain> {
    if let Ok(toolchain) = Toolchain::find() {
        return Ok(toolchain);
    }
    if Rust::find().is_err() {
        packages::install(packages::RUST)?;
    }
    if Linker::find().is_err() {
        packages::install(packages::LLVM)?;
        // Inherits RUSTUP_TOOLCHAIN: otherwise rustup would use the rust-toolchain.toml of the compiled crate.
        let mut cargo = command::cargo();
        cargo
            .env("LLVM_PREFIX", "/usr/lib/llvm-22")
            .args(["install", "bpf-linker", "--version", LINKER_VERSION, "--locked", "--force"])
            .args(["--no-default-features", "--features", "llvm-22"]);
        command::run(&mut cargo)?;
    }
    Toolchain::find()
}

impl Toolchain {
    /// `toolchain.txt`, a line per property: all besides the source that affects the object. Toolchains with equal records
    /// build equal objects.
    pub(super) fn record(&self) -> String {
        let Self { rust, linker } = self;
        format!(
            "rustc: {}\nrustc's LLVM: {}\nbpf-linker: {}\nbpf-linker's LLVM: {}\ntarget-cpu: {CPU}\n",
            rust.version, rust.llvm, linker.version, linker.llvm
        )
    }
}

pub(super) fn differences(recorded: &str, here: &str) -> Result<Vec<String>> {
    let mut differences = Vec::new();
    for (name, here) in here.lines().filter_map(|line| line.split_once(": ")) {
        let prefix = format!("{name}: ");
        let recorded = recorded.lines().find_map(|line| line.strip_prefix(&prefix));
        let recorded = recorded.with_context(|| format!("no line `{prefix}…`"))?;
        if recorded != here {
            differences.push(format!("  {name}: built with `{recorded}`, this machine has `{here}`"));
        }
    }
    Ok(differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_rustc() {
        let text = "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\nbinary: rustc\nhost: \
                    x86_64-unknown-linux-gnu\nrelease: 1.96.0\nLLVM version: 22.1.8\n";
        let (version, llvm) = parse_rustc(text).expect("as rustc prints it");
        assert_eq!(version, "rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)");
        assert_eq!(llvm, "22.1.8");
        assert!(parse_rustc("cargo 1.96.0\nLLVM version: 22.1.8\n").is_err());
        assert!(parse_rustc("rustc 1.96.0\nhost: x\n").is_err());
    }

    #[test]
    fn minor_versions() {
        assert_eq!(parse_minor("rustc 1.63.0"), Some(63));
        assert_eq!(parse_minor("rustc 1.97.0-nightly (e50aa6fba 2026-05-19)"), Some(97));
        assert_eq!(parse_minor("rustc 2.0.0"), None);
    }

    #[test]
    fn versions_of_the_linker() {
        assert_eq!(parse_linker("bpf-linker 0.13.0\n").expect("as it prints it"), "0.13.0");
        assert!(parse_linker("LLD 14.0.6\n").is_err());
    }

    #[test]
    fn version_of_llvm_in_a_binary() {
        assert_eq!(parse_llvm(b"\0LLVM version %s\0\0LLVM version 22.1.8\0more").as_deref(), Some("22.1.8"));
        assert_eq!(parse_llvm(b"LLVM version 22"), None);
        assert_eq!(parse_llvm(b""), None);
    }

    fn record(rustc: &str) -> String {
        let rust = Rust {
            cargo: PathBuf::new(),
            rustc: PathBuf::new(),
            source: PathBuf::new(),
            version: rustc.to_owned(),
            llvm: "22.1.8".to_owned(),
        };
        let linker = Linker { program: PathBuf::new(), version: "0.13.0".to_owned(), llvm: "22.1.8".to_owned() };
        Toolchain { rust, linker }.record()
    }

    #[test]
    fn differences_contain_both_versions() {
        let made = record("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)");
        assert_eq!(differences(&made, &made).expect("complete"), Vec::<String>::new());
        let differing = differences(&record("rustc 1.96.0"), &record("rustc 1.97.0")).expect("complete");
        assert_eq!(differing, ["  rustc: built with `rustc 1.96.0`, this machine has `rustc 1.97.0`"]);
        assert!(differences("rustc: rustc 1.96.0\n", &made).is_err());
    }
}
