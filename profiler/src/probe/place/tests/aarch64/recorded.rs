//! Tests with first instructions of the functions of Debian's allocators for arm64, with the placements of their probes.
//!
//! `recorded.txt` has a section for each library, and in it for each function the offset of its probe, the instruction there, what
//! the probe costs, the registers of size, count and pointer, and the instructions. Functions at the same address are listed once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::*;
use crate::object::module::ModuleStore;
use crate::object::symbols::{Search, defined_functions};
use crate::probe::arch::aarch64::disagreement;

const RECORDED: &str = include_str!("recorded.txt");
/// Environment variable with the folder of the libraries to be recorded, each named like its section.
const FOLDER: &str = "HEAPBPF_ARM64_LIBRARIES";
/// Number of instructions that are recorded of a function, unless its probe is behind them.
const RECORDED_MAX: usize = 8;

fn describe(spec: &HookSpec, placement: &Placement) -> String {
    let Arguments { size, count, pointer } = placement.arguments;
    let size = (spec.shape != CallShape::Free).then_some(size);
    let registers = [size, count, pointer].map(|register| match register {
        Some(register) => format!("x{}", register.number()),
        None => "-".to_owned(),
    });
    format!(
        "{:3} {:?} {} `{}`",
        placement.offset_in_function,
        placement.class,
        registers.join(" "),
        placement.instruction
    )
}

fn in_words(words: &[u32], address: LinkAddr, spec: &HookSpec) -> Result<Placement, PlaceError> {
    let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let code = Code { bytes, whole: true, address };
    place_on::<Aarch64>(&code, spec, PlacementMode::Auto, Emulation::default())
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
}

/// Iterates over the lines with their sections: function, address, placement and instructions.
fn lines() -> impl Iterator<Item = (&'static str, &'static str, LinkAddr, &'static str, Vec<u32>)> {
    let mut section = "";
    RECORDED.lines().filter_map(move |line| {
        if let Some(name) = line.strip_prefix("# ") {
            section = name;
        }
        let (description, code) = line.split_once(" : ")?;
        let (function, description) = description.split_once(' ')?;
        let (address, placement) = description.trim_start().split_once(' ')?;
        let words = code.split(' ').map(|word| u32::from_str_radix(word, 16).expect("a number")).collect();
        let address = LinkAddr(u64::from_str_radix(address, 16).expect("a number"));
        Some((section, function, address, placement.trim_end(), words))
    })
}

#[test]
fn probes_are_placed_as_recorded() {
    let mut count = 0;
    for (section, function, address, expected, words) in lines() {
        let spec = spec(function);
        let placement = in_words(&words, address, &spec).expect("it can be placed");
        assert_eq!(describe(&spec, &placement), expected, "{section}: {function}");
        count += 1;
    }
    assert!(count > 100, "{count} functions");
}

#[test]
fn the_kernel_treats_recorded_instructions_as_expected() {
    let all = lines().flat_map(|(.., words)| words);
    assert_eq!(all.into_iter().find_map(disagreement), None);
}

/// Returns the code of each hooked function of a library.
fn functions_of(path: &Path) -> BTreeMap<u64, (HookSpec, Code)> {
    let mut modules = ModuleStore::default();
    let id = modules.intern_path(path).expect("it opens");
    let mut found = BTreeMap::new();
    for table in [functions::C, functions::OPERATORS, functions::MAPPINGS] {
        for spec in table.iter() {
            let defined = defined_functions(modules.get(id), &[spec.function], Search::Exported);
            let Some(function) = defined.expect("an ELF file").first().cloned() else { continue };
            let code = Code::of(modules.get(id), &function).expect("its code can be read");
            found.entry(code.address.0).or_insert((spec, code));
        }
    }
    found
}

#[test]
#[ignore = "records the libraries of the folder HEAPBPF_ARM64_LIBRARIES"]
fn libraries_are_recorded() {
    let folder = std::env::var(FOLDER).expect("HEAPBPF_ARM64_LIBRARIES is a folder");
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("read").path()).collect();
    paths.sort();
    let mut text = String::new();
    let mut instructions = 0;
    for path in paths {
        let name = path.file_name().expect("a file").to_string_lossy();
        let _ = writeln!(text, "# {name}");
        for (address, (spec, code)) in functions_of(&path) {
            let placement = place_on::<Aarch64>(&code, &spec, PlacementMode::Auto, Emulation::default());
            let placement = placement.unwrap_or_else(|error| panic!("{name}: {}: {error}", spec.function));
            let all = words(&code.bytes);
            assert!(code.whole && all.len() * 4 == code.bytes.len(), "{name}: {}", spec.function);
            instructions += all.len();
            let probed = usize::try_from(placement.offset_in_function).expect("small") / 4;
            let beginning = &all[..all.len().min(RECORDED_MAX.max(probed + 1))];
            let in_beginning = in_words(beginning, code.address, &spec);
            assert_eq!(in_beginning.as_ref(), Ok(&placement), "{name}: {}: jumps behind it", spec.function);
            assert_eq!(all.iter().find_map(|word| disagreement(*word)), None, "{name}: {}", spec.function);
            let code: Vec<String> = beginning.iter().map(|word| format!("{word:08x}")).collect();
            let placement = describe(&spec, &placement);
            let _ = writeln!(text, "{} {address:x} {placement} : {}", spec.function, code.join(" "));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/probe/place/tests/aarch64/recorded.txt");
    std::fs::write(path, text).expect("written");
    assert!(instructions > 0);
}
