//! What goes wrong is said before anything is attached, in words that name the value and the way out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::kernel::{assert_no_probes, changed_code};
use heapbpf_tests::target::{Target, build, run};

const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;

/// Fails unless the text holds all of these.
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is missing from:\n{text}");
    }
}

/// The usage error for these arguments beside a good `--pid`.
fn wrong_usage(arguments: &str, parts: &[&str]) {
    let target = Target::start("service.c");
    let mut heapbpf = Heapbpf::of(target.pid(), arguments);
    assert_says(&heapbpf.run().expect_error(WRONG_USAGE), parts);
    assert_eq!(heapbpf.files(), Vec::<String>::new());
}

#[test]
fn a_pid_that_does_not_exist() {
    // Above the largest that the kernel gives out.
    let pid_max: u32 = fs::read_to_string("/proc/sys/kernel/pid_max")
        .expect("procfs is mounted")
        .trim()
        .parse()
        .expect("pid_max is a number");
    let pid = pid_max + 1;
    assert_says(&Heapbpf::of(pid, "").run().expect_error(FAILED), &[&format!("`{pid}`")]);
}

#[test]
fn a_process_that_has_ended_but_was_not_reaped() {
    let mut zombie = Command::new("true").spawn().expect("`true` is installed");
    let stat = format!("/proc/{}/stat", zombie.id());
    while !fs::read_to_string(&stat).expect("it is not reaped").contains(") Z ") {
        std::thread::yield_now();
    }
    assert_says(&Heapbpf::of(zombie.id(), "").run().expect_error(FAILED), &[&zombie.id().to_string()]);
    zombie.wait().expect("it is our child");
}

#[test]
fn a_kernel_thread() {
    let name = fs::read_to_string("/proc/2/comm").expect("kthreadd is there");
    assert_eq!(name.trim(), "kthreadd", "pid 2 is to be a kernel thread: this does not run in the first pid namespace");
    assert_says(&Heapbpf::of(2, "").run().expect_error(FAILED), &["2", "kernel"]);
}

#[test]
fn pids_that_are_none() {
    for pid in ["0", "abc", "-1", "99999999999", "1.5"] {
        let text = Heapbpf::new([format!("--pid={pid}")]).run().expect_error(WRONG_USAGE);
        assert_says(&text, &[&format!("`{pid}`")]);
    }
}

#[test]
fn no_target_at_all() {
    let none: [&str; 0] = [];
    assert_says(&Heapbpf::new(none).run().expect_error(WRONG_USAGE), &["--pid"]);
}

#[test]
fn what_a_json_report_does_not_hold() {
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
        assert_says(&stderr, &["heap.json` is a JSON report, ", "convert a recording (`-o x.heapbpf`)"]);
        assert_says(&stderr, parts);
        assert_eq!(fs::read_dir(folder.path()).expect("it is a folder").count(), 0, "nothing is written");
    };
    check("--from 1s -o x.svg", &["sums without the times that `--from` picks from"]);
    check("--to 1s -o x.svg", &["sums without the times that `--to` picks from"]);
    check("-o x.heaptrack.zst", &["`heaptrack` is made of single events"]);
}

#[test]
fn heapbpf_itself() {
    heapbpf_tests::kernel::require_root();
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"exec "$0" --pid $$"#]).arg(binary());
    let outcome = Heapbpf::with_command(shell).run();
    assert!(matches!(outcome.status.code(), Some(FAILED | WRONG_USAGE)), "{outcome:?}");
    let code = outcome.status.code().unwrap_or_default();
    assert_says(&outcome.expect_error(code), &["heapbpf itself"]);
}

/// A copy of the binary, and of the kernel object it is told to use, where everybody can read them.
fn readable_copy(directory: &Path) -> Command {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("the directory is ours");
    let copy = |from: &Path, name: &str| {
        let to = directory.join(name);
        fs::copy(from, &to).unwrap_or_else(|error| panic!("`{}`: {error}", from.display()));
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("the file is ours");
        to
    };
    let program = copy(&binary(), "heapbpf");
    let mut command = nobody();
    command.arg(program);
    if let Some(object) = std::env::var_os("HEAPBPF_BPF_OBJECT") {
        command.env("HEAPBPF_BPF_OBJECT", copy(Path::new(&object), "object"));
    }
    command
}

/// What runs the rest of the command line as a user with no rights.
fn nobody() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    command
}

#[test]
fn a_user_without_capabilities() {
    heapbpf_tests::kernel::require_root();
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = directory.path().join("service");
    fs::copy(build("service.c"), &program).expect("the directory is ours");
    let mut command = readable_copy(directory.path());
    // The user's own process, so that nothing but the capabilities is missing.
    let mut target = Target::spawn(nobody().arg(&program));
    let pid = target.pid().to_string();
    // The output could be written, too.
    let outputs = directory.path().join("outputs");
    fs::create_dir(&outputs).expect("the directory is ours");
    fs::set_permissions(&outputs, fs::Permissions::from_mode(0o777)).expect("the directory is ours");
    command.args(["--pid", &pid, "--duration", "1s", "-o"]).arg(outputs.join("out.json"));
    let text = Heapbpf::with_command(command).run().expect_error(FAILED);
    assert!(["CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN"].iter().any(|capability| text.contains(capability)), "{text}");
    assert_says(&text, &["sudo ", &pid]);
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
    assert_says(&profile("--backend perf").expect_error(FAILED), &["CAP_SYS_ADMIN", "sudo"]);
}

#[test]
fn doctor_tells_a_user_which_capabilities_are_missing() {
    heapbpf_tests::kernel::require_root();
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let mut command = readable_copy(directory.path());
    command.arg("doctor");
    let outcome = Heapbpf::with_command(command).run().expect_code(FAILED);
    assert_says(
        &outcome.stdout,
        &["missing CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE", "sudo heapbpf", "does not work here"],
    );
    assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
}

#[test]
fn a_program_without_an_allocator() {
    let target = Target::start("bare.c");
    let text = Heapbpf::of(target.pid(), "").run().expect_error(FAILED);
    assert_says(&text, &["allocator", &target.pid().to_string()]);
    assert!(!text.contains("Go program"), "{text}");
}

/// A program that looks like one of Go: it has the sections by which Go's linker marks its work, and no allocator.
#[test]
fn a_go_program() {
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let program = directory.path().join("server");
    // Begins as Go's own do: `\xff Go buildinf:`, pointer size 8, flags 2 (strings inline), then Go's version.
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
    assert_says(&text, &["Go", &target.pid().to_string()]);
    let supported = ["glibc", "musl", "jemalloc", "tcmalloc", "mimalloc"];
    assert!(supported.iter().any(|name| text.contains(name)), "it does not say what is supported: {text}");
}

#[test]
fn outputs_that_cannot_be_written_are_found_before_anything_is_attached() {
    let target = Target::start("service.c");
    for output in ["missing/out.svg", "directory.svg", "/proc/out.json", "file/out.folded"] {
        let mut heapbpf = Heapbpf::of(target.pid(), &format!("-o good.json -o {output}"));
        fs::create_dir(heapbpf.file("directory.svg")).expect("the directory is ours");
        fs::write(heapbpf.file("file"), "").expect("the directory is ours");
        let text = heapbpf.run().expect_error(FAILED);
        assert_says(&text, &[&format!("`{output}`")]);
        // No half of a report, and no attempt at one.
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
fn intervals_that_are_none() {
    for interval in ["0", "abc", "-5", "4XB", "99999999999999999999"] {
        wrong_usage(&format!("--interval={interval}"), &[&format!("`{interval}`"), "--interval"]);
    }
}

#[test]
fn durations_that_are_none() {
    for duration in ["abc", "-5s", "5 parsecs"] {
        let text = Heapbpf::new(["--pid", "1", &format!("--duration={duration}")]).run().expect_error(WRONG_USAGE);
        assert_says(&text, &[&format!("`{duration}`"), "--duration"]);
    }
}

#[test]
fn an_output_of_no_known_format() {
    // The error says which there are.
    wrong_usage("-o out.xyz", &["`out.xyz`", "svg", "folded", "json"]);
    wrong_usage("-o out", &["`out`", "svg", "folded", "json"]);
}

#[test]
fn a_view_that_there_is_not() {
    wrong_usage("--view sideways", &["`sideways`", "live-bytes", "live-count", "alloc-bytes", "alloc-count"]);
}

#[test]
fn an_option_that_there_is_not() {
    wrong_usage("--no-such-option", &["--no-such-option"]);
}

#[test]
fn an_error_leaves_the_target_alone() {
    let mut target = Target::start("service.c");
    let _ = Heapbpf::of(target.pid(), "-o missing/out.svg").run().expect_error(FAILED);
    assert_no_probes(target.pid());
    assert_eq!(target.work("keep 10 3").site("keeps").counts.alloc_bytes, 30);
}
