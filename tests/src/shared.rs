//! Files that several tests use and the first of them makes: each test runs in a process of its own.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target::{build_directory, run};

/// Written last: a folder without it is incomplete.
const STAMP: &str = "made-of";

/// Returns the folder `recorded/NAME` of the build directory, which `make` fills unless a test has done so for the same inputs: files,
/// by their sizes and times of change.
#[track_caller]
pub fn folder(name: &str, inputs: &[PathBuf], make: impl FnOnce(&Path)) -> PathBuf {
    let all = build_directory().join("recorded");
    fs::create_dir_all(&all).expect("the build directory is ours");
    let folder = all.join(name);
    let lock = File::create(all.join(format!("{name}.lock"))).expect("the build directory is ours");
    lock.lock().expect("the file system has locks");
    let wanted: String = inputs.iter().map(|input| identity(input)).collect();
    if fs::read_to_string(folder.join(STAMP)).is_ok_and(|found| found == wanted) {
        return folder;
    }
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => panic!("`{}`: {error}", folder.display()),
        _ => fs::create_dir(&folder).expect("the build directory is ours"),
    }
    make(&folder);
    fs::write(folder.join(STAMP), wanted).expect("the build directory is ours");
    folder
}

/// A line that differs when the file has changed.
#[track_caller]
fn identity(file: &Path) -> String {
    let metadata = fs::metadata(file).unwrap_or_else(|error| panic!("`{}`: {error}", file.display()));
    format!("{} {} {} {}\n", file.display(), metadata.len(), metadata.mtime(), metadata.mtime_nsec())
}

/// Returns the inputs of recordings: heapbpf, the program of this test, and the BPF object if another one is specified.
pub fn of_recordings() -> Vec<PathBuf> {
    let own = std::env::current_exe().expect("procfs is mounted");
    let object = std::env::var_os("HEAPBPF_BPF_OBJECT").map(PathBuf::from);
    [crate::heapbpf::binary(), own].into_iter().chain(object).collect()
}

/// Returns the folder with the classes of `targets/NAME.java`, for Java 17.
#[track_caller]
pub fn java_classes(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(format!("{name}.java"));
    folder(&format!("classes-{name}"), std::slice::from_ref(&source), |folder| {
        // `--release` would hide `sun.misc.Unsafe`.
        let options = ["-source", "17", "-target", "17", "-encoding", "UTF-8", "-nowarn", "-d"];
        run(Command::new("javac").args(options).arg(folder).arg(&source));
    })
}
