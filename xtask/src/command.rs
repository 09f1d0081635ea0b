//! Runs other programs: says which, and turns their failure into an error that names them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Runs a program with our own input and output, after printing its command line to standard error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", line(command));
    let status = command.status().with_context(|| format!("could not start `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed: {status}", line(command));
    }
    Ok(())
}

/// Runs a program quietly and returns what it wrote to standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("could not start `{}`", line(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed: {}: {}", line(command), output.status, said.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{}` did not write UTF-8", line(command)))
}

/// A command as one would type it.
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

/// Finds a program in `PATH`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
}

/// Whether the path leads to a file that somebody may execute.
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
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
    fn failure_names_the_program_and_what_it_said() {
        let error = output(Command::new("sh").args(["-c", "echo broken >&2; exit 7"])).expect_err("exits with 7");
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains('7') && text.contains("broken"), "{text}");
    }
}
