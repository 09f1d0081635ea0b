//! Builds the file system of a virtual machine: busybox, heapbpf, targets, their libraries and `init.sh`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::command;
use crate::repository::{self, Repository};

/// The first process.
const INIT: &str = include_str!("init.sh");

/// The static binary's target: specifying one excludes build scripts and macros, which must be dynamic, from the flags.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Targets: name, source in tests/targets, flags beside [`C_FLAGS`].
const TARGETS: [(&str, &str, &str); 5] = [
    ("exact", "exact.c", "-fomit-frame-pointer"),
    ("framed", "exact.c", "-fno-omit-frame-pointer"),
    ("threads", "threads.c", "-fomit-frame-pointer"),
    ("forks", "forks.c", "-fomit-frame-pointer"),
    ("cases", "leaks/cases.c", "-fomit-frame-pointer"),
];

/// Calls stay calls: without `-fno-builtin` the compiler drops a malloc whose block is only freed.
const C_FLAGS: [&str; 5] = ["-O1", "-g", "-fno-optimize-sibling-calls", "-fno-builtin", "-pthread"];

/// Builds everything and returns the compressed archive.
pub(super) fn build(repository: &Repository, folder: &Path) -> Result<PathBuf> {
    let heapbpf = heapbpf(repository)?;
    let root = folder.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("could not remove `{}`", root.display()))?;
    }
    let bin = root.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("could not make the folder `{}`", bin.display()))?;
    copy(&heapbpf, &bin.join("heapbpf"))?;
    copy(&command::find("busybox").context("`busybox` is not in PATH")?, &bin.join("busybox"))?;
    // Debian's busybox does not contain it.
    copy(&command::find("nice").context("`nice` is not in PATH")?, &bin.join("nice"))?;
    for (name, source, flag) in TARGETS {
        let mut gcc = Command::new("gcc");
        gcc.args(C_FLAGS).arg(flag).arg("-o").arg(bin.join(name));
        command::run(gcc.arg(repository.root.join("tests/targets").join(source)))?;
    }
    for entry in fs::read_dir(&bin)? {
        for library in libraries(&entry?.path())? {
            copy(&library, &root.join(library.strip_prefix("/").context("ldd prints absolute paths")?))?;
        }
    }
    if let Some(object) = std::env::var_os("HEAPBPF_BPF_OBJECT").filter(|path| !path.is_empty()) {
        copy(Path::new(&object), &root.join("heapbpf.bpf.o"))?;
    }
    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    let archive = folder.join("initramfs.gz");
    let pack = r#"find . | cpio --quiet --create --format=newc --owner=0:0 | gzip -1 >"$1""#;
    command::run(Command::new("sh").args(["-euc", pack, "sh"]).arg(&archive).current_dir(&root))?;
    Ok(archive)
}

/// The binary that `HEAPBPF_BIN` names, or one that is built now.
fn heapbpf(repository: &Repository) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("HEAPBPF_BIN") {
        return Ok(given.into());
    }
    let mut cargo = Command::new(repository::cargo());
    cargo.current_dir(&repository.root).env_remove("CARGO_ENCODED_RUSTFLAGS");
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static");
    command::run(cargo.args(["build", "--release", "--target", TARGET, "--package", "heapbpf"]))?;
    Ok(repository.target.join(TARGET).join("release/heapbpf"))
}

/// The libraries of a program, including its loader; none for a static one.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // Fails for static programs.
    let output = Command::new("ldd").arg(program).output().context("could not start `ldd`")?;
    Ok(library_paths(&String::from_utf8_lossy(&output.stdout)))
}

/// The paths in what `ldd` prints: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader.
fn library_paths(printed: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let line = line.trim();
        let found = line.split_once(" => ").map_or(line, |(_, found)| found);
        Some(PathBuf::from(found.split_once(" (")?.0)).filter(|path| path.is_absolute())
    };
    printed.lines().filter_map(path).collect()
}

/// Copies a file with its permissions, and creates its folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("could not make the folder `{}`", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("could not copy `{}` to `{}`", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(printed: &str, expected: &[&str]) {
        assert_eq!(library_paths(printed), expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn libraries_and_their_loader() {
        check(
            "\tlinux-vdso.so.1 (0x00007ffc8d5f6000)\n\
             \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1f6f400000)\n\
             \t/lib64/ld-linux-x86-64.so.2 (0x00007f1f6f6f1000)\n",
            &["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"],
        );
        check("\tnot a dynamic executable\n", &[]);
        check("\tlibgone.so.1 => not found\n", &[]);
        check("\tstatically linked\n", &[]);
    }
}
