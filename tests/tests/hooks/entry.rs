//! Hooks of the entry, for functions whose return address must not be replaced.

use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::report::{Counts, Report};

const WRONG_USAGE: i32 = 2;
/// Exit code of a program that an illegal instruction has killed.
const ILLEGAL: i32 = 128 + 4;
const BLOCKS: u64 = 4 * 500;
const FREED: u64 = BLOCKS / 5 * 4;
const BLOCK_BYTES: u64 = 100;

/// Runs the coroutines with these hooks of module `coroutines` in heap `pool`; returns report and summary.
#[track_caller]
fn run(hooks: &[&str], arguments: &str, code: i32) -> (Report, String) {
    let program = Recipe::of("coroutines.c").build();
    let hooks = hooks.iter().flat_map(|hook| ["--hook".to_owned(), format!("pool=coroutines:{hook}")]);
    let words = ["--interval", "1", "-o", "out.json"].map(str::to_owned).into_iter();
    let words = words.chain(arguments.split_ascii_whitespace().map(str::to_owned)).chain(hooks);
    let mut heapbpf = Heapbpf::new(words.chain(["--".to_owned(), program.display().to_string()]));
    let outcome = heapbpf.run();
    assert_eq!(outcome.status.code(), Some(code), "{}\n{}", outcome.stdout, outcome.stderr);
    (heapbpf.report("out.json"), format!("{}{}", outcome.stdout, outcome.stderr))
}

fn pool(report: &Report) -> Counts {
    totals(report, "pool")
}

fn totals(report: &Report, heap: &str) -> Counts {
    report.targets[0].heap(heap).totals.exact()
}

#[test]
fn a_function_that_yields_is_counted_at_its_entry() {
    let (report, output) = run(&["pool_alloc(size=arg1, entry)"], "", 0);
    assert!(output.contains("done 4") && output.contains("heap pool: allocations only"), "{output}");
    let counts = pool(&report);
    let (count, bytes) = (BLOCKS, BLOCKS * BLOCK_BYTES);
    assert_eq!((counts.alloc_count, counts.alloc_bytes, counts.live_count), (count, bytes, 0));
    // What it calls is counted as well.
    let libc = report.targets[0].exact_by_leaf()["pool_alloc"];
    assert_eq!((libc.alloc_count, libc.free_count, libc.live_count), (BLOCKS, FREED, BLOCKS - FREED));
}

#[test]
fn without_addresses_live_bytes_are_unknown() {
    let (report, output) = run(&["pool_alloc(size=arg1, entry)"], "--heap pool", 0);
    assert_eq!(pool(&report).alloc_bytes, BLOCKS * BLOCK_BYTES);
    let live = output.lines().find(|line| line.trim_start().starts_with("live ")).expect("a line");
    assert!(live.contains("unknown"), "{output}");
}

#[test]
fn blocks_that_are_arguments_are_live_until_they_are_freed() {
    let hooks = ["pool_report(size=arg1, ptr=arg2, entry)", "pool_free(old=arg1)"];
    for arguments in ["--heap pool", "--heap pool --scope inode", "--heap pool --backend multi"] {
        let (report, output) = run(&hooks, arguments, 0);
        assert!(output.contains("done 4") && !output.contains("allocations only"), "{output}");
        let expected = Counts {
            alloc_count: BLOCKS,
            alloc_bytes: BLOCKS * BLOCK_BYTES,
            free_count: FREED,
            free_bytes: FREED * BLOCK_BYTES,
            live_count: BLOCKS - FREED,
            live_bytes: (BLOCKS - FREED) * BLOCK_BYTES,
        };
        assert_eq!(pool(&report), expected, "{arguments}");
    }
}

#[test]
fn a_death_by_a_replaced_return_is_explained() {
    let (_, output) = run(&["pool_alloc(size=arg1, ptr=ret)"], "", ILLEGAL);
    assert!(output.contains("died of SIGILL after"), "{output}");
    assert!(output.contains("`pool_alloc(size=arg1, entry)`") && output.contains("docs/hooks.md"), "{output}");
}

#[test]
fn returns_that_are_known_to_kill_are_refused() {
    let runtime = "_ZN2v88internal34Runtime_AllocateInYoungGenerationEiPmPNS0_7IsolateE";
    for (function, reason) in [
        (runtime, "generated code of V8 calls it"),
        ("swapcontext", "it switches stacks"),
        ("jump_fcontext", "it switches stacks"),
        ("setjmp", "it returns more than once"),
        ("siglongjmp", "it does not return"),
    ] {
        let hook = format!("*:{function}(size=arg1, ptr=ret)");
        let text = Heapbpf::new(["--pid", "1", "--hook", &hook]).run().expect_error(WRONG_USAGE);
        assert!(
            text.contains(reason) && text.contains(&format!("`{function}`")) && text.contains("use `entry`"),
            "{text}"
        );
    }
}

/// Generated code calls V8's runtime functions; a return that was replaced killed node.
#[test]
fn runtime_functions_of_v8_are_counted_at_their_entry() {
    const FUNCTION: &str = "_ZN2v88internal13Runtime_ThrowEiPmPNS0_7IsolateE";
    let node = Path::new("/usr/bin/node");
    let exports = Command::new("nm").args(["-D", "--defined-only"]).arg(node).output();
    if !exports.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(FUNCTION)) {
        return;
    }
    let script = "let n = 0; function f(i) { try { throw new Error(String(i)); } catch { n++; } } \
                  for (let i = 0; i < 20000; i++) f(i); globalThis.gc(); console.log('done', n);";
    let hook = format!("v8=node:{FUNCTION}(size=arg1, entry)");
    let words = ["--interval", "1", "--heap", "v8", "-o", "out.json", "--hook", &hook, "--", "/usr/bin/node"];
    let mut heapbpf = Heapbpf::new(words.into_iter().chain(["--expose-gc", "-e", script]));
    let outcome = heapbpf.run();
    assert!(outcome.stdout.contains("done 20000"), "{}\n{}", outcome.stdout, outcome.stderr);
    assert!(totals(&heapbpf.report("out.json"), "v8").alloc_count >= 1000);
}
