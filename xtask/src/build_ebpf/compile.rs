//! Runs the BPF toolchain on profiler-ebpf, without the variables of the cargo that started this xtask. This program is
//! the wrapper of rustc that keeps folders of the machine out of the object. Paths of source files, including those in
//! a registry, are renamed by `--remap-path-prefix`. The hash that cargo passes by `-C metadata`, and rustc adds to
//! every symbol, covers the absolute path of crates outside of the workspace, such as profiler-common: no flag replaces
//! it, a wrapper can. Arguments for other targets are not changed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use super::toolchain::{TARGET, Toolchain};
use crate::command;
use crate::repository::Repository;

/// Instruction set of the object. v3 (Linux 5.12) has the atomic operations that return the old value and 32-bit jumps;
/// v4 would take Linux 6.6. An atomic operation whose result is used must not be `Relaxed`: LLVM 22 then emits the
/// instruction without a result, and silently uses the operand as the result. `AcqRel` works.
pub(super) const CPU: &str = "v3";
const PACKAGE: &str = "heapbpf-ebpf";

/// Flags that affect the object, and are therefore equal on every machine. Paths are not among them: see above.
fn rustflags() -> String {
    [
        // Selects the registers of the probed function in aya-ebpf.
        r#"--cfg=bpf_target_arch="x86_64""#,
        "-Clinker=bpf-linker",
        "-Clink-arg=--btf",
        "-Cdebuginfo=2",
        &format!("-Ctarget-cpu={CPU}"),
    ]
    .join("\u{1f}")
}

pub(super) fn build(repository: &Repository, toolchain: &Toolchain, log: bool) -> Result<Vec<u8>> {
    let source = repository.root.join("profiler-ebpf");
    let target = target(repository);
    let mut command = Command::new(&toolchain.rust.cargo);
    without_parent_cargo(&mut command)
        .current_dir(&source)
        .args(["build", "--release", "--target", TARGET, "-Zbuild-std=core", "--package", PACKAGE])
        .env("RUSTC", &toolchain.rust.rustc)
        // Makes a stable compiler accept -Z.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", &target)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags())
        .env("PATH", path_with_linker(toolchain)?);
    install(&mut command, &remaps(repository, toolchain)?)?;
    if source.join("Cargo.lock").exists() {
        command.arg("--locked");
    }
    if log {
        command.args(["--features", "log"]);
    }
    command::run(&mut command)?;
    let object = target.join(TARGET).join("release").join(PACKAGE);
    fs::read(&object).with_context(|| format!("cargo succeeded without writing `{}`", object.display()))
}

/// A separate target directory: builds of user space do not wait for its lock.
fn target(repository: &Repository) -> PathBuf {
    repository.target.join("ebpf")
}

fn remaps(repository: &Repository, toolchain: &Toolchain) -> Result<Vec<Remap>> {
    // A distribution's sysroot has symbolic links, and both names occur.
    let source = &toolchain.rust.source;
    let canonical = source.canonicalize().with_context(|| format!("no `{}`", source.display()))?;
    Ok(vec![
        // Relative to profiler-ebpf, where the linker runs: LLVM reads the source there and stores its lines in the BTF,
        // for the verifier's log.
        Remap::new(&repository.root, ".."),
        Remap::new(source, "rust"),
        Remap::new(&canonical, "rust"),
        Remap::new(&cargo_home()?, "cargo"),
        // Last, because it is usually below the repository.
        Remap::new(&target(repository), "target"),
    ])
}

/// Folders of this machine, which must not occur in the object; long enough not to occur by chance (unlike `/src`).
pub(super) fn private_paths(repository: &Repository, toolchain: &Toolchain) -> Result<Vec<String>> {
    let source = &toolchain.rust.source;
    let folders = [
        repository.root.join("profiler-ebpf"),
        repository.root.join("profiler-common"),
        target(repository),
        cargo_home()?.join("registry"),
        source.join("library"),
        source.canonicalize()?.join("library"),
    ];
    Ok(folders.iter().map(|folder| folder.to_string_lossy().into_owned()).collect())
}

/// `PATH` with the linker's folder first: the flags contain only its name.
fn path_with_linker(toolchain: &Toolchain) -> Result<OsString> {
    let folder = toolchain.linker.program.parent().context("bpf-linker is in no folder")?;
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(env::split_paths(&path));
    Ok(env::join_paths(folders)?)
}

pub(super) fn cargo_home() -> Result<PathBuf> {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("neither CARGO_HOME nor HOME is set")
}

/// Removes variables that the cargo that started this xtask, or a user, has set for another toolchain.
pub(super) fn without_parent_cargo(command: &mut Command) -> &mut Command {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(belongs_to_other_toolchain) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether a variable affects another cargo or rustc. Those for accessing registries stay.
fn belongs_to_other_toolchain(name: &str) -> bool {
    const KEPT: [&str; 6] =
        ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_"];
    match name {
        // Set by `cargo run`, for the libraries of the other compiler.
        "LD_LIBRARY_PATH" | "RUST_RECURSION_COUNT" | "RUSTUP_TOOLCHAIN" => true,
        _ if name.starts_with("CARGO") => !KEPT.iter().any(|kept| name.starts_with(kept)),
        _ => name.starts_with("RUSTC") || name.starts_with("RUSTDOC") || name.starts_with("RUSTFLAGS"),
    }
}

/// Contains the [`Remap`]s for the cargo that builds the object.
const VARIABLE: &str = "HEAPBPF_XTASK_REMAP";
const SEPARATOR: char = '\u{1f}';

/// A folder and its name in the object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Remap {
    from: String,
    to: String,
}

impl Remap {
    fn new(from: &Path, to: &str) -> Self {
        Self { from: from.to_string_lossy().into_owned(), to: to.to_owned() }
    }

    fn flag(&self) -> String {
        format!("--remap-path-prefix={}={}", self.from, self.to)
    }
}

/// Makes `cargo` run this program instead of rustc.
fn install(cargo: &mut Command, remaps: &[Remap]) -> Result<()> {
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
        Ok(given) => command.args(arguments(&given, package(), &remaps)),
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

/// The package that cargo compiles: `NAME-VERSION`, and its folder.
fn package() -> Option<(String, String)> {
    let get = |name| env::var(name).ok();
    Some((format!("{}-{}", get("CARGO_PKG_NAME")?, get("CARGO_PKG_VERSION")?), get("CARGO_MANIFEST_DIR")?))
}

fn arguments(given: &[String], package: Option<(String, String)>, remaps: &[Remap]) -> Vec<String> {
    let for_target = given.windows(2).any(|pair| pair[0] == "--target" && pair[1] == TARGET)
        || given.iter().any(|argument| argument.strip_prefix("--target=") == Some(TARGET));
    let Some((package, folder)) = package.filter(|_| for_target) else { return given.to_vec() };
    let metadata = |argument: &String| {
        if argument.starts_with("metadata=") { format!("metadata={package}") } else { argument.clone() }
    };
    let mut arguments: Vec<_> = given.iter().map(metadata).collect();
    // rustc applies the last match: the package's own folder is for packages of a registry, which are below cargo's home.
    let in_cargo_home = |remap: &&Remap| remap.to == "cargo";
    arguments.extend(remaps.iter().filter(in_cargo_home).map(Remap::flag));
    arguments.push(format!("--remap-path-prefix={folder}=cargo/{package}"));
    arguments.extend(remaps.iter().filter(|remap| !in_cargo_home(remap)).map(Remap::flag));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_toolchains_are_removed() {
        let taken = "RUSTUP_TOOLCHAIN RUSTFLAGS RUSTC RUSTC_WRAPPER RUSTC_BOOTSTRAP CARGO CARGO_PKG_NAME \
                     CARGO_TARGET_DIR CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET LD_LIBRARY_PATH \
                     CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER CARGO_PROFILE_RELEASE_LTO";
        let kept = "PATH HOME CARGO_HOME RUSTUP_HOME CARGO_NET_OFFLINE CARGO_REGISTRIES_MIRROR_INDEX \
                    CARGO_SOURCE_CRATES_IO_REPLACE_WITH CARGO_HTTP_PROXY CARGO_TERM_COLOR RUST_BACKTRACE";
        assert_eq!(taken.split_whitespace().find(|name| !belongs_to_other_toolchain(name)), None);
        assert_eq!(kept.split_whitespace().find(|name| belongs_to_other_toolchain(name)), None);
    }

    fn check(given: &str, package: Option<(&str, &str)>, expected: &str) {
        let package = package.map(|(name, folder)| (format!("{name}-0.2.1"), folder.to_owned()));
        let remaps = [Remap::new(Path::new("/repo"), ".."), Remap::new(Path::new("/home/.cargo"), "cargo")];
        let given: Vec<_> = given.split_whitespace().map(String::from).collect();
        assert_eq!(arguments(&given, package, &remaps).join(" "), expected);
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
