//! What a machine refuses, made here by namespaces, mounts and seccomp filters: `heapbpf doctor` names the cause, the evidence
//! and the remedy, and so does the recording that fails for it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};
use heapbpf_tests::target::{Target, build, copy_program};
use serde_json::Value;

const FAILED: i32 = 1;
const EPERM: &str = "1";
const ENOSYS: &str = "38";
const KILLED: &str = "0";

/// A command that refuses something to the program of its last arguments.
type Refusing = fn() -> Command;

/// Returns a command that runs its arguments in new namespaces, after a shell script.
fn unshared(options: &str, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(options.split_ascii_whitespace()).args(["sh", "-c", &format!(r#"{script} && exec "$@""#), "sh"]);
    command
}

/// Returns a command that runs its arguments under a seccomp filter.
fn filtered(answer: &str, call: &str) -> Command {
    let mut command = Command::new(build("filtered.c"));
    command.args([answer, call]);
    command
}

#[track_caller]
fn diagnosis(mut command: Command, code: i32) -> Value {
    command.arg(binary()).args(["doctor", "--json"]);
    let outcome = Heapbpf::with_command(command).run().expect_code(code);
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error} in {}", outcome.stdout))
}

/// Returns the error of a recording.
#[track_caller]
fn recording(mut command: Command, target: &Target) -> String {
    command.arg(binary()).args(["--pid", &target.pid().to_string(), "--duration", "200ms", "-o", "out.json"]);
    Heapbpf::with_command(command).run().expect_error(FAILED)
}

#[track_caller]
fn refusal<'a>(diagnosis: &'a Value, id: &str) -> &'a Value {
    let refusals = diagnosis["refusals"].as_array().expect("a list");
    refusals.iter().find(|refusal| refusal["id"] == id).unwrap_or_else(|| panic!("no {id}: {}", diagnosis["refusals"]))
}

#[track_caller]
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Checks that the cause prevents recording, with this evidence, and that recordings fail with the same words.
#[track_caller]
fn prevents(refusing: Refusing, id: &str, evidence: &[&str]) {
    heapbpf_tests::kernel::require_root();
    let diagnosis = diagnosis(refusing(), FAILED);
    let refusal = refusal(&diagnosis, id);
    assert_eq!((&diagnosis["works"], &refusal["prevents"]), (&Value::from(false), &Value::from(true)), "{diagnosis}");
    let cited = refusal["evidence"].to_string();
    for part in evidence {
        assert!(cited.contains(part), "`{part}` is missing in {cited}");
    }
    let target = Target::start("service.c");
    let error = recording(refusing(), &target);
    for part in [text(&refusal["reason"]), "heapbpf doctor"].iter().chain(evidence) {
        assert!(error.contains(part), "`{part}` is missing in {error}");
    }
    // The remedy contains the command line, which differs.
    let remedy = text(&refusal["remedy"]).split('`').next().expect("it has a beginning");
    assert!(!remedy.is_empty() && error.contains(remedy), "`{remedy}` is missing in {error}");
}

#[test]
fn a_filter_that_refuses_bpf() {
    prevents(|| filtered(EPERM, "bpf"), "seccomp_bpf", &["EPERM", "Seccomp: 2"]);
    // Podman's profile has this answer for unknown calls.
    prevents(|| filtered(ENOSYS, "bpf"), "seccomp_bpf", &["ENOSYS", "Seccomp: 2"]);
}

/// As systemd's `SystemCallFilter=` does.
#[test]
fn a_filter_that_kills() {
    prevents(|| filtered(KILLED, "bpf"), "seccomp_bpf", &["killed by SIGSYS", "Seccomp: 2"]);
}

#[test]
fn a_filter_that_refuses_tracing() {
    heapbpf_tests::kernel::require_root();
    let diagnosis = diagnosis(filtered(EPERM, "ptrace"), 0);
    assert_eq!(diagnosis["works"], true);
    let refusal = refusal(&diagnosis, "ptrace");
    assert_eq!(refusal["prevents"], false);
    let trials = diagnosis["trials"].as_array().expect("a list");
    let tracing = trials.iter().find(|trial| trial["refusal"] == "ptrace").expect("it is tried");
    assert_eq!((&tracing["answer"], &tracing["needed"]), (&Value::from("no"), &Value::from(false)));
    assert!(text(&tracing["consequence"]).contains("leaks"), "{tracing}");
    let target = Target::start("service.c");
    let mut leaks = filtered(EPERM, "ptrace");
    leaks.arg(binary()).args(["leaks", "--pid", &target.pid().to_string()]);
    let error = Heapbpf::with_command(leaks).run().expect_error(FAILED);
    assert!(error.contains(text(&refusal["reason"])), "{error}");
}

#[test]
fn a_user_namespace() {
    let refusing: Refusing = || unshared("--user --map-root-user", "true");
    prevents(refusing, "user_namespace", &["/proc/self/uid_map", "CapEff", "EPERM"]);
}

#[test]
fn a_pid_namespace() {
    prevents(|| unshared("--pid --fork --mount-proc", "true"), "pid_namespace", &["/proc/self/ns/pid"]);
}

#[test]
fn capabilities_that_sudo_cannot_give() {
    let refusing: Refusing = || {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-bpf,-perfmon,-sys_admin");
        command
    };
    prevents(refusing, "bounding_set", &["CapBnd"]);
}

#[test]
fn missing_mounts() {
    prevents(|| unshared("--mount", "umount --recursive --lazy /sys"), "sysfs", &["/sys/kernel: ENOENT"]);
    prevents(|| unshared("--mount", "umount --recursive --lazy /proc"), "procfs", &["/proc/self/ns/pid: ENOENT"]);
}

#[test]
fn a_kernel_without_type_information() {
    heapbpf_tests::kernel::require_root();
    let hidden = || unshared("--mount", "mount -t tmpfs none /sys/kernel/btf");
    let diagnosis = diagnosis(hidden(), 0);
    let refusal = refusal(&diagnosis, "no_btf");
    assert_eq!(refusal["prevents"], false);
    assert!(refusal["evidence"].to_string().contains("/sys/kernel/btf/vmlinux: ENOENT"), "{refusal}");
}

#[test]
fn a_hidden_process() {
    heapbpf_tests::kernel::require_root();
    let target = Target::start("service.c");
    let mut command = unshared("--mount", "mount -t proc -o hidepid=2 proc /proc");
    command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    // Of a file that everyone may execute.
    let directory = tempfile::tempdir().expect("there is a directory for temporary files");
    let copy = directory.path().join("heapbpf");
    copy_program(binary(), &copy);
    for path in [directory.path(), &copy] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    command.arg(&copy).args(["doctor", "--pid", &target.pid().to_string()]);
    let error = Heapbpf::with_command(command).run().expect_error(FAILED);
    assert!(error.contains(&target.pid().to_string()) && error.contains("hidepid"), "{error}");
}
