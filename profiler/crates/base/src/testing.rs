//! What tests of several crates share: programs, processes, and documentation that is generated. Tests fail if compilers are missing.

pub mod schema;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::ids::Pid;
use tempfile::TempDir;

/// A directory with the programs of one test.
pub struct Workshop(TempDir);

impl Default for Workshop {
    fn default() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }
}

impl Workshop {
    /// Creates an empty directory.
    pub fn new() -> Self {
        Self::default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a tool in the directory; panics with its output when it fails.
    pub fn run(&self, tool: &str, arguments: &[&str]) {
        let output = Command::new(tool).args(arguments).current_dir(self.0.path()).output();
        let output = output.unwrap_or_else(|error| panic!("`{tool}` is needed here: {error}"));
        assert!(output.status.success(), "{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Compiles a source with `gcc`, `g++` or `rustc`; the program's name is that of the source without its extension.
    pub fn compile(&self, tool: &str, source: &str, text: &str, arguments: &[&str]) -> PathBuf {
        std::fs::write(self.path(source), text).expect("writable");
        let output = source.split('.').next().expect("a name");
        let mut all = vec![source, "-o", output];
        all.extend_from_slice(arguments);
        self.run(tool, &all);
        self.path(output)
    }
}

/// A running process, killed when dropped.
pub struct Running(Child);

impl Running {
    /// Starts a program and waits until it sleeps: then all its modules are mapped.
    pub fn sleep(program: &Path) -> Self {
        let child = Command::new(program).arg("1000").stdin(Stdio::null()).spawn().expect("the program starts");
        let mut running = Self(child);
        let stat = format!("/proc/{}/syscall", running.pid());
        while !std::fs::read_to_string(&stat).expect("it lives").starts_with(&libc::SYS_clock_nanosleep.to_string()) {
            assert_eq!(running.0.try_wait().expect("it is a child"), None, "it exited instead of sleeping");
            std::thread::yield_now();
        }
        running
    }

    pub fn pid(&self) -> Pid {
        Pid(self.0.id())
    }

    pub fn end(&mut self) {
        self.0.kill().expect("it can be killed");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Compares the text between the marks `<!-- NAME: generated -->` and `<!-- end -->` of a file in docs.
/// `UPDATE_GOLDEN=1` rewrites it.
#[track_caller]
pub fn check_table(file: &str, name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs").join(file);
    let text = std::fs::read_to_string(&path).expect("it is in docs");
    let mark = format!("<!-- {name}: generated -->\n");
    let (start, rest) = text.split_once(&mark).expect("the mark before the table");
    let (documented, end) = rest.split_once("<!-- end -->").expect("the mark after the table");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, format!("{start}{mark}{table}<!-- end -->{end}")).expect("docs can be written to");
    } else {
        assert!(documented == table, "{} has another table; UPDATE_GOLDEN=1 rewrites it:\n{table}", path.display());
    }
}
