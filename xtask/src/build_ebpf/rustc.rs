//! Stands between cargo and rustc while the object is built, so that it comes out the same in every folder.
//!
//! Two things would carry a machine's folders into the object. One is the paths of source files; they are renamed by
//! `--remap-path-prefix`, also those in a registry, whose folder has a name that depends on where crates come from.
//! The other is the hash that cargo gives a crate by `-C metadata` and that rustc puts into every symbol: for a crate
//! outside of the workspace it covers the absolute path, and profiler-common is one for profiler-ebpf. Flags cannot
//! replace it, a wrapper can. Everything that is not for the BPF target passes unchanged.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use super::toolchain::TARGET;

/// Set for the cargo that builds the object; holds the [`Remap`]s.
const VARIABLE: &str = "HEAPBPF_XTASK_REMAP";
/// Between two of them, and between their sides.
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
    cargo.env("RUSTC_WRAPPER", env::current_exe().context("this program does not know where it is")?);
    Ok(())
}

/// Where cargo started this program as rustc: becomes rustc, and returns only if that fails.
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
    /// Cargo tells by these variables.
    fn current() -> Option<Self> {
        let get = |name| env::var(name).ok();
        let (name, version) = (get("CARGO_PKG_NAME")?, get("CARGO_PKG_VERSION")?);
        Some(Self { name, version, folder: get("CARGO_MANIFEST_DIR")? })
    }
}

/// The arguments for rustc in place of the `given` ones.
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
    // Of several that match, rustc takes the last: the package's own folder serves where no other does better, and
    // that is for packages of a registry, which are below cargo's home.
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
    fn target_crates_lose_the_machine() {
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
    fn everything_else_passes_unchanged() {
        let host = "--crate-name syn -C metadata=abc --target x86_64-unknown-linux-gnu";
        check(host, Some(("syn", "/home/.cargo/registry/src/index-1/syn-0.2.1")), host);
        check("-vV", None, "-vV");
        check("--print cfg --target bpfel-unknown-none", None, "--print cfg --target bpfel-unknown-none");
    }

    #[test]
    fn remaps_survive_the_environment() {
        let remaps = vec![Remap::new(Path::new("/a b"), ".."), Remap::new(Path::new("/c"), "rust")];
        let mut command = Command::new("true");
        install(&mut command, &remaps).expect("a test knows where it is");
        let value = command.get_envs().find_map(|(name, value)| value.filter(|_| name == VARIABLE)).expect("just set");
        assert_eq!(parse(value.to_str().expect("UTF-8")), remaps);
    }
}
