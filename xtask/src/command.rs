//! Runs other programs, also as root: prints command lines, and converts failures into errors that contain them. The
//! repository, cargo's target directory, and the programs built there.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs a program with the input and output of this process, after printing its command line to standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Like [`run`], for programs whose exit code has a meaning.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    eprintln!("+ {}", line(command));
    command.status().with_context(|| format!("could not start `{}`", line(command)))
}

pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("could not start `{}`", line(command)))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}: {}", line(command), output.status, errors.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` did not write UTF-8", line(command)))
}

pub(crate) fn compile(compiler: &str, flags: &str, source: &Path, program: &Path) -> Result<()> {
    run(Command::new(compiler).args(flags.split(' ')).arg("-o").arg(program).arg(source))
}

pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(word).collect::<Vec<_>>().join(" ")
}

/// One word of a command line, quoted where a shell would split it.
fn word(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.is_empty() || word.contains(|c: char| c.is_whitespace() || "\"'$;&|<>()".contains(c)) {
        format!("'{}'", word.replace('\'', r"'\''"))
    } else {
        word.into_owned()
    }
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
}

pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

pub(crate) fn empty_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(folder),
    }
    .with_context(|| format!("could not empty the folder `{}`", folder.display()))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    Root,
    /// Through sudo: without a password, or with one that is typed at a terminal.
    Sudo,
    Missing,
}

impl Privilege {
    pub(crate) fn find() -> Self {
        if rustix::process::geteuid().is_root() {
            return Self::Root;
        }
        if find("sudo").is_none() {
            return Self::Missing;
        }
        let is_quiet = output(Command::new("sudo").args(["-n", "true"])).is_ok();
        if is_quiet || std::io::stdin().is_terminal() { Self::Sudo } else { Self::Missing }
    }

    pub(crate) fn command(self, program: impl AsRef<OsStr>) -> Option<Command> {
        match self {
            Self::Root => Some(Command::new(program)),
            Self::Sudo => {
                let mut command = Command::new("sudo");
                command.arg("--").arg(program);
                Some(command)
            }
            Self::Missing => None,
        }
    }
}

pub(crate) struct Repository {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
}

impl Repository {
    /// Asks cargo, so that `CARGO_TARGET_DIR` and configuration files are honoured.
    pub(crate) fn find() -> Result<Self> {
        let root = root()?;
        let metadata = output(
            cargo()
                .args(["metadata", "--format-version=1", "--no-deps", "--offline", "--manifest-path"])
                .arg(root.join("Cargo.toml")),
        )?;
        let metadata: serde_json::Value = serde_json::from_str(&metadata).context("cargo metadata wrote no JSON")?;
        let target = metadata["target_directory"].as_str().context("cargo metadata names no target directory")?;
        Ok(Self { root, target: target.into() })
    }

    pub(crate) fn heapbpf(&self) -> Result<PathBuf> {
        if let Some(given) = std::env::var_os("HEAPBPF_BIN") {
            return Ok(std::path::absolute(given)?);
        }
        self.build_release(&["--bin", "heapbpf"])?;
        Ok(self.target.join("release/heapbpf"))
    }

    /// Without optimization: compiled in half the time, sharing libraries with xtask, and fast enough to try heapbpf.
    pub(crate) fn debug_heapbpf(&self) -> Result<PathBuf> {
        if let Some(given) = std::env::var_os("HEAPBPF_BIN") {
            return Ok(std::path::absolute(given)?);
        }
        run(self.cargo().args(["build", "--package", "heapbpf", "--bin", "heapbpf"]))?;
        Ok(self.target.join("debug/heapbpf"))
    }

    pub(crate) fn example(&self, name: &str) -> Result<PathBuf> {
        self.build_release(&["--example", name])?;
        Ok(self.target.join("release/examples").join(name))
    }

    fn build_release(&self, arguments: &[&str]) -> Result<()> {
        run(self.cargo().args(["build", "--release", "--package", "heapbpf"]).args(arguments))
    }

    pub(crate) fn cargo(&self) -> Command {
        let mut cargo = cargo();
        cargo.current_dir(&self.root);
        cargo
    }
}

pub(crate) fn root() -> Result<PathBuf> {
    let manifest_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest_folder.parent().context("xtask is at the root of the file system")?;
    root.canonicalize().with_context(|| format!("the repository `{}` has moved: build xtask again", root.display()))
}

/// The cargo that runs this xtask, for everything in user space.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
}

/// Removes variables that the cargo that started this xtask, or a user, has set for another toolchain.
pub(crate) fn without_parent_cargo(command: &mut Command) -> &mut Command {
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
    fn lines_are_quoted_where_needed() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo it's", "", "--flag=a"]);
        assert_eq!(line(&command), r"sh -c 'echo it'\''s' '' --flag=a");
    }

    #[test]
    fn failures_contain_the_command_line_and_its_errors() {
        let error = output(Command::new("sh").args(["-c", "echo broken >&2; exit 7"])).expect_err("exits with 7");
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains('7') && text.contains("broken"), "{text}");
    }

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
