//! Errors are reported before anything is attached, with the value and a remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::{assert_no_probes, changed_code};
use heapbpf_tests::target::{Target, build, copy_program, run};

const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;

/// Fails unless the text contains all parts.
fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing from:\n{text}");
    }
}

/// Checks the usage error for these arguments after a valid `--pid`.
fn wrong_usage(arguments: &str, parts: &[&str]) {
    let target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    assert_contains(&heapbpf.run().expect_error(WRONG_USAGE), parts);
    assert_eq!(heapbpf.files(), Vec::<String>::new());
}

#[test]
fn a_pid_that_does_not_exist() {
    // Exceeds the kernel's maximum.
    let pid_max: u32 = fs::read_to_string("/proc/sys/kernel/pid_max")
        .expect("procfs is mounted")
        .trim()
        .parse()
        .expect("pid_max is a number");
    let pid = pid_max + 1;
    assert_contains(&Heapbpf::of(pid, "").run().expect_error(FAILED), &[&format!("`{pid}`")]);
}

#[test]
fn a_zombie() {
    let mut zombie = Command::new("true").spawn().expect("`true` is installed");
    let stat = format!("/proc/{}/stat", zombie.id());
    while !fs::read_to_string(&stat).expect("it is not reaped").contains(") Z ") {
        std::thread::yield_now();
    }
    assert_contains(&Heapbpf::of(zombie.id(), "").run().expect_error(FAILED), &[&zombie.id().to_string()]);
    zombie.wait().expect("it is our child");
}

#[test]
fn a_pid_namespace_without_a_process() {
    let mut unshare = Command::new("unshare");
    let output = unshare.arg("--pid").arg(binary()).args(["--", "true"]).output().expect("util-linux is installed");
    assert_eq!(output.status.code(), Some(FAILED));
    assert_contains(&String::from_utf8_lossy(&output.stderr), &["heapbpf: error: ", "`unshare --pid --fork`"]);
}

#[test]
fn an_object_without_an_end() {
    let target = Target::start("service.c");
    let mut command = Command::new(binary());
    command.args(["--pid", &target.pid().to_string()]).env("HEAPBPF_BPF_OBJECT", "/dev/zero");
    assert_contains(
        &Heapbpf::with_command(command).run().expect_error(FAILED),
        &["`/dev/zero`", "exceeds the limit of"],
    );
}

#[test]
fn a_kernel_thread() {
    let name = fs::read_to_string("/proc/2/comm").expect("kthreadd is there");
    assert_eq!(name.trim(), "kthreadd", "pid 2 is to be a kernel thread: this does not run in the first pid namespace");
    assert_contains(&Heapbpf::of(2, "").run().expect_error(FAILED), &["2", "kernel"]);
}

#[test]
fn invalid_pids() {
    for pid in ["0", "abc", "-1", "99999999999", "1.5"] {
        let text = Heapbpf::new([format!("--pid={pid}")]).run().expect_error(WRONG_USAGE);
        assert_contains(&text, &[&format!("`{pid}`")]);
    }
}

#[test]
fn no_target_at_all() {
    let none: [&str; 0] = [];
    assert_contains(&Heapbpf::new(none).run().expect_error(WRONG_USAGE), &["--pid"]);
}

#[test]
fn json_reports_lack_times_and_events() {
    let target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "--duration 1s -o heap.json");
    let _ = heapbpf.run().expect_code(0);
    let report = heapbpf.file("heap.json");
    let check = |arguments: &str, parts: &[&str]| {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let mut command = Command::new(binary());
        command.arg("convert").arg(&report).args(arguments.split_ascii_whitespace()).current_dir(folder.path());
        let output = command.output().expect("it can be started");
        let stderr = String::from_utf8(output.stderr).expect("messages are text");
        assert_eq!(output.status.code(), Some(WRONG_USAGE), "{stderr}");
        assert_contains(&stderr, &["heap.json` is a JSON report, ", "convert a recording (`-o x.heapbpf`)"]);
        assert_contains(&stderr, parts);
        assert_eq!(fs::read_dir(folder.path()).expect("it is a folder").count(), 0, "nothing is written");
    };
    check("--from 1s -o x.svg", &["totals without times, so `--from` cannot select from it"]);
    check("--to 1s -o x.svg", &["totals without times, so `--to` cannot select from it"]);
    check("-o x.heaptrack.zst", &["no single events, as `heaptrack` requires"]);
}

#[test]
fn heapbpf_itself() {
    heapbpf_tests::kernel::require_root();
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec "$0" --pid $$"#]).arg(binary());
    let outcome = Heapbpf::with_command(shell).run();
    assert!(matches!(outcome.status.code(), Some(FAILED | WRONG_USAGE)), "{outcome:?}");
    let code = outcome.status.code().unwrap_or_default();
    assert_contains(&outcome.expect_error(code), &["heapbpf itself"]);
}

/// Copies the binary, and the kernel object that it loads, to where every user can read them.
fn readable_copy(directory: &Path) -> Command {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("the directory is ours");
    let copy = |from: &Path, name: &str| {
        let to = directory.join(name);
        copy_program(from, &to);
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        to
    };
    let program = copy(&binary(), "heapbpf");
    let mut command = unprivileged();
    command.arg(program);
    if let Some(object) = std::env::var_os("HEAPBPF_BPF_OBJECT") {
        command.env("HEAPBPF_BPF_OBJECT", copy(Path::new(&object), "object"));
    }
    command
}

/// Returns a command that runs its arguments as a user without privileges.
fn unprivileged() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    command
}

#[test]
fn a_user_without_capabilities() {
    heapbpf_tests::kernel::require_root();
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = directory.path().join("service");
    copy_program(build("service.c"), &program);
    let mut command = readable_copy(directory.path());
    // The process belongs to the user, so that only capabilities are missing.
    let mut target = Target::spawn(unprivileged().arg(&program));
    let pid = target.pid().to_string();
    // The user may write the output.
    let outputs = directory.path().join("outputs");
    fs::create_dir(&outputs).expect("the directory is ours");
    fs::set_permissions(&outputs, fs::Permissions::from_mode(0o777)).expect("the directory is ours");
    command.args(["--pid", &pid, "--duration", "1s", "-o"]).arg(outputs.join("out.json"));
    let text = Heapbpf::with_command(command).run().expect_error(FAILED);
    assert!(["CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"].iter().any(|capability| text.contains(capability)), "{text}");
    assert_contains(&text, &["sudo ", &pid]);
    target.assert_running();
}

#[test]
fn three_capabilities_are_enough_but_not_for_perf_events() {
    heapbpf_tests::kernel::require_root();
    let target = Target::start("service.c");
    let profile = |options: &str| {
        let mut command = Command::new("setpriv");
        let three = "-all,+bpf,+perfmon,+sys_ptrace,+dac_read_search";
        command.args([&format!("--bounding-set={three}"), &format!("--inh-caps={three}")]).arg(binary());
        command.args(["--pid", &target.pid().to_string(), "--duration", "200ms", "-o", "out.json"]);
        command.args(options.split_whitespace());
        Heapbpf::with_command(command).run()
    };
    let _ = profile("").expect_code(0);
    let _ = profile("--backend multi").expect_code(0);
    assert_contains(&profile("--backend perf").expect_error(FAILED), &["CAP_SYS_ADMIN", "sudo"]);
}

#[test]
fn doctor_lists_missing_capabilities() {
    heapbpf_tests::kernel::require_root();
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut command = readable_copy(directory.path());
    command.arg("doctor");
    let outcome = Heapbpf::with_command(command).run().expect_code(FAILED);
    assert_contains(&outcome.stdout, &["missing CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE", "`sudo ", "does not work here"]);
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

#[test]
fn a_program_without_an_allocator() {
    let target = Target::start("bare.c");
    let text = Heapbpf::of(target.pid(), "").run().expect_error(FAILED);
    assert_contains(&text, &["allocator", &target.pid().to_string()]);
    assert!(!text.contains("Go program"), "{text}");
}

/// A program that resembles a Go program: it has the sections that Go's linker adds, and no allocator.
#[test]
fn a_go_program() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = directory.path().join("server");
    // Starts like Go's own: `\xff Go buildinf:`, pointer size 8, flags 2 (strings inline), then Go's version.
    let mut build_info = b"\xff Go buildinf:\x08\x02".to_vec();
    build_info.resize(32, 0);
    build_info.extend(b"\x08go1.22.1\x00");
    fs::write(directory.path().join("buildinfo"), build_info).expect("the directory is ours");
    // An ELF note: name size 4, description size 8, type 4, `Go\0\0`.
    fs::write(directory.path().join("buildid"), b"\x04\0\0\0\x08\0\0\0\x04\0\0\0Go\0\0abcdefgh").expect("it is ours");
    run(Command::new("objcopy")
        .current_dir(directory.path())
        .args(["--add-section", ".go.buildinfo=buildinfo", "--set-section-flags", ".go.buildinfo=alloc,data"])
        .args(["--add-section", ".note.go.buildid=buildid", "--set-section-flags", ".note.go.buildid=readonly"])
        .arg(build("bare.c"))
        .arg(&program));
    let target = Target::spawn(&mut Command::new(&program));
    let text = Heapbpf::of(target.pid(), "").run().expect_error(FAILED);
    assert_contains(&text, &["Go", &target.pid().to_string()]);
    let supported = ["glibc", "musl", "jemalloc", "tcmalloc", "mimalloc"];
    assert!(supported.iter().any(|name| text.contains(name)), "the supported allocators are missing: {text}");
}

#[test]
fn unwritable_outputs_are_reported_before_anything_is_attached() {
    let target = Target::start("service.c");
    for output in ["missing/out.svg", "directory.svg", "/proc/out.json", "file/out.folded"] {
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("-o good.json -o {output}"));
        fs::create_dir(heapbpf.file("directory.svg")).expect("the directory is ours");
        fs::write(heapbpf.file("file"), "").expect("the directory is ours");
        let text = heapbpf.run().expect_error(FAILED);
        assert_contains(&text, &[&format!("`{output}`")]);
        // No part of a report is written.
        assert_eq!(heapbpf.files(), ["directory.svg", "file"], "{output}");
    }
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
}

#[test]
fn a_report_is_not_replaced_by_a_failed_session() {
    let mut heapbpf = Heapbpf::of(u32::MAX / 2 - 1, "-o out.json");
    fs::write(heapbpf.file("out.json"), "yesterday's").expect("the directory is ours");
    let _ = heapbpf.run().expect_error(FAILED);
    assert_eq!(fs::read_to_string(heapbpf.file("out.json")).expect("it is still there"), "yesterday's");
}

#[test]
fn invalid_intervals() {
    for interval in ["0", "abc", "-5", "4XB", "99999999999999999999"] {
        wrong_usage(&format!("--interval={interval}"), &[&format!("`{interval}`"), "--interval"]);
    }
}

#[test]
fn invalid_durations() {
    for duration in ["abc", "-5s", "5 parsecs"] {
        let text = Heapbpf::new(["--pid", "1", &format!("--duration={duration}")]).run().expect_error(WRONG_USAGE);
        assert_contains(&text, &[&format!("`{duration}`"), "--duration"]);
    }
}

#[test]
fn an_output_of_unknown_format() {
    // The error lists the known formats.
    wrong_usage("-o out.xyz", &["`out.xyz`", "svg", "folded", "json"]);
    wrong_usage("-o out", &["`out`", "svg", "folded", "json"]);
}

#[test]
fn an_unknown_view() {
    wrong_usage("--view sideways", &["`sideways`", "live-bytes", "live-count", "alloc-bytes", "alloc-count"]);
}

#[test]
fn an_unknown_option() {
    wrong_usage("--no-such-option", &["--no-such-option"]);
}

#[test]
fn an_error_leaves_the_target_alone() {
    let mut target = Target::start("service.c");
    let _ = Heapbpf::of(target.pid(), "-o missing/out.svg").run().expect_error(FAILED);
    assert_no_probes(target.pid());
    assert_eq!(target.work("keep 10 3").site("keeps").counts.alloc_bytes, 30);
}
