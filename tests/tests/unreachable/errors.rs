//! Processes that cannot be checked: the error has the reason, and nothing is written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::{Target, build, copy_program};

use super::{FAILED, WRONG_USAGE};

const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc.so.4";

#[track_caller]
fn rejected(arguments: &[&str], code: i32) -> String {
    let mut heapbpf = Heapbpf::new(["leaks"].iter().chain(arguments));
    let text = heapbpf.run().expect_error(code);
    assert!(heapbpf.files().is_empty(), "{:?}", heapbpf.files());
    text
}

#[test]
fn no_target_at_all() {
    assert!(rejected(&[], WRONG_USAGE).contains("--pid"));
    assert!(
        rejected(&["--pid", "0"], WRONG_USAGE).contains("`0`")
            || rejected(&["--pid", "0"], WRONG_USAGE).contains("'0'")
    );
    assert!(rejected(&["--pid", "1", "--", "true"], WRONG_USAGE).contains("--pid"));
    assert!(rejected(&["--watch", "1s", "--", "true"], WRONG_USAGE).contains("--watch"));
}

#[test]
fn no_such_process() {
    let text = rejected(&["--pid", "2147483647", "-o", "check.json"], FAILED);
    assert!(text.contains("`2147483647`"), "{text}");
}

#[test]
fn a_kernel_thread_and_itself() {
    let text = rejected(&["--pid", "2"], FAILED);
    assert!(text.contains("`2`"), "{text}");
}

#[test]
fn an_unwritable_file_is_reported_first() {
    let target = Target::start("leaks/holder.c");
    let pid = target.pid().to_string();
    assert!(rejected(&["--pid", &pid, "-o", "missing/check.json"], FAILED).contains("`missing/check.json`"));
    assert!(rejected(&["--pid", &pid, "-o", "check.txt"], WRONG_USAGE).contains("txt"));
    assert!(rejected(&["--pid", &pid, "--suppressions", "missing.supp"], FAILED).contains("`missing.supp`"));
}

#[test]
fn a_stripped_static_program_at_its_exit() {
    let program = Recipe::of("leaks/holder.c").flags("-static -s").build();
    let mut heapbpf = Heapbpf::new(["leaks", "--", &program.to_string_lossy()]);
    let text = heapbpf.run().expect_code(FAILED).stderr;
    assert!(text.contains("statically linked") && text.contains("leaks --pid"), "{text}");
}

#[test]
fn suppressions_without_end() {
    let text = rejected(&["--pid", "1", "--suppressions", "/dev/zero"], FAILED);
    assert!(text.contains("exceeds the limit of 16"), "{text}");
}

/// A copy that other users may execute.
fn copy_for_others(folder: &Path) -> PathBuf {
    let copy = folder.join("heapbpf");
    copy_program(binary(), &copy);
    for path in [folder, &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    copy
}

/// A command that runs heapbpf as another user with these capabilities (`+sys_ptrace`).
fn as_another_user(heapbpf: &Path, capabilities: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}=-all{capabilities}")));
    command.arg(heapbpf);
    command
}

#[test]
fn another_users_process() {
    let mut target = Target::start("leaks/holder.c");
    let pid = target.pid().to_string();
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let heapbpf = copy_for_others(folder.path());
    let leaks = |capabilities: &str| {
        let mut command = as_another_user(&heapbpf, capabilities);
        command.args(["leaks", "--pid", &pid]);
        Heapbpf::with_command(command).run()
    };
    let text = leaks("").expect_error(FAILED);
    assert!(text.contains(&format!("`{pid}`")) && text.contains("run as root"), "{text}");
    let text = leaks(",+sys_ptrace").expect_error(FAILED);
    assert!(text.contains(&format!("`/proc/{pid}/pagemap`")) && text.contains("CAP_DAC_READ_SEARCH"), "{text}");
    let _ = leaks(",+sys_ptrace,+dac_read_search").expect_code(0);
    target.run_command("hold global");
    target.exit(0);
}

/// Its blocks are in no heap that can be walked, and no allocation was recorded.
#[test]
fn a_heap_without_known_blocks() {
    let mut target = Target::spawn(Command::new(build("leaks/holder.c")).env("LD_PRELOAD", TCMALLOC));
    target.run_command("hold global");
    let text = rejected(&["--pid", &target.pid().to_string()], FAILED);
    assert!(text.contains("--watch"), "{text}");
}
