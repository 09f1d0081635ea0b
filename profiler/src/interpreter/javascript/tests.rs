//! Engines in random memory, and the areas of their code. Real ones are in the integration tests (`javascript.rs`).

use std::cell::Cell;

use profiler_common::interpreter::{CodeKind, CodePlace};
use proptest::prelude::*;

use super::*;

/// As Node.js 20 publishes them.
const PUBLISHED: &[(&str, i32)] = &[
    ("class_JSFunction__shared__SharedFunctionInfo", 24),
    ("class_SharedFunctionInfo__name_or_scope_info__Object", 16),
    ("class_SharedFunctionInfo__script_or_debug_info__HeapObject", 32),
    ("class_Map__instance_type__uint16_t", 12),
    ("class_Script__name__Object", 16),
    ("class_Script__source__Object", 8),
    ("class_BytecodeArray__data__uintptr_t", 54),
    ("class_InstructionStream__instruction_start__uintptr_t", 16),
    ("scopeinfo_idx_first_vars", 3),
    ("CodeKindFieldMask", 15),
    ("CodeKindBaseline", 11),
    ("type_SharedFunctionInfo__SHARED_FUNCTION_INFO_TYPE", 6),
    ("type_BytecodeArray__BYTECODE_ARRAY_TYPE", 1),
    ("type_InterpreterData__INTERPRETER_DATA_TYPE", 2),
    ("type_ScopeInfo__SCOPE_INFO_TYPE", 3),
    ("type_Oddball__ODDBALL_TYPE", 131),
    ("type_Script__SCRIPT_TYPE", 4),
    ("type_Code__CODE_TYPE", 5),
    ("type_ByteArray__BYTE_ARRAY_TYPE", 7),
    ("type_FixedArray__FIXED_ARRAY_TYPE", 0),
];

fn published() -> Published {
    Published(PUBLISHED.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
}

fn layout() -> Layout {
    Layout::new(&published(), 11, vec![1; 30].into()).expect("all is there")
}

#[test]
fn other_versions_and_lacking_descriptions_are_refused() {
    let of = |published: &Published, major| Layout::new(published, major, [].into());
    assert_eq!(of(&published(), 9), Err(Unsupported::Version(9)));
    assert_eq!(of(&published(), 14), Err(Unsupported::Version(14)));
    for (name, _) in PUBLISHED.iter().filter(|(name, _)| !name.contains("Array__")) {
        let mut lacking = published();
        lacking.0.remove(*name);
        assert!(matches!(of(&lacking, 11), Err(Unsupported::Missing(_))), "{name}");
    }
    let place = layout().place().expect("short offsets");
    assert_eq!((place.function_shared, place.function_code, place.shared_name, place.shared_type), (24, 48, 16, 6));
}

fn of_file(range: Range<u64>, own_bias: Option<u64>) -> CodeMapping {
    CodeMapping { range, own_bias, is_generated: false }
}

fn anonymous(range: Range<u64>) -> CodeMapping {
    CodeMapping { range, own_bias: None, is_generated: true }
}

#[test]
fn generated_code_has_an_area_that_ends_with_the_copy_of_the_builtins() {
    const MIB: u64 = 1 << 20;
    let (own, area) = (16 * MIB..32 * MIB, 4096 * MIB..4096 * MIB + CODE_AREA_BYTES);
    let copy = area.end - 2 * MIB..area.end;
    let builtins = 17 * MIB..19 * MIB;
    let mut code = vec![
        of_file(own, Some(0)),
        anonymous(area.start + 5 * MIB..area.start + 6 * MIB),
        of_file(copy.clone(), Some(copy.start - builtins.start)),
        of_file(8192 * MIB..8193 * MIB, None),
        anonymous(8200 * MIB..8201 * MIB),
    ];
    assert_eq!(code[0].part(&builtins), Some(builtins.clone()));
    assert_eq!(code[2].part(&builtins), Some(copy.clone()));
    assert_eq!(generated(&code, Some(&copy)), area);
    // Another file in the area: only what is known to be generated.
    code.insert(1, of_file(area.start + MIB..area.start + 2 * MIB, None));
    assert_eq!(generated(&code, Some(&copy)), area.start + 2 * MIB..area.start + 134 * MIB);
    // Without a copy, and before there is any code.
    assert_eq!(generated(&[anonymous(MIB..2 * MIB)], None), 0..130 * MIB);
    let code = [of_file(0..MIB, None), anonymous(3 * MIB..4 * MIB), of_file(9 * MIB..10 * MIB, None)];
    assert_eq!(generated(&code, None), MIB..9 * MIB);
    assert!(generated(&[], None).is_empty());
}

/// Every address has a word, which depends on the address: tagged pointers and small integers are frequent.
struct Random {
    seed: u64,
    reads: Cell<u32>,
}

impl Memory for Random {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        self.reads.set(self.reads.get() + 1);
        for (index, chunk) in buffer.chunks_mut(8).enumerate() {
            let mixed = (address.wrapping_add(index as u64 * 8) ^ self.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let word = match mixed >> 61 {
                0..=3 => (mixed >> 20 & 0xfff8) | 1,
                4 | 5 => (mixed >> 40 & 0xff) << 32,
                _ => mixed,
            };
            // The number of a type.
            let word = if chunk.len() == 2 { mixed >> 30 & 7 } else { word };
            let bytes = word.to_le_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Some(())
    }
}

proptest! {
    #[test]
    fn random_memory_is_read_within_limits(seed: u64, address: u64, detail in prop_oneof![Just(0), any::<u64>()]) {
        let layout = layout();
        let place = layout.place().expect("short offsets");
        let mut engine = Engine { layout, place, scripts: Scripts::default() };
        let memory = Random { seed, reads: Cell::new(0) };
        let heap = Heap { memory: &memory, layout: &engine.layout };
        let address = address & !3;
        let refers_to = heap.field(address, 16).unwrap_or(0);
        let place = CodePlace { address, refers_to, detail };
        let _ = engine.read(&memory, &PlacedCode { id: 1, language: Language::JavaScript, kind: CodeKind::JavaScript, place });
        prop_assert!(memory.reads.get() < 200_000, "{}", memory.reads.get());
    }
}
