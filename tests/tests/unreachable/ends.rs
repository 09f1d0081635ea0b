//! How programs end: what is dead then, and the contents of the report.

use heapbpf_tests::heapbpf::{Heapbpf, Outcome};
use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::target::build;
use heapbpf_tests::unreachable::{Check, Sum};

use super::{CLEAN, INCOMPLETE, LEAKS};

#[track_caller]
fn run(recipe: &Recipe, arguments: &[&str], code: i32) -> (Check, Outcome) {
    let program = recipe.build().display().to_string();
    let mut heapbpf = Heapbpf::new(["leaks", "-o", "check.json", "--", &program].iter().chain(arguments));
    let outcome = heapbpf.run().expect_code(code);
    let check = Check::read(&heapbpf.file("check.json"));
    assert!(check.at_exit);
    assert_eq!(check.caveats, [""; 0]);
    (check, outcome)
}

fn ends() -> Recipe {
    Recipe::of("leaks/ends.c")
}

#[test]
fn a_block_of_main_has_leaked_after_its_return() {
    for recipe in [ends(), ends().flags("-static"), ends().flags("-O2")] {
        let (check, _) = run(&recipe, &["return"], LEAKS);
        assert_eq!(check.leaked, Sum::of(1, 400), "{recipe}: {}", check.leak_list());
        assert_eq!(check.leak_of("of_main").size_bytes, 400);
    }
}

/// `main` has not returned: its variables are what they were.
#[test]
fn a_block_of_main_is_reachable_where_a_function_exits() {
    for recipe in [ends(), ends().flags("-static")] {
        let (check, _) = run(&recipe, &["exit", "0"], CLEAN);
        assert_eq!(check.leaked, Sum::default(), "{recipe}: {}", check.leak_list());
        assert!(check.known.count > 0);
    }
}

#[test]
fn the_signal_of_a_killed_program_is_named() {
    for (arguments, code, name) in
        [(&["abort"][..], 134, "SIGABRT"), (&["kill", "11"], 139, "SIGSEGV"), (&["kill", "15"], 143, "SIGTERM")]
    {
        let (check, outcome) = run(&ends(), arguments, code);
        assert_eq!((check.signal.as_deref(), check.leaked), (Some(name), Sum::default()), "{}", check.leak_list());
        assert!(outcome.stderr.contains(&format!(" · killed by {name}, ")), "{}", outcome.stderr);
    }
    let (check, outcome) = run(&ends(), &["exit", "0"], CLEAN);
    assert_eq!(check.signal, None);
    assert!(outcome.stderr.contains(" · at exit, "), "{}", outcome.stderr);
}

#[test]
fn the_report_starts_on_a_new_line() {
    let (_, outcome) = run(&ends(), &["open"], LEAKS);
    assert!(outcome.stderr.starts_with("unfinished"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\n400 bytes in 1 unreachable allocation\n"), "{}", outcome.stderr);
}

#[test]
fn children_are_counted_and_the_check_is_incomplete() {
    let (check, outcome) = run(&ends(), &["children", "5"], INCOMPLETE);
    assert_eq!((check.unchecked_children, check.leak_count), (5, 0), "{}", check.leak_list());
    assert!(
        outcome.stderr.contains("\nincomplete: 5 child processes of the command were not checked\n"),
        "{}",
        outcome.stderr
    );
    let (check, outcome) = run(&ends(), &["children", "0"], CLEAN);
    assert_eq!(check.unchecked_children, 0);
    assert!(!outcome.stderr.contains("incomplete"), "{}", outcome.stderr);
}

#[test]
fn descendants_are_checked_at_their_exits_on_request() {
    let program = ends().build().display().to_string();
    let words = ["leaks", "--follow-forks", "-o", "check.json", "--", &program, "family"];
    let mut heapbpf = Heapbpf::new(words);
    let outcome = heapbpf.run().expect_code(LEAKS);
    assert_eq!(heapbpf.files(), ["check.0001.json", "check.0002.json", "check.json"], "{}", outcome.stderr);
    let [grandchild, child, parent] =
        ["check.0001.json", "check.0002.json", "check.json"].map(|name| Check::read(&heapbpf.file(name)));
    assert!([&grandchild, &child, &parent].iter().all(|check| check.at_exit && check.unchecked_children == 0));
    assert_only_leak(&grandchild, "of_main", 400);
    assert_only_leak(&child, "of_child", 700);
    assert_eq!(parent.leaked, Sum::default(), "{}", parent.leak_list());
    assert_eq!(outcome.stderr.matches(" unreachable out of ").count(), 3, "{}", outcome.stderr);
}

/// Blocks that are allocated before the process has probes have the usable size, and no stack.
#[track_caller]
fn assert_only_leak(check: &Check, function: &str, size_bytes: u64) {
    let [leak] = check.leaks.as_slice() else { panic!("{}", check.leak_list()) };
    if leak.watched {
        assert_eq!((leak.functions()[0], leak.size_bytes), (function, size_bytes));
    } else {
        assert_eq!((leak.usable_size, leak.size_bytes), (true, (size_bytes + 8).next_multiple_of(16) - 8));
    }
    assert_eq!(check.leaked, Sum::of(1, leak.size_bytes), "{}", check.leak_list());
}

/// Eight calls in one line: an entry, whatever their addresses.
#[test]
fn calls_of_an_unrolled_loop_are_one_leak() {
    let program = build("leaks/crowds.c").display().to_string();
    let mut heapbpf = Heapbpf::new(["leaks", "-o", "check.json", "--", &program, "unrolled", "8"]);
    let _ = heapbpf.run().expect_code(LEAKS);
    let check = Check::read(&heapbpf.file("check.json"));
    let [leak] = check.leaks.as_slice() else { panic!("{}", check.leak_list()) };
    assert_eq!((check.leak_count, leak.size_bytes, leak.similar), (1, 72, Sum::of(7, 7 * 72)));
    assert_eq!(leak.addresses().len(), 8);
}
