//! Names against what was compiled, and hostile files.

use std::path::{Path, PathBuf};

use heapbpf_base::address::LinkAddr;

use super::*;
use crate::object::debug_files;
use crate::object::module::ModuleStore;
use crate::object::symbols::{Search, defined_functions};
use heapbpf_base::testing::Workshop;

/// Function, line, inlined.
type Facts = (Option<String>, Option<u32>, bool);

/// The distinct answers over the code of one function, or over the offsets given.
struct Answers {
    chains: Vec<Vec<Facts>>,
    files: Vec<String>,
}

fn answers_at(path: &Path, offsets: &[FileOffset]) -> Answers {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    let mut answers = Answers { chains: Vec::new(), files: Vec::new() };
    for frames in Resolver::in_process().resolve(id, modules.get(id), offsets) {
        answers.files.extend(frames.iter().filter_map(|frame| frame.file.as_deref().map(str::to_owned)));
        let facts = |frame: &ResolvedFrame| (frame.function.as_deref().map(str::to_owned), frame.line, frame.inlined);
        answers.chains.push(frames.iter().map(facts).collect());
    }
    answers.files.sort();
    answers.files.dedup();
    answers.chains.dedup();
    answers
}

fn offsets_of(path: &Path, function: &str) -> Vec<FileOffset> {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    let found = defined_functions(modules.get(id), &[function], Search::Everything).expect("an ELF file");
    let [found] = &found[..] else { panic!("{function}: {found:?}") };
    (found.offset.0..found.offset.0 + found.size_bytes).map(FileOffset).collect()
}

fn answers(path: &Path, function: &str) -> Answers {
    answers_at(path, &offsets_of(path, function))
}

fn frame(function: &str, line: Option<u32>, inlined: bool) -> Facts {
    (Some(function.to_owned()), line, inlined)
}

impl Answers {
    fn has(&self, chain: &[Facts]) {
        assert!(self.chains.iter().any(|known| known == chain), "{chain:?} in {:#?}", self.chains);
    }
}

/// `i` is called like the C++ demangler's word for `int`.
const C: &str = "#include <stdlib.h>
static inline __attribute__((always_inline)) void *inner(size_t n) {
    return malloc(n * 3);
}
static inline __attribute__((always_inline)) void *middle(size_t n) {
    return inner(n + 1);
}
__attribute__((noinline)) void *i(size_t n) {
    void *block = middle(n);
    __asm__ volatile(\"\" ::: \"memory\");
    return block;
}
int main(int n, char **v) { return i(n) == v; }
";

#[test]
fn inlined_calls_are_listed_innermost_first() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-g", "-O2"]);
    let answers = answers(&program, "i");
    answers.has(&[frame("inner", Some(3), true), frame("middle", Some(6), true), frame("i", Some(9), false)]);
    assert!(answers.chains.iter().all(|chain| chain.last().is_some_and(|last| last.0.as_deref() == Some("i"))));
    assert!(
        answers.files.contains(&workshop.path("program.c").to_str().expect("UTF-8").to_owned()),
        "{:?}",
        answers.files
    );
}

/// gcc gives lambdas of `main` no linkage names in DWARF.
#[test]
fn lambdas_keep_the_function_that_contains_them() {
    let source = "#include <cstdlib>
void *volatile sink;
int main(int n, char **) {
    auto one = [](int n) __attribute__((noipa)) { sink = malloc(n); };
    auto two = [](int n) __attribute__((noinline)) { sink = malloc(n + 1); };
    one(n);
    two(n);
}
";
    let workshop = Workshop::new();
    let program = workshop.compile("g++", "program.cpp", source, &["-g", "-O2"]);
    for (symbol, name, line) in [
        ("_ZZ4mainENKUliE_clEi", "main::{lambda(int)#1}::operator()(int) const", 4),
        ("_ZZ4mainENKUliE0_clEi.constprop.0", "main::{lambda(int)#2}::operator()(int) const", 5),
    ] {
        let offsets = offsets_of(&program, symbol);
        answers_at(&program, &offsets).has(&[frame(name, Some(line), false)]);
    }
}

/// Classes and lambdas of which gcc writes the last part of the name alone, inlined and not.
const HIDDEN: &str = "#include <stdlib.h>
#define KEEP(n) void *block = malloc(n); __asm__ volatile(\"\" ::\"r\"(block) : \"memory\")
#define INLINE __attribute__((always_inline))
#define ALONE __attribute__((noinline))
namespace {
struct Cache { INLINE void add(size_t n) { KEEP(n); } };
struct Log { INLINE void add(size_t n) { KEEP(n + 1); } };
}
static INLINE inline void helper(const char *, int n) { KEEP(n); }
ALONE static void both(int n) { KEEP(n); struct Local { INLINE void add(long n) { KEEP(n); } } local; local.add(n); }
extern \"C\" { ALONE static void plain(int n) { KEEP(n); } }
extern \"C\" ALONE void entry(int n) {
    plain(n);
    Cache().add(n);
    Log().add(n);
    helper(nullptr, n);
    auto one = [](int n) INLINE { KEEP(n); };
    auto two = [](int n) INLINE { KEEP(n); };
    one(n);
    two(n);
    both(n);
}
int main(int n, char **) { entry(n); }
";

#[test]
fn functions_in_unnamed_scopes_have_qualified_names() {
    let workshop = Workshop::new();
    for optimized in ["-O0", "-O1", "-O2"] {
        let program = workshop.compile("g++", "program.cpp", HIDDEN, &["-g", optimized]);
        let entry = answers(&program, "entry");
        for (function, line, call) in [
            ("(anonymous namespace)::Cache::add(unsigned long)", 6, 14),
            ("(anonymous namespace)::Log::add(unsigned long)", 7, 15),
            ("helper(char const*, int)", 9, 16),
            ("entry::{lambda(int)#1}::operator()(int) const", 17, 19),
            ("entry::{lambda(int)#2}::operator()(int) const", 18, 20),
        ] {
            entry.has(&[frame(function, Some(line), true), frame("entry", Some(call), false)]);
        }
        answers(&program, "plain").has(&[frame("plain", Some(11), false)]);
        let both = answers(&program, "_ZL4bothi");
        both.has(&[frame("both(int)", Some(10), false)]);
        both.has(&[frame("both(int)::Local::add(long)", Some(10), true), frame("both(int)", Some(10), false)]);
    }
}

#[test]
fn a_function_in_two_parts_has_lines_in_both() {
    let source = "#include <stdlib.h>
__attribute__((cold, noinline)) void report(void) { abort(); }
__attribute__((noinline)) void *part(size_t n) {
    if (__builtin_expect(n > 1000, 0)) {
        report();
        return malloc(n + 7);
    }
    return malloc(n);
}
int main(int n, char **v) { return part(n) == v; }
";
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", source, &["-g", "-O2", "-freorder-blocks-and-partition"]);
    for (symbol, line) in [("part", 8), ("part.cold", 5)] {
        answers(&program, symbol).has(&[frame("part", Some(line), false)]);
    }
}

#[test]
fn symbols_without_a_size_are_not_used() {
    let source = ".text\n.globl main, sized\nmain: nop\nnop\n.type sized, @function\nsized: nop\n.size sized, 1\n";
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.s", source, &["-g"]);
    let sized = offsets_of(&program, "sized")[0];
    let around = [FileOffset(sized.0 - 1), sized];
    assert_eq!(answers_at(&program, &around).chains, [vec![], vec![frame("sized", Some(6), false)]]);
}

#[test]
fn without_debug_information_only_functions_are_known() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-O2"]);
    let answers = answers(&program, "i");
    assert_eq!(answers.chains, [vec![frame("i", None, false)]]);
    assert_eq!(answers.files, [] as [String; 0]);
}

#[test]
fn a_stripped_program_has_names_of_its_exports_only() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-g", "-O2", "-Wl,--export-dynamic-symbol=i"]);
    let (exported, local) = (offsets_of(&program, "i"), offsets_of(&program, "main"));
    workshop.run("strip", &["program"]);
    assert_eq!(answers_at(&program, &exported).chains, [vec![frame("i", None, false)]]);
    assert_eq!(answers_at(&program, &local).chains, [vec![(None, None, false)]]);
}

fn resolved(path: &Path, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    Resolver::in_process().resolve(id, modules.get(id), offsets)
}

#[test]
fn a_function_without_a_name_has_its_start() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-O2"]);
    let functions = ["i", "main"].map(|function| offsets_of(&program, function));
    workshop.run("strip", &["program"]);
    for offsets in functions {
        let expected: Arc<[ResolvedFrame]> = [ResolvedFrame::starting_at(offsets[0])].into();
        assert_eq!(resolved(&program, &offsets), vec![expected; offsets.len()]);
    }
    // Code without unwind information.
    let source = ".text\n.globl main\nmain: nop\nnop\n.size main, 2\n.type main, @function\n";
    let program = workshop.compile("gcc", "bare.s", source, &[]);
    let offsets = offsets_of(&program, "main");
    workshop.run("strip", &["bare"]);
    assert!(resolved(&program, &offsets).iter().all(|frames| frames.is_empty()));
}

/// As GDB's manual describes it: a symbol table in an ELF file in a compressed section.
fn with_mini_debug_info(workshop: &Workshop) -> std::path::PathBuf {
    let program = workshop.compile("gcc", "program.c", C, &["-O2"]);
    workshop.run("objcopy", &["--only-keep-debug", "program", "mini"]);
    workshop.run("xz", &["mini"]);
    workshop.run("strip", &["program"]);
    program
}

#[test]
fn mini_debug_info_is_read() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-O2"]);
    let offsets = offsets_of(&program, "i");
    let program = with_mini_debug_info(&workshop);
    workshop.run("objcopy", &["--add-section", ".gnu_debugdata=mini.xz", "program"]);
    assert_eq!(answers_at(&program, &offsets).chains, [vec![frame("i", None, false)]]);
}

#[test]
fn malformed_mini_debug_info_is_reported() {
    let workshop = Workshop::new();
    with_mini_debug_info(&workshop);
    let packed = std::fs::read(workshop.path("mini.xz")).expect("readable");
    let bomb = "head -c 300M /dev/zero | xz -0 > bomb.xz";
    workshop.run("sh", &["-c", bomb]);
    std::fs::write(workshop.path("cut.xz"), &packed[..packed.len() / 2]).expect("writable");
    std::fs::write(workshop.path("text.xz"), "no archive").expect("writable");
    workshop.run("sh", &["-c", "printf text | xz > inner.xz"]);
    for name in ["bomb", "cut", "text", "inner"] {
        std::fs::copy(workshop.path("program"), workshop.path(name)).expect("copied");
        workshop.run("objcopy", &["--add-section", &format!(".gnu_debugdata={name}.xz"), name]);
        let mut modules = ModuleStore::default();
        let id = modules.intern_path(&workshop.path(name)).expect("it opens");
        let resolver = Resolver::in_process();
        let entry = modules.get(id).elf().expect("an ELF file").entry;
        let offset = modules.get(id).elf().expect("an ELF file").file_offset(entry).expect("code");
        let frames = resolver.resolve(id, modules.get(id), &[offset]);
        assert!(frames[0].iter().all(|frame| frame.function.is_none()), "{name}: {frames:?}");
        let failures = resolver.symbolization().failures;
        assert!(failures[0].reason.contains("MiniDebugInfo"), "{name}: {failures:?}");
    }
}

#[test]
fn stubs_have_the_name_of_their_function() {
    let workshop = Workshop::new();
    for (name, flags) in
        [("lazy.c", ["-Wl,-z,lazy", "-fcf-protection=none"]), ("bound.c", ["-Wl,-z,now", "-fcf-protection"])]
    {
        let program = workshop.compile("gcc", name, C, &[&["-O2"], &flags[..]].concat());
        let output = std::process::Command::new("objdump").arg("-d").arg(&program).output().expect("objdump runs");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text.lines().find(|line| line.ends_with("<malloc@plt>:")).expect("a stub");
        let address = u64::from_str_radix(&line[..16], 16).expect("an address");
        let mut modules = ModuleStore::default();
        let id = modules.intern_path(&program).expect("it opens");
        let offset = modules.get(id).elf().expect("ELF").file_offset(LinkAddr(address)).expect("code");
        workshop.run("strip", &[name.strip_suffix(".c").expect("a source")]);
        assert_eq!(answers_at(&program, &[offset]).chains, [vec![frame("malloc@plt", None, false)]], "{name}");
    }
}

#[test]
fn cpp_names_are_demangled() {
    let source = "#include <string>
namespace shop {
template <typename T> struct Cart {
    T *items = nullptr;
    __attribute__((always_inline)) inline void grow(int n) { items = new T[n]; }
    __attribute__((noinline)) void add(T item, int n);
};
template <typename T> void Cart<T>::add(T item, int n) {
    grow(n);
    items[0] = item;
}
}
extern \"C\" __attribute__((noinline)) void shop_c(shop::Cart<long> *cart) {
    cart->add(1, 2);
    __asm__ volatile(\"\" ::: \"memory\");
}
int main() { shop::Cart<long> cart; shop_c(&cart); return cart.items[0]; }
";
    let workshop = Workshop::new();
    let program = workshop.compile("g++", "program.cpp", source, &["-g", "-O2"]);
    let add = answers(&program, "_ZN4shop4CartIlE3addEli");
    add.has(&[
        frame("shop::Cart<long>::grow(int)", Some(5), true),
        frame("shop::Cart<long>::add(long, int)", Some(9), false),
    ]);
    answers(&program, "shop_c").has(&[frame("shop_c", Some(14), false)]);
}

#[test]
fn rust_names_are_demangled() {
    let source = "mod depot {
    #[inline(always)]
    pub fn stock(n: usize) -> Vec<u64> {
        vec![7; n]
    }
}
#[unsafe(no_mangle)]
#[inline(never)]
pub extern \"C\" fn fill(n: usize) -> usize {
    depot::stock(n).iter().map(|item| *item as usize).sum()
}
fn main() { println!(\"{}\", fill(std::env::args().count())); }
";
    let workshop = Workshop::new();
    let program = workshop.compile("rustc", "program.rs", source, &["-g", "-O", "--edition=2024"]);
    let answers = answers(&program, "fill");
    let stocked = answers.chains.iter().find(|chain| {
        chain.contains(&frame("program::depot::stock", Some(4), true))
            && chain.last() == Some(&frame("fill", Some(10), false))
    });
    let stocked = stocked.unwrap_or_else(|| panic!("{:#?}", answers.chains));
    assert!(stocked[..stocked.len() - 1].iter().all(|frame| frame.2), "{stocked:#?}");
}

#[test]
fn a_debug_file_beside_the_program_is_used() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-g", "-O2"]);
    let offsets = offsets_of(&program, "i");
    workshop.run("objcopy", &["--only-keep-debug", "program", "program.debug"]);
    workshop.run("strip", &["program"]);
    workshop.run("objcopy", &["--add-gnu-debuglink=program.debug", "program"]);
    let chain = [frame("inner", Some(3), true), frame("middle", Some(6), true), frame("i", Some(9), false)];
    answers_at(&program, &offsets).has(&chain);
    // A debug file of another build is not believed, and costs nothing but itself.
    workshop.compile("gcc", "other.c", "int main(void) { return 1; }\n", &["-g"]);
    workshop.run("objcopy", &["--only-keep-debug", "other", "program.debug"]);
    assert_eq!(answers_at(&program, &offsets).chains, [vec![(None, None, false)]]);
}

#[test]
fn the_c_librarys_own_functions_have_names_and_lines() {
    // The distribution keeps them in /usr/lib/debug/.build-id; the package is libc6-dbg.
    let library = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(library).expect("glibc is here");
    let module = modules.get(id);
    let elf = module.elf().expect("an ELF file");
    let debug_file =
        debug_files::find_installed(elf.build_id.as_ref().expect("a build id")).expect("libc6-dbg is installed");
    let path = debug_file.path().to_string_lossy().replace("self", &std::process::id().to_string());
    let symbols = std::process::Command::new("nm").arg(path).output().expect("nm runs").stdout;
    let symbols = String::from_utf8(symbols).expect("symbols are text");
    let line = symbols.lines().find(|line| line.ends_with(" t _int_malloc")).expect("it is a local function");
    let address = u64::from_str_radix(&line[..16], 16).expect("an address");
    let offset = module.elf().expect("is ELF").file_offset(LinkAddr(address + 40)).expect("code");
    let answers = answers_at(library, &[offset]);
    let [chain] = &answers.chains[..] else { panic!("{:#?}", answers.chains) };
    let outer = chain.last().expect("a function");
    assert_eq!((outer.0.as_deref(), outer.2), (Some("_int_malloc"), false));
    assert!(outer.1.is_some() && answers.files.iter().any(|file| file.ends_with("/malloc.c")), "{:?}", answers.files);
}

#[test]
fn compressed_debug_information_is_read_unless_its_size_is_forged() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-g", "-O2", "-gz=zlib"]);
    let chain = [frame("inner", Some(3), true), frame("middle", Some(6), true), frame("i", Some(9), false)];
    answers(&program, "i").has(&chain);

    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&program).expect("it opens");
    let elf = modules.get(id).elf().expect("an ELF file");
    let claims = elf.sections.iter().filter(|section| section.flags & u64::from(object::elf::SHF_COMPRESSED) != 0);
    let claims: Vec<u64> = claims.map(|section| section.offset.0 + 8).collect();
    assert!(!claims.is_empty(), "nothing was compressed");
    for claim in [u64::MAX, 1 << 62, 1] {
        let mut bytes = std::fs::read(&program).expect("readable");
        let at = usize::try_from(claims[0]).expect("a small file");
        bytes[at..at + 8].copy_from_slice(&claim.to_le_bytes());
        std::fs::write(workshop.path("liar"), bytes).expect("writable");
        let offsets = offsets_of(&program, "i");
        let answers = answers_at(&workshop.path("liar"), &offsets);
        assert_eq!(answers.chains, [vec![frame("i", None, false)]], "{claim:#x}");
    }
}

/// `C` in a form of debug information, by a command for the shell.
fn check_form(workshop: &Workshop, command: &str) {
    std::fs::write(workshop.path("program.c"), C).expect("writable");
    workshop.run("sh", &["-ec", command]);
    let chain = [frame("inner", Some(3), true), frame("middle", Some(6), true), frame("i", Some(9), false)];
    let found = answers(&workshop.path("program"), "i");
    assert!(found.chains.contains(&chain.to_vec()), "{command}: {:#?}", found.chains);
}

#[test]
fn debug_information_is_read_in_all_its_forms() {
    for version in [4, 5] {
        let gcc = format!("gcc -O2 -g -gdwarf-{version}");
        for command in [
            format!("{gcc} -gz=zlib program.c -o program"),
            format!("{gcc} program.c -o program; objcopy --compress-debug-sections=zstd program"),
            format!("{gcc} program.c -o program; objcopy --compress-debug-sections=zlib-gnu program"),
            format!("{gcc} -gdwarf64 program.c -o program"),
            format!("{gcc} -fdebug-types-section program.c -o program"),
            format!("{gcc} -gsplit-dwarf program.c -o program"),
            format!("{gcc} -gsplit-dwarf -gz=zlib program.c -o program"),
            format!("{gcc} program.c -o program; cp program other; dwz program other"),
            format!("{gcc} program.c -o program; cp program other; dwz -m shared program other; test -e shared"),
            format!("{gcc} -flto program.c -o program"),
        ] {
            check_form(&Workshop::new(), &command);
        }
    }
    // Debian 12's dwp crashes on DWARF 5.
    let gcc = "gcc -O2 -gdwarf-4 -gsplit-dwarf program.c -o program; dwp -e program";
    check_form(&Workshop::new(), &format!("{gcc}; rm *.dwo"));
    check_form(&Workshop::new(), &format!("{gcc}; rm *.dwo; objcopy --compress-debug-sections=zstd program.dwp"));
}

#[test]
fn paths_of_sources_that_are_not_utf8_are_escaped() {
    for version in [4, 5] {
        let workshop = Workshop::new();
        let copy = r#"d=$(printf 'f\351'); mkdir "$d"; cp program.c "$d/$(printf 'caf\351.c')""#;
        check_form(&workshop, &format!("{copy}; gcc -O2 -g -gdwarf-{version} \"$d\"/caf*.c -o program"));
        let files = answers(&workshop.path("program"), "i").files;
        assert!(files.iter().all(|file| !file.contains(char::REPLACEMENT_CHARACTER)), "{files:?}");
        assert!(files.iter().any(|file| file.ends_with(r"/f\xe9/caf\xe9.c")), "{files:?}");
    }
}

/// Names of `i`, and why there are no more.
fn failure_of(workshop: &Workshop, command: &str) -> (Vec<Vec<Facts>>, String) {
    std::fs::write(workshop.path("program.c"), C).expect("writable");
    workshop.run("sh", &["-ec", command]);
    let program = workshop.path("program");
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&program).expect("it opens");
    let resolver = Resolver::in_process();
    resolver.resolve(id, modules.get(id), &offsets_of(&program, "i"));
    let failures = resolver.symbolization().failures;
    let [failure] = &failures[..] else { panic!("{command}: {failures:?}") };
    assert_eq!(failure.names, NamesFrom::SymbolTable);
    (answers(&program, "i").chains, failure.reason.clone())
}

#[test]
fn debug_information_that_is_not_read_is_reported() {
    let alone = vec![frame("i", Some(3), false)];
    let split = Workshop::new();
    let (chains, reason) = failure_of(&split, "gcc -O2 -g -gsplit-dwarf program.c -o program; rm *.dwo");
    assert!(chains.contains(&alone), "{chains:?}");
    let path = split.path("program.dwo");
    let expected = format!("in 1 file (`.dwo`) that is not here, `{}`: inlined calls are missing", path.display());
    assert!(reason.contains(&expected) && reason.contains("`program.dwp`"), "{reason}");
    // The file of another build.
    let split_by = |level: &str| format!("gcc -{level} -g -gsplit-dwarf program.c -o program");
    let other = format!("{}; mv program kept; {}; mv kept program", split_by("O2"), split_by("O1"));
    let (chains, reason) = failure_of(&split, &other);
    assert!(chains.contains(&alone) && reason.contains("`.dwo`"), "{chains:?} {reason}");

    let shared = "gcc -O2 -g program.c -o program; cp program other; dwz -m shared program other; rm shared";
    let (chains, reason) = failure_of(&Workshop::new(), shared);
    assert!(chains.iter().all(|chain| chain.last().is_some_and(|last| last.0.as_deref() == Some("i"))), "{chains:?}");
    assert!(reason.contains("dwz(1)") && reason.contains("--debug-dir"), "{reason}");

    // Kind 9 of compression does not exist.
    let unknown = "gcc -O2 -g -gz=zlib program.c -o program; \
        at=$(readelf -SW program | sed -n 's/.*\\.debug_info *PROGBITS *[0-9a-f]* *\\([0-9a-f]*\\).*/\\1/p'); \
        printf '\\011' | dd of=program bs=1 seek=$((0x$at)) conv=notrunc status=none";
    let (chains, reason) = failure_of(&Workshop::new(), unknown);
    assert_eq!(chains, [vec![frame("i", None, false)]]);
    assert!(reason.contains("objcopy --decompress-debug-sections"), "{reason}");
}

/// A copy of a program in which a section claims this size, and the file has it or not.
fn with_size(workshop: &Workshop, program: &Path, section: &str, size_bytes: u64, is_sparse: bool) -> PathBuf {
    let bytes = std::fs::read(program).expect("readable");
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(program).expect("it opens");
    let sections = &modules.get(id).elf().expect("an ELF file").sections;
    let at = sections.iter().position(|its| &*its.name == section).expect("it is there");
    let headers = usize::try_from(u64::from_le_bytes(*bytes[40..].first_chunk().expect("a header"))).expect("small");
    let path = workshop.path("forged");
    let mut forged = bytes;
    let at = headers + 64 * at + 32;
    forged[at..at + 8].copy_from_slice(&size_bytes.to_le_bytes());
    let end_bytes = forged.len() as u64 + size_bytes;
    std::fs::write(&path, forged).expect("writable");
    if is_sparse {
        std::fs::File::options().write(true).open(&path).and_then(|file| file.set_len(end_bytes)).expect("sparse");
    }
    path
}

#[test]
fn symbol_tables_that_cannot_be_read_are_reported() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-g", "-O2"]);
    let offset = offsets_of(&program, "i")[0];
    for (section, is_sparse, reason, names) in [
        (".strtab", false, "end behind the file", None),
        (".strtab", true, "exceeds 32 GiB", None),
        (".symtab", false, "end behind the file", None),
        (".debug_info", false, "debug information is malformed", Some("i")),
    ] {
        let path = with_size(&workshop, &program, section, 1 << 40, is_sparse);
        let mut modules = ModuleStore::default();
        let id = modules.intern_path(&path).expect("it opens");
        let resolver = Resolver::in_process();
        let frames = resolver.resolve(id, modules.get(id), &[offset]);
        let function = frames[0].first().and_then(|frame| frame.function.as_deref());
        assert_eq!(function, names, "{section}");
        let failures = resolver.symbolization().failures;
        assert!(failures[0].reason.contains(reason), "{section}: {failures:?}");
    }
}

#[test]
fn a_file_that_shrank_is_not_read() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-g", "-O2"]);
    let offsets = offsets_of(&program, "i");
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&program).expect("it opens");
    let resolver = Resolver::in_process();
    let first = resolver.resolve(id, modules.get(id), &offsets[..1]);
    assert!(!first[0].is_empty());
    std::fs::File::options().write(true).open(&program).and_then(|file| file.set_len(0)).expect("truncated");
    // What was known stays known; the rest would have killed this process.
    assert_eq!(resolver.resolve(id, modules.get(id), &offsets[..1]), first);
    assert!(resolver.resolve(id, modules.get(id), &offsets[5..]).iter().all(|frames| frames.is_empty()));
}

#[test]
fn answers_are_in_the_order_of_requests() {
    let workshop = Workshop::new();
    let program = workshop.compile("gcc", "program.c", C, &["-O1", "-fno-inline"]);
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(&program).expect("it opens");
    let names = ["main", "i", "nowhere", "main"];
    let offsets = names.map(|name| if name == "nowhere" { FileOffset(1) } else { offsets_of(&program, name)[0] });
    let resolver = Resolver::in_process();
    for _ in 0..2 {
        let resolved = resolver.resolve(id, modules.get(id), &offsets);
        let found: Vec<Option<&str>> = resolved.iter().map(|frames| frames.first()?.function.as_deref()).collect();
        assert_eq!(found, [Some("main"), Some("i"), None, Some("main")]);
        resolver.release();
    }
}
