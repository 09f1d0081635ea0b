//! CPython in several versions: where `cargo xtask interpreters` installs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target::build_directory;

/// Versions of CPython in folders of their own, each with the C library of its Debian release.
pub const VERSIONS: [&str; 4] = ["3.9", "3.11", "3.13", "3.14"];

/// A CPython.
#[derive(Debug)]
pub struct Python {
    /// `3.9`.
    pub version: &'static str,
    root: PathBuf,
}

impl Python {
    /// Returns the one in the folder of HEAPBPF_INTERPRETERS, or `interpreters` in the build directory.
    #[track_caller]
    pub fn of(version: &'static str) -> Self {
        let folder = std::env::var_os("HEAPBPF_INTERPRETERS");
        let folder = folder.map_or_else(|| build_directory().join("interpreters"), PathBuf::from);
        let root = folder.join(version);
        assert!(
            root.join("usr/bin").join(format!("python{version}")).is_file(),
            "no CPython {version} is in `{}`: run `cargo xtask interpreters`, which installs it, or set HEAPBPF_INTERPRETERS",
            folder.display()
        );
        Self { version, root }
    }

    /// Returns a command that executes a script, which is copied into its root directory.
    #[track_caller]
    pub fn script(&self, script: &Path) -> Command {
        let mut command = Command::new("chroot");
        command.arg(&self.root);
        self.add_script(command, script)
    }

    /// Returns a command that executes a script, which can import memray. It needs `/proc`, in a mount namespace.
    #[track_caller]
    pub fn script_with_memray(&self, script: &Path) -> Command {
        const MOUNTED: &str = r#"mount -t proc proc "$0/proc" && exec chroot "$0" "$@""#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", MOUNTED]).arg(&self.root).env("PYTHONPATH", "/opt/memray");
        self.add_script(command, script)
    }

    #[track_caller]
    fn add_script(&self, mut command: Command, script: &Path) -> Command {
        let name = script.file_name().expect("a script is a file");
        // Several tests copy the same file at once: it is replaced as a whole.
        let copy = tempfile::NamedTempFile::new_in(self.root.join("tmp")).expect("the folder is ours");
        std::fs::copy(script, copy.path()).expect("the script can be read");
        copy.persist(self.root.join("tmp").join(name)).expect("the folder is ours");
        command.arg(format!("python{}", self.version)).arg(Path::new("/tmp").join(name));
        command.env("PYTHONUTF8", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Returns a file that the script can write: its path for the script, and for the test.
    #[track_caller]
    pub fn output(&self) -> (PathBuf, tempfile::TempPath) {
        let file = tempfile::NamedTempFile::new_in(self.root.join("tmp")).expect("the folder is ours").into_temp_path();
        let inside = Path::new("/").join(file.strip_prefix(&self.root).expect("it is in the root directory"));
        (inside, file)
    }
}
