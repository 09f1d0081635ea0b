//! Names from debug information against those that linkers have.

use std::path::Path;
use std::process::Command;

use heapbpf_base::testing::Workshop;

use super::*;
use crate::object::elf::Elf;
use crate::object::image::Image;
use crate::symbolize::sandbox::dwarf::{Companions, DebugInfo};
use crate::symbolize::sandbox::sections::Sections;

/// Functions that other files cannot use, whose names gcc does not write into debug information.
const SOURCE: &str = r#"
#include <cstddef>
#include <string>
#include <vector>
int volatile sink;
struct Public { int x; enum Colour { red }; };
namespace {
enum class Size : short { small };
struct Cache {
    Cache(int) { sink++; }
    ~Cache() { sink++; }
    void *add(size_t n) { sink += n; return nullptr; }
    int get() const { return sink; }
    static void drop(const char *name, ...) { sink++; }
    operator long() { return sink; }
    bool operator<(const Cache &) const { return sink; }
    void operator()(unsigned short) const { sink++; }
};
struct Log {
    void *add(size_t n) { sink += n; return nullptr; }
    template <typename T> void write(T value) { sink++; }
    struct Line { void print(Line *, Line &&) { sink++; } };
};
template <typename T, int N> struct Ring {
    void push(T const &value) { sink++; }
    void pop(T *volatile *) { sink++; }
};
namespace inner { void one(std::string &text, std::vector<long> const &more) { sink++; } }
void numbers(char, signed char, unsigned char, short, unsigned, long, unsigned long, long long, unsigned long long, bool) { sink++; }
void others(float, double, long double, wchar_t, char16_t, __int128, unsigned __int128, decltype(nullptr)) { sink++; }
void pointers(const char *const *, void *, const void *, int (*)[3], int (&)[4], volatile int *) { sink++; }
void functions(void (*)(int, Cache *), int (Cache::*)(long), int Public::*, Public::Colour, Size) { sink++; }
}
static int helper(Public &) { return sink; }
namespace outer { static int helper(Public *) { return sink; } inline namespace v2 { static void newest() { sink++; } } }
void scope(int n) {
    struct Local { void run(int) { sink++; } } local;
    local.run(n);
    auto first = [](int) { sink++; };
    auto second = [n](int) mutable { sink += n; };
    auto third = [&]() { auto nested = [](Public) { sink++; }; nested({}); };
    auto fourth = [](int, int) { sink++; };
    first(n); second(n); third(); fourth(n, n);
}
struct Shown { void method() { auto in_method = [this](long) { sink++; }; in_method(1); } };
int main() {
    Cache cache(1); Log log; Log::Line line; Ring<unsigned long, 3> ring; Ring<std::vector<short>, 4> other;
    cache.add(1); log.add(1); cache.get(); Cache::drop("x", 1); (long)cache; cache < cache; cache(1);
    log.write<int>(1); line.print(&line, Log::Line()); ring.push(1); ring.pop(nullptr); other.push({});
    std::string text; std::vector<long> more; inner::one(text, more);
    numbers(1, 1, 1, 1, 1, 1, 1, 1, 1, true); others(1, 1, 1, 1, 1, 1, 1, nullptr);
    int three[3], four[4]; pointers(nullptr, nullptr, nullptr, &three, four, nullptr);
    functions(nullptr, nullptr, nullptr, Public::red, Size::small);
    Public it; helper(it); outer::helper(&it); outer::newest(); scope(1); Shown().method();
    struct { void call() { sink++; } } unnamed; unnamed.call();
    auto last = [](Cache &, std::string) { sink++; }; last(cache, text);
}
"#;

fn read(path: &Path) -> (Image, Elf) {
    let image = Image::new(std::fs::File::open(path).expect("it was built")).expect("a file");
    let elf = Elf::read(&image).expect("ELF");
    (image, elf)
}

/// Local functions of a program, by address.
fn symbols(path: &Path) -> Vec<(u64, String)> {
    let output = Command::new("nm").arg("--defined-only").arg(path).output().expect("`nm` runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let local = fields.filter(|fields| fields[1] == "t" && fields[2].starts_with("_Z"));
    local.map(|fields| (u64::from_str_radix(fields[0], 16).expect("an address"), demangle(fields[2]))).collect()
}

#[track_caller]
fn check(flags: &[&str]) {
    let workshop = Workshop::new();
    let program = workshop.compile("g++", "program.cpp", SOURCE, flags);
    let (image, elf) = read(&program);
    let sections = Sections::read(&image, &elf).expect("well formed");
    let info = DebugInfo::new(&sections, None, &Companions::default()).expect("well formed");
    let without_symbols = |_| None;
    let scopes = Scopes::new(&without_symbols);
    let (mut count, mut others) = (0, Vec::new());
    for (address, symbol) in symbols(&program) {
        let (frames, _) = info.frames(address + 4);
        let Some(unit) = info.unit_of(address + 4) else { continue };
        let found = frames.last().and_then(|frame| scopes.name(unit, frame.entry?)).unwrap_or_default();
        // What a template's function returns is not part of its name.
        let symbol = symbol.strip_prefix("void ").unwrap_or(&symbol);
        // Types in units of their own have no scope there.
        let symbol = match flags.contains(&"-fdebug-types-section") {
            true => symbol.replace("Public::Colour, (anonymous namespace)::Size", "Colour, Size"),
            false => symbol.to_owned(),
        };
        // cpp_demangle 0.5 misplaces the parameters of some lambdas.
        if !symbol.ends_with("operator() const") && *found != *symbol {
            others.push((found, symbol));
        }
        count += 1;
    }
    assert_eq!(others, [], "{flags:?}");
    assert!(count >= 30, "{flags:?}: {count} functions");
}

#[test]
fn functions_without_a_name_for_linkers_are_named_like_their_symbols() {
    check(&["-g", "-O0"]);
    check(&["-g", "-O0", "-gdwarf-4", "-std=c++17"]);
    check(&["-g", "-O0", "-gdwarf-4", "-fdebug-types-section"]);
    check(&["-g", "-O0", "-gdwarf64"]);
}

#[test]
fn a_symbol_is_of_the_function_if_its_last_part_is() {
    let check = |symbol: &str, name: &str, whole: Option<&str>| {
        assert_eq!(whole_name(symbol, name).as_deref(), whole, "{symbol} {name}");
    };
    let add = "(anonymous namespace)::Cache::add(unsigned long)";
    check(add, "add", Some(add));
    check("(anonymous namespace)::Cache::add(unsigned long) [.cold]", "add", Some(add));
    check("helper(Public&) [.isra.0]", "helper", Some("helper(Public&)"));
    check("void fill<int>(int)", "fill<long int>", Some("void fill<int>(int)"));
    check(
        "main::{lambda(int)#1}::operator()(int) const",
        "operator()",
        Some("main::{lambda(int)#1}::operator()(int) const"),
    );
    check("Cache::~Cache()", "~Cache", Some("Cache::~Cache()"));
    check(add, "dd", None);
    check(add, "remove", None);
    check(add, "", None);
    check("add", "add", Some("add"));
    check("add.constprop.0", "add", Some("add"));
    check("address", "add", None);
}

#[test]
fn types_are_spelled_as_the_demangler_does() {
    for (name, spelled) in [
        (
            "vector<long unsigned int, std::allocator<long unsigned int> >",
            "vector<unsigned long, std::allocator<unsigned long> >",
        ),
        ("Ring<short int, 3>", "Ring<short, 3>"),
        ("long interval", "long interval"),
        ("along int", "along int"),
        ("größe<long int>", "größe<long>"),
        ("", ""),
    ] {
        assert_eq!(in_template(name), spelled);
    }
}
