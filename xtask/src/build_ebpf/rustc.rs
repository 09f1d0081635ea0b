//! A wrapper of rustc that makes the object independent of the folder in which it is built.
//!
//! Two things would add folders of the machine to the object. One is the paths of source files; they are renamed by
//! `--remap-path-prefix`, including those in a registry, whose folder depends on the origin of crates.
//! The other is the hash that cargo passes by `-C metadata` and that rustc adds to every symbol: for a crate
//! outside of the workspace it covers the absolute path, and profiler-common is one for profiler-ebpf. Flags cannot
//! replace it, a wrapper can. Arguments for other targets are not changed.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use super::toolchain::TARGET;

/// Contains the [`Remap`]s for the cargo that builds the object.
const VARIABLE: &str = "HEAPBPF_XTASK_REMAP";
const SEPARATOR: char = '\u{1f}';

/// A folder and its name in the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remap {
    from: String,
    to: String,
}

impl Remap {
    pub(super) fn new(from: &Path, to: &str) -> Self {
        Self { from: from.to_string_lossy().into_owned(), to: to.to_owned() }
    }

    fn flag(&self) -> String {
        format!("--remap-path-prefix={}={}", self.from, self.to)
    }
}

/// Makes `cargo` run this program instead of rustc.
pub(super) fn install(cargo: &mut Command, remaps: &[Remap]) -> Result<()> {
    let text: Vec<_> = remaps.iter().flat_map(|remap| [remap.from.as_str(), &remap.to]).collect();
    cargo.env(VARIABLE, text.join(&SEPARATOR.to_string()));
    cargo.env("RUSTC_WRAPPER", env::current_exe().context("the path of this program is unknown")?);
    Ok(())
}

/// If cargo has started this program as rustc, executes rustc, and returns only on failure.
pub(crate) fn stand_in() -> Option<ExitCode> {
    let remaps = parse(&env::var(VARIABLE).ok()?);
    let mut given = env::args_os().skip(1);
    let rustc = given.next()?;
    let mut command = Command::new(rustc);
    match given.map(std::ffi::OsString::into_string).collect::<Result<Vec<_>, _>>() {
        Ok(given) => command.args(arguments(&given, Package::current().as_ref(), &remaps)),
        Err(argument) => {
            eprintln!("error: an argument for rustc is not UTF-8: `{}`", argument.display());
            return Some(ExitCode::FAILURE);
        }
    };
    let error = command.exec();
    eprintln!("error: could not start rustc: {error}");
    Some(ExitCode::FAILURE)
}

fn parse(text: &str) -> Vec<Remap> {
    let parts: Vec<_> = text.split(SEPARATOR).collect();
    let pairs = parts.chunks_exact(2);
    pairs.map(|pair| Remap { from: pair[0].to_owned(), to: pair[1].to_owned() }).collect()
}

/// The package that cargo compiles.
struct Package {
    name: String,
    version: String,
    folder: String,
}

impl Package {
    fn current() -> Option<Self> {
        let get = |name| env::var(name).ok();
        let (name, version) = (get("CARGO_PKG_NAME")?, get("CARGO_PKG_VERSION")?);
        Some(Self { name, version, folder: get("CARGO_MANIFEST_DIR")? })
    }
}

/// Replaces arguments for rustc.
fn arguments(given: &[String], package: Option<&Package>, remaps: &[Remap]) -> Vec<String> {
    let for_target = given.windows(2).any(|pair| pair[0] == "--target" && pair[1] == TARGET)
        || given.iter().any(|argument| argument.strip_prefix("--target=") == Some(TARGET));
    let Some(package) = package.filter(|_| for_target) else { return given.to_vec() };
    let Package { name, version, folder } = package;
    let metadata = |argument: &String| {
        let is_metadata = argument.starts_with("metadata=");
        if is_metadata { format!("metadata={name}-{version}") } else { argument.clone() }
    };
    let mut arguments: Vec<_> = given.iter().map(metadata).collect();
    // rustc applies the last match: the package's own folder is for packages of a registry, which are below cargo's home.
    let in_cargo_home = |remap: &&Remap| remap.to == "cargo";
    arguments.extend(remaps.iter().filter(in_cargo_home).map(Remap::flag));
    arguments.push(format!("--remap-path-prefix={folder}=cargo/{name}-{version}"));
    arguments.extend(remaps.iter().filter(|remap| !in_cargo_home(remap)).map(Remap::flag));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(given: &str, package: Option<(&str, &str)>, expected: &str) {
        let package = package.map(|(name, folder)| Package {
            name: name.to_owned(),
            version: "0.2.1".to_owned(),
            folder: folder.to_owned(),
        });
        let remaps = [Remap::new(Path::new("/repo"), ".."), Remap::new(Path::new("/home/.cargo"), "cargo")];
        let given: Vec<_> = given.split_whitespace().map(String::from).collect();
        assert_eq!(arguments(&given, package.as_ref(), &remaps).join(" "), expected);
    }

    #[test]
    fn folders_are_removed_for_the_bpf_target() {
        check(
            "--crate-name aya_ebpf -C metadata=abc -C extra-filename=-abc --target bpfel-unknown-none",
            Some(("aya-ebpf", "/home/.cargo/registry/src/index-1/aya-ebpf-0.2.1")),
            "--crate-name aya_ebpf -C metadata=aya-ebpf-0.2.1 -C extra-filename=-abc --target bpfel-unknown-none \
             --remap-path-prefix=/home/.cargo=cargo \
             --remap-path-prefix=/home/.cargo/registry/src/index-1/aya-ebpf-0.2.1=cargo/aya-ebpf-0.2.1 \
             --remap-path-prefix=/repo=..",
        );
    }

    #[test]
    fn other_arguments_are_not_changed() {
        let host = "--crate-name syn -C metadata=abc --target x86_64-unknown-linux-gnu";
        check(host, Some(("syn", "/home/.cargo/registry/src/index-1/syn-0.2.1")), host);
        check("-vV", None, "-vV");
        check("--print cfg --target bpfel-unknown-none", None, "--print cfg --target bpfel-unknown-none");
    }

    #[test]
    fn remaps_are_passed_by_the_environment() {
        let remaps = vec![Remap::new(Path::new("/a b"), ".."), Remap::new(Path::new("/c"), "rust")];
        let mut command = Command::new("true");
        install(&mut command, &remaps).expect("a test has a path");
        let value = command.get_envs().find_map(|(name, value)| value.filter(|_| name == VARIABLE)).expect("just set");
        assert_eq!(parse(value.to_str().expect("UTF-8")), remaps);
    }
}
