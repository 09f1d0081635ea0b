//! Builds the static binary, in such a way that its bytes depend on source and compiler only.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

use super::read;
use crate::architecture::Architecture;
use crate::command::{self, Repository};
use crate::cross;

pub(super) const PROFILE: &str = "dist";
/// Maximum size of the stripped binary, against unnoticed growth.
const BYTES_MAX: u64 = 17_000_000;
/// Arguments that strip symbols. Those for Rust's own linker, see [`cross::set_linker`], also merge functions with equal code, of which
/// generic code has many, and pack relocations (glibc 2.36 applies these in static programs).
const fn linking(architecture: Architecture) -> &'static [&'static str] {
    match architecture {
        Architecture::X86_64 if architecture.is_host() => {
            &["-Clink-arg=-Wl,--icf=all", "-Clink-arg=-Wl,-z,pack-relative-relocs", "-Cstrip=symbols"]
        }
        _ => &["-Cstrip=symbols"],
    }
}
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// A source tree, and what else determines the files that are made of it.
pub(super) struct Checkout {
    pub(super) root: PathBuf,
    pub(super) target: PathBuf,
    pub(super) version: String,
    pub(super) architecture: Architecture,
    /// `SOURCE_DATE_EPOCH`: the timestamp of all files.
    pub(super) epoch: u64,
    cargo_home: PathBuf,
}

impl Checkout {
    pub(super) fn of(repository: &Repository, architecture: Architecture) -> Result<Self> {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("HOME is not set")?;
        Ok(Self {
            root: repository.root.clone(),
            target: repository.target.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            architecture,
            epoch: epoch(&repository.root)?,
            cargo_home: home,
        })
    }

    /// Copies the files that git tracks or would track. The copy has another `CARGO_HOME`, with the same registry.
    pub(super) fn copy(&self, folder: &Path) -> Result<Self> {
        let (root, cargo_home) = (folder.join("source"), folder.join("cargo"));
        let copy = r#"mkdir -p "$2" "$3"
            git -C "$1" ls-files -z --cached --others --exclude-standard --deduplicate |
                tar --directory="$1" --create --null --files-from=- --ignore-failed-read | tar --directory="$2" --extract
            ln -s "$4/registry" "$3/registry""#;
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-euc", copy, "bash"]);
        command::run(shell.arg(&self.root).arg(&root).arg(&cargo_home).arg(&self.cargo_home))?;
        let target = folder.join("target");
        Ok(Self { root, target, version: self.version.clone(), cargo_home, ..*self })
    }

    /// Where cargo-deb and cargo-generate-rpm search for `target/release/…` of their tables in profiler/Cargo.toml.
    pub(super) fn built(&self) -> PathBuf {
        self.target.join(self.architecture.triple()).join(PROFILE)
    }

    /// A program that finds this source tree, its target directory and its timestamp.
    pub(super) fn command(&self, program: Command) -> Command {
        let mut command = program;
        command.current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target).env("CARGO_HOME", &self.cargo_home);
        command.env(EPOCH, self.epoch.to_string());
        command
    }

    /// Folders that compilers would embed, and their replacements. The last match applies.
    fn places(&self) -> Result<Vec<Place>> {
        let mut places = vec![(self.cargo_home.clone(), "/cargo")];
        let sources = self.cargo_home.join("registry/src");
        for registry in fs::read_dir(&sources).with_context(|| format!("could not read `{}`", sources.display()))? {
            places.push((registry?.path(), "/cargo/registry"));
        }
        places.push((self.target.clone(), "/heapbpf/target"));
        places.push((self.root.clone(), "/heapbpf"));
        Ok(places)
    }

    pub(super) fn build(&self) -> Result<PathBuf> {
        let mut cargo = self.command(command::cargo());
        let places = self.places()?;
        cargo.env_remove("RUSTFLAGS").env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&places));
        cargo.env("CFLAGS", c_flags(&places));
        cargo.args(["rustc", "--locked", "--package", "heapbpf", "--bin", "heapbpf"]);
        let architecture = self.architecture;
        cross::set_linker(&mut cargo, &self.root, architecture);
        cargo.args(["--profile", PROFILE, "--target", architecture.triple(), "--"]).args(linking(architecture));
        command::run(&mut cargo)?;
        let binary = self.built().join("heapbpf");
        check(&binary, &places)?;
        Ok(binary)
    }

    /// The same program for this machine's processor: it prints its manual pages and completions.
    pub(super) fn runnable(&self, binary: &Path) -> Result<PathBuf> {
        if self.architecture.is_host() {
            return Ok(binary.to_owned());
        }
        let mut cargo = self.command(command::cargo());
        command::run(cargo.args(["build", "--locked", "--package", "heapbpf", "--bin", "heapbpf"]))?;
        Ok(self.target.join("debug/heapbpf"))
    }
}

/// The time of the last commit, unless the variable specifies another.
fn epoch(root: &Path) -> Result<u64> {
    let seconds = match std::env::var(EPOCH) {
        Ok(given) => given,
        Err(_) => command::output(Command::new("git").arg("-C").arg(root).args(["log", "-1", "--format=%ct"]))
            .with_context(|| format!("without git, {EPOCH} must specify the timestamp of the files"))?,
    };
    seconds.trim().parse().with_context(|| format!("{EPOCH} is not a number of seconds: `{}`", seconds.trim()))
}

type Place = (PathBuf, &'static str);

/// Separated by the byte 0x1f: paths may contain spaces. Naming the target keeps these flags away from build scripts.
fn rust_flags(places: &[Place]) -> OsString {
    let mut flags = OsString::from("-Ctarget-feature=+crt-static");
    for (from, to) in places {
        flags.push("\x1f--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    flags
}

/// For zstd, which is C.
fn c_flags(places: &[Place]) -> OsString {
    let mut flags = OsString::new();
    for (from, to) in places {
        flags.push(" -ffile-prefix-map=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    flags
}

/// Fails if the binary needs a loader, is too large, or contains a path of this machine.
fn check(binary: &Path, places: &[Place]) -> Result<()> {
    let bytes = read(binary)?;
    let header = FileHeader64::<Endianness>::parse(&*bytes)?;
    let endian = header.endian()?;
    let segments = header.program_headers(endian, &*bytes)?;
    ensure!(
        header.e_type(endian) == elf::ET_DYN && segments.iter().all(|segment| segment.p_type(endian) != PT_INTERP),
        "`{}` is not a static position-independent executable",
        binary.display()
    );
    for (path, _) in places {
        let path = path.as_os_str().as_encoded_bytes();
        if bytes.windows(path.len()).any(|window| window == path) {
            bail!("`{}` contains the path `{}`", binary.display(), String::from_utf8_lossy(path));
        }
    }
    let size = fs::metadata(binary)?.len();
    ensure!(size <= BYTES_MAX, "`{}` has {size} bytes, the limit is {BYTES_MAX}", binary.display());
    eprintln!("static binary: {size} bytes, {BYTES_MAX} allowed");
    Ok(())
}
