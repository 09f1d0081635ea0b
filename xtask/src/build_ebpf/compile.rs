//! Runs the BPF toolchain on profiler-ebpf, with its flags and environment: without the variables of the cargo that started this
//! xtask.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use super::rustc::{self, Remap};
use super::toolchain::{TARGET, Toolchain};
use crate::command;
use crate::repository::Repository;

/// Instruction set of the object. v3 (Linux 5.12) has the atomic operations that return the old value and 32-bit jumps;
/// v4 would take Linux 6.6. An atomic operation whose result is used must not be `Relaxed`: LLVM 22 then emits the
/// instruction without a result, and silently uses the operand as the result. `AcqRel` works.
pub(super) const CPU: &str = "v3";
/// Name of the package and of its binary.
const PACKAGE: &str = "heapbpf-ebpf";

/// Flags that affect the object, and are therefore equal on every machine. Paths are not among them: see [`rustc`].
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

/// Builds profiler-ebpf and returns the object as it was linked.
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
    rustc::install(&mut command, &remaps(repository, toolchain)?)?;
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

/// The folders of this machine, and their names in the object.
fn remaps(repository: &Repository, toolchain: &Toolchain) -> Result<Vec<Remap>> {
    // Relative to profiler-ebpf, where the linker runs: LLVM reads the source there and stores its lines in the BTF, for the
    // verifier's log.
    let mut remaps = vec![Remap::new(&repository.root, "..")];
    // A distribution's sysroot has symbolic links, and both names occur.
    let source = &toolchain.rust.source;
    let canonical = source.canonicalize().with_context(|| format!("no `{}`", source.display()))?;
    remaps.push(Remap::new(source, "rust"));
    remaps.push(Remap::new(&canonical, "rust"));
    remaps.push(Remap::new(&cargo_home()?, "cargo"));
    // Last, because it is usually below the repository.
    remaps.push(Remap::new(&target(repository), "target"));
    Ok(remaps)
}

/// Folders of this machine, which must not occur in the object. Each is long enough not to occur by chance, unlike a root such
/// as `/src`.
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
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_owned()).chain(std::env::split_paths(&path));
    Ok(std::env::join_paths(folders)?)
}

/// Where cargo keeps what it downloads and installs.
pub(super) fn cargo_home() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo"));
    std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(home).context("neither CARGO_HOME nor HOME is set")
}

/// Removes variables that the cargo that started this xtask, or a user, has set for another toolchain.
pub(super) fn without_parent_cargo(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
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
}
