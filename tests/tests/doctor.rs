//! `heapbpf doctor` reports the state of this machine, and changes nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel::{changed_code, version};
use heapbpf_tests::target::Target;
use serde_json::Value;

/// Returns the diagnosis as JSON; checks the exit code.
fn diagnosis(arguments: &[&str], code: i32) -> Value {
    let outcome = Heapbpf::new(["doctor", "--json"].iter().chain(arguments)).run().expect_code(code);
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error} in {}", outcome.stdout))
}

#[test]
fn root_can_profile_here() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs is mounted");
    let outcome = Heapbpf::new(["doctor"]).run().expect_code(0);
    assert!(outcome.stdout.contains(release.trim()), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("profiling works here"), "{}", outcome.stdout);
    assert_eq!(outcome.stderr, "");
    assert!(!outcome.stdout.contains('\x1b'), "colour is for terminals: {}", outcome.stdout);

    let json = diagnosis(&[], 0);
    assert_eq!((&json["works"], &json["kernel"]), (&Value::from(true), &Value::from(release.trim())));
    for trial in json["trials"].as_array().expect("a list") {
        assert!(trial["needed"] == false || trial["answer"] == "yes", "{trial}");
    }
    for cost in ["emulated_ns", "single_stepped_ns", "emulated_with_return_ns", "single_stepped_with_return_ns"] {
        assert!(json["costs"][cost].as_f64().is_some_and(f64::is_finite), "{cost}: {json}");
    }
    assert_eq!(json["target"], Value::Null);
}

#[test]
fn instructions_match_objdump() {
    let mut target = Target::start("service.c");
    let json = diagnosis(&["--pid", &target.pid().to_string()], 0);
    let hooks = json["target"]["hooks"].as_array().expect("a list");
    let named = |name: &str| hooks.iter().find(|hook| hook["function"] == name).unwrap_or_else(|| panic!("no {name}"));
    for function in ["malloc", "free"] {
        let hook = named(function);
        let module = Path::new(hook["module"].as_str().expect("a path"));
        let offset = hook["offset"].as_u64().expect("a number");
        let instruction = hook["instruction"].as_str().expect("text");
        let mnemonic = instruction.split(' ').next().expect("it has a name");
        let listed = objdump(module, offset);
        assert!(listed.split_whitespace().next() == Some(mnemonic), "`{instruction}` is `{listed}` at {offset:#x}");
        assert!(hook["emulated"].is_boolean() && hook["expected_ns"].is_number(), "{hook}");
    }
    let scope = &json["target"]["scope"];
    // The test itself maps libc. Other tests may have probes there.
    assert!(scope["other_processes"].as_u64().is_some_and(|others| others >= 1), "{scope}");
    assert_eq!(scope["foreign_probes"].is_u64(), version() >= (6, 8), "{scope}");
    assert_eq!(scope["one_target"]["kind"], "process");
    assert_eq!(scope["all"]["kind"], if version() >= (6, 6) { "inode" } else { "process" });
    assert!(["one_target", "all"].iter().all(|choice| scope[choice]["reason"].is_string()), "{scope}");
    // The process was only inspected.
    assert_eq!(changed_code(target.pid()), Vec::<String>::new());
    target.assert_running();
}

/// Disassembles the instruction at an offset of a library whose link addresses equal file offsets, like Debian's libc.
fn objdump(module: &Path, offset: u64) -> String {
    let range = [format!("--start-address={offset}"), format!("--stop-address={}", offset + 16)];
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).args(range).arg(module).output();
    let text = String::from_utf8_lossy(&output.expect("binutils are installed").stdout).into_owned();
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{offset:x}:")));
    line.unwrap_or_else(|| panic!("objdump has no instruction at {offset:#x}: {text}")).to_owned()
}

#[test]
fn the_text_lists_functions_with_their_instructions() {
    let target = Target::start("service.c");
    let outcome = Heapbpf::new(["doctor", "--pid", &target.pid().to_string()]).run().expect_code(0);
    let lines: Vec<&str> = outcome.stdout.lines().map(str::trim).collect();
    let malloc = lines.iter().find(|line| line.starts_with("malloc ")).unwrap_or_else(|| panic!("{}", outcome.stdout));
    assert!(malloc.contains("emulated") || malloc.contains("single-stepped"), "{malloc}");
    assert!(malloc.ends_with("/libc.so.6"), "{malloc}");
    assert!(lines.iter().any(|line| line.starts_with("aligned_alloc, memalign ")), "{}", outcome.stdout);
    for start in ["other processes that map these files: ", "with this target alone: ", "with `--all`: "] {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{}", outcome.stdout);
    }
}

#[test]
fn a_missing_process_is_an_error_before_the_report() {
    let pid_max = fs::read_to_string("/proc/sys/kernel/pid_max").expect("procfs is mounted");
    let pid = (pid_max.trim().parse::<u32>().expect("a number") + 1).to_string();
    for options in [&["doctor", "--pid", &pid][..], &["doctor", &pid], &["doctor", "--pid", &pid, "--json"]] {
        let error = Heapbpf::new(options).run().expect_error(1);
        assert!(error.contains(&format!("no process `{pid}`")), "{error}");
    }
}
