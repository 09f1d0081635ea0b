//! Output, its destination, and the exit code.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::target::{Target, build};
use heapbpf_tests::unreachable::{Check, Sum};

use super::runs::{Launch, bytes_by_leaf, run_check, run_check_with_output};
use super::{CLEAN, LEAKS};

/// Starts a process in which one block has leaked, in a walked heap.
fn leaky() -> Target {
    let mut target = Target::start("leaks/holder.c");
    target.run_command("hold global");
    target.run_command("clear global");
    target
}

/// Runs a program to its exit in which a block of each function leaks, recorded with these options.
#[track_caller]
fn launch(options: &str, code: i32) -> (Launch, Check) {
    let mut launch = Launch::start(options, &build("leaks/holder.c"), &[]);
    for order in ["hold stack", "hold global", "hold tls", "clear stack", "clear global", "clear tls"] {
        launch.target.run_command(order);
    }
    assert_eq!(launch.exit(23), Some(code), "{}", launch.stderr());
    let check = launch.check("check.json");
    assert!(check.at_exit);
    (launch, check)
}

#[test]
fn without_leaks_the_exit_code_is_the_commands() {
    for code in [0, 1, 23] {
        let mut launch = Launch::start("", &build("leaks/holder.c"), &[]);
        launch.target.run_command("hold global");
        assert_eq!(launch.exit(code), Some(code), "{}", launch.stderr());
        assert_eq!(launch.check("check.json").leak_count, 0);
        assert!(launch.stderr().contains("\nno unreachable allocation among "), "{}", launch.stderr());
    }
}

#[test]
fn with_leaks_the_exit_code_is_four_and_the_report_is_on_stderr() {
    let (launch, check) = launch("", LEAKS);
    assert_eq!((check.leak_count, check.leaked), (3, Sum::of(3, 768)));
    let stderr = launch.stderr();
    assert!(stderr.contains("\n768 bytes in 3 unreachable allocations\n"), "{stderr}");
    assert!(
        stderr.contains(" in for_tls ") && stderr.contains("768 bytes in 3 allocations unreachable out of "),
        "{stderr}"
    );
}

#[test]
fn a_running_process_is_reported_on_standard_output() {
    let target = leaky();
    let (check, outcome) = run_check_with_output(&target, "", LEAKS);
    let first = format!("264 bytes in 1 unreachable allocation\nprocess {} `", target.pid());
    assert!(outcome.stdout.starts_with(&first), "{}", outcome.stdout);
    assert!(
        outcome.stdout.contains(&format!("264 usable bytes unreachable at {}", check.leaks[0].address)),
        "{}",
        outcome.stdout
    );
    assert_eq!(run_check_with_output(&target, "--quiet", LEAKS).1.stdout, "");
}

#[test]
fn a_flame_graph_on_standard_output_is_not_mixed_with_text() {
    let target = leaky();
    let pid = target.pid().to_string();
    let outcome = Heapbpf::new(["leaks", "--pid", &pid, "-o", "-"]).run().expect_code(LEAKS);
    let [line] = outcome.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{}", outcome.stdout) };
    assert!(line.ends_with(" 264"), "{line}");
    assert!(outcome.stderr.contains("264 bytes in 1 unreachable allocation"), "{}", outcome.stderr);
}

#[test]
fn suppressed_leaks_are_counted_and_not_listed() {
    let folder = tempfile::tempdir().expect("there is a directory for temporary files");
    let suppressions = |lines: &str| {
        let path = folder.path().join("known.supp");
        std::fs::write(&path, lines).expect("the folder is ours");
        format!("--suppressions {}", path.display())
    };
    let (_, check) = launch(&suppressions("leak:for_global\nleak:for_tls\n"), LEAKS);
    assert_eq!((check.leak_count, check.leaked, check.suppressed), (1, Sum::of(1, 256), Sum::of(2, 512)));
    assert_eq!(check.leaks[0].functions()[0], "for_stack");
    let (launch, check) = launch(&suppressions("leak:for_*\n"), 23);
    assert_eq!((check.leak_count, check.leaked, check.suppressed), (0, Sum::default(), Sum::of(3, 768)));
    assert!(launch.stderr().contains("suppressed: 3 allocations"), "{}", launch.stderr());
}

#[test]
fn contents_are_printed_only_on_request() {
    let mut target = Target::spawn(Command::new(build("leaks/crowds.c")).arg("listed").arg("2"));
    let (check, outcome) = run_check_with_output(&target, "--contents", LEAKS);
    assert!(outcome.stdout.contains("contents:"), "{}", outcome.stdout);
    let [leak] = check.leaks.as_slice() else { panic!("{:#?}", check.leaks) };
    let contents = leak.contents.as_deref().expect("contents are printed");
    let second = target.query("truth")[1].split(' ').nth(1).map(|digits| u64::from_str_radix(digits, 16));
    let second = second.expect("a second word").expect("digits").to_le_bytes();
    let expected: String = [[0; 8], second, [0; 8]].concat().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(contents, expected);
    let (check, outcome) = run_check_with_output(&target, "", LEAKS);
    assert_eq!(check.leaks[0].contents, None);
    assert!(!outcome.stdout.contains("contents:"), "{}", outcome.stdout);
}

#[test]
fn fewer_entries_than_leaks() {
    let (launch, check) = launch("--limit 1", LEAKS);
    assert_eq!((check.leaks.len(), check.leak_count, check.leaked), (1, 3, Sum::of(3, 768)));
    assert!(launch.stderr().contains("2 more leaks not shown"), "{}", launch.stderr());
}

#[test]
fn flame_graphs_and_pprof_add_up_to_the_leaked_bytes() {
    let (launch, check) = launch("-o leaks.svg -o leaks.pb.gz -o leaks.folded -o leaks.html", LEAKS);
    let each =
        [("for_global", 256), ("for_stack", 256), ("for_tls", 256)].map(|(name, bytes)| (name.to_owned(), bytes));
    assert_eq!(bytes_by_leaf(&launch.file("leaks.folded")), each.into());
    assert_eq!(in_use_bytes(&launch.file("leaks.pb.gz")), check.leaked.bytes);
    let svg = text(&launch.file("leaks.svg"));
    assert!(svg.contains("<title>all (768 bytes, 100%)</title>"), "{svg:.3000}");
    assert!(text(&launch.file("leaks.html")).starts_with("<!doctype html>"));
}

/// Sums the fourth value of all samples, `inuse_space`, of a compressed profile.
#[track_caller]
fn in_use_bytes(path: &Path) -> u64 {
    let packed = std::fs::read(path).expect("it was written");
    let mut gzip = Command::new("gzip");
    let mut child = gzip.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("gzip starts");
    child.stdin.take().expect("it is piped").write_all(&packed).expect("gzip reads");
    let profile = child.wait_with_output().expect("it is our child").stdout;
    let samples = fields(&profile).into_iter().filter(|(number, _)| *number == 2);
    samples
        .map(|(_, sample)| {
            let values = fields(sample).into_iter().find(|(number, _)| *number == 2).expect("samples have values").1;
            let mut rest = values;
            std::iter::repeat_with(|| varint(&mut rest)).nth(3).expect("it has no end")
        })
        .sum()
}

/// Returns the length-delimited fields of a message.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let number = varint(&mut message);
        if key & 7 == 2 {
            let (field, rest) = message.split_at(usize::try_from(number).expect("it fits"));
            fields.push((key >> 3, field));
            message = rest;
        }
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("numbers end") + 1;
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    number.iter().rev().fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f))
}

#[test]
fn a_process_without_leaks_has_none() {
    let target = Target::start("leaks/holder.c");
    let check = run_check(&target, "", CLEAN);
    assert!(check.pause_ns > 0 && check.known.count > 0);
    assert!(check.command.ends_with("/holder"), "{}", check.command);
}
