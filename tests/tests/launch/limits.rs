//! The command has the original resource limits, not those that heapbpf raises for itself.

use std::ffi::OsString;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, binary};

/// Returns the resource limits of a command that heapbpf starts after these shell commands.
#[track_caller]
fn limits_after(words: &str) -> Vec<(String, Vec<String>)> {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{words}; exec \"$0\" \"$@\"")]).arg(binary());
    command.args(["-q", "-o", "out.json", "--", "cat", "/proc/self/limits"]);
    Heapbpf::with_command(command).run().expect_code(0).stdout.lines().map(limit).collect()
}

/// Parses a line of `/proc/self/limits`.
fn limit(line: &str) -> (String, Vec<String>) {
    let (name, values) = line.split_at(line.find("  ").unwrap_or(line.len()));
    (name.to_owned(), values.split_ascii_whitespace().map(str::to_owned).collect())
}

#[track_caller]
fn assert_limit(limits: &[(String, Vec<String>)], name: &str, expected: [&str; 2]) {
    let (_, values) = limits.iter().find(|(limit, _)| limit == name).unwrap_or_else(|| panic!("no {name}: {limits:?}"));
    assert_eq!(values[..2], expected, "{name}");
}

#[test]
fn a_command_has_the_limits_that_heapbpf_was_started_with() {
    let limits = limits_after("ulimit -Sn 777; ulimit -Hn 1999; ulimit -l 4321");
    assert_limit(&limits, "Max open files", ["777", "1999"]);
    assert_limit(&limits, "Max locked memory", ["4424704", "4424704"]);
}

#[test]
fn a_command_may_have_fewer_descriptors_than_heapbpf_has_open() {
    let limits = limits_after("ulimit -Sn 5");
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let hard = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
    assert_limit(&limits, "Max open files", ["5", &hard]);
}

#[test]
fn a_command_that_cannot_run_is_reported_under_low_limits() {
    let arguments: Vec<OsString> = vec!["-c".into(), "ulimit -Sn 6; exec \"$0\" \"$@\"".into(), binary().into()];
    let mut command = Command::new("sh");
    command.args(arguments).args(["-q", "-o", "out.json", "--", "no-such-program"]);
    let error = Heapbpf::with_command(command).run().expect_code(127).stderr;
    assert!(error.starts_with("heapbpf: error: cannot run `no-such-program`"), "{error}");
}
