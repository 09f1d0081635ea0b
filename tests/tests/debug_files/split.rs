//! Names of C++ whose debug information is elsewhere: in files that the program names by their paths (split DWARF).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use heapbpf_tests::heapbpf::Heapbpf;
use heapbpf_tests::kernel;
use heapbpf_tests::target::run;
use tempfile::TempDir;

/// Functions with the same last part, which gcc does not qualify, inlined and not.
const SHOP: &str = r#"
#include <stdlib.h>
#define KEEP(n) void *block = malloc(n); asm volatile("" ::"r"(block) : "memory")
namespace {
struct Cache { __attribute__((always_inline)) void add(size_t n) { KEEP(n); } };
struct Log { __attribute__((always_inline)) void add(size_t n) { KEEP(n + 1); } };
struct Index { __attribute__((noinline)) void add(size_t n) { KEEP(n + 2); } };
}
int main(int n, char **) {
    auto small = [](int n) __attribute__((always_inline)) { KEEP(n); };
    auto large = [](int n) __attribute__((always_inline)) { KEEP(n * 7); };
    for (int i = 0; i < 10; i++) {
        Cache().add(1000);
        Log().add(3000);
        Index().add(5000);
        small(100 * n);
        large(100 * n);
    }
}
"#;

/// Bytes by function.
const TRUTH: [(&str, u64); 5] = [
    ("(anonymous namespace)::Cache::add(unsigned long)", 10_000),
    ("(anonymous namespace)::Log::add(unsigned long)", 30_010),
    ("(anonymous namespace)::Index::add(unsigned long)", 50_020),
    ("main::{lambda(int)#1}::operator()(int) const", 1_000),
    ("main::{lambda(int)#2}::operator()(int) const", 7_000),
];

struct Shop(TempDir);

impl Shop {
    fn build(flags: &[&str]) -> Self {
        kernel::require_root();
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        fs::write(directory.path().join("shop.cpp"), SHOP).expect("the directory is ours");
        let mut gcc = Command::new("g++");
        run(gcc.args(["-O1", "shop.cpp", "-o", "shop"]).args(flags).current_dir(directory.path()));
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Records the program, which has ended when names are read. Returns bytes by leaf, and what is printed.
    fn record(&self) -> (Vec<(String, u64)>, String) {
        let program = self.path("shop").display().to_string();
        let words = ["--interval", "1", "--on-overload", "drop", "-o", "report.json", "--"];
        let mut heapbpf = Heapbpf::new(words.iter().copied().chain([program.as_str()]));
        let outcome = heapbpf.run().expect_code(0);
        let report = heapbpf.report("report.json");
        let processes = report.targets.iter().filter(|process| process.command.ends_with("shop"));
        let named =
            processes.flat_map(|process| process.exact_by_leaf()).map(|(name, counts)| (name, counts.alloc_bytes));
        (named.collect(), outcome.stdout + &outcome.stderr)
    }
}

#[track_caller]
fn check(shop: &Shop) {
    let (named, printed) = shop.record();
    for (function, bytes) in TRUTH {
        assert!(named.contains(&(function.to_owned(), bytes)), "{function} is not in {named:?}");
    }
    assert!(!printed.contains("names of"), "{printed}");
}

#[test]
fn functions_of_one_name_are_apart() {
    check(&Shop::build(&["-g"]));
}

#[test]
fn split_debug_information_is_found_at_its_path_or_beside_the_program() {
    check(&Shop::build(&["-g", "-gsplit-dwarf"]));
    // Debian 12's dwp crashes on DWARF 5.
    let shop = Shop::build(&["-gdwarf-4", "-gsplit-dwarf"]);
    run(Command::new("dwp").args(["-e", "shop"]).current_dir(shop.0.path()));
    fs::remove_file(shop.path("shop.dwo")).expect("gcc has made it");
    check(&shop);
}

#[track_caller]
fn check_missing(shop: &Shop) {
    let (named, printed) = shop.record();
    let has = |function: &str| named.iter().any(|(name, _)| name == function);
    assert!(has("(anonymous namespace)::Index::add(unsigned long)") && has("main"), "{named:?}");
    assert!(!named.iter().any(|(name, _)| name.contains("Cache")), "{named:?}");
    let reason = format!("in 1 file (`.dwo`) that is not here, `{}`: inlined calls", shop.path("shop.dwo").display());
    assert!(printed.contains(&reason) && printed.contains("`shop.dwp`"), "{printed}");
}

#[test]
fn missing_split_debug_information_is_reported() {
    let shop = Shop::build(&["-g", "-gsplit-dwarf"]);
    fs::remove_file(shop.path("shop.dwo")).expect("gcc has made it");
    check_missing(&shop);
    // What is no file is not opened.
    run(Command::new("mkfifo").arg(shop.path("shop.dwo")));
    check_missing(&shop);
}
