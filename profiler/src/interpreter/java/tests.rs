//! A machine in synthetic memory, and machines in random memory. Real ones are in the integration tests (`java.rs`).

use std::cell::Cell;
use std::collections::BTreeMap;

use heapbpf_base::address::LinkAddr;
use profiler_common::hotspot::FrozenFrames;
use profiler_common::interpreter::CodePlace;
use proptest::prelude::*;

use super::structs::Exports;
use super::*;
use crate::object::interpreted::{CodeLines, Compiled, Scope};

/// Memory by the addresses of its parts.
#[derive(Default)]
struct Image(BTreeMap<u64, Vec<u8>>);

impl Memory for Image {
    fn fill(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let (start, part) = self.0.range(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        buffer.copy_from_slice(part.get(offset..offset.checked_add(buffer.len())?)?);
        Some(())
    }
}

impl Image {
    fn put(&mut self, address: u64, bytes: &[u8]) {
        let (start, part) = self.0.range_mut(..=address).next_back().expect("a part contains it");
        let offset = usize::try_from(address - start).expect("small");
        part[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn set_word(&mut self, address: u64, word: u64) {
        self.put(address, &word.to_le_bytes());
    }

    fn set_integer(&mut self, address: u64, word: u32) {
        self.put(address, &word.to_le_bytes());
    }

    fn set_short(&mut self, address: u64, word: u16) {
        self.put(address, &word.to_le_bytes());
    }
}

/// The structures of JDK 17: type, field, whether it is static, and its address if so, else its offset.
const FIELDS: &[(&str, &str, bool, u64)] = &[
    ("Abstract_VM_Version", "_vm_major_version", true, VALUES),
    ("AbstractInterpreter", "_code", true, VALUES + 8),
    ("CodeCache", "_heaps", true, VALUES + 16),
    ("CodeHeap", "_memory", false, 8),
    ("CodeHeap", "_segmap", false, 120),
    ("CodeHeap", "_log2_segment_size", false, 256),
    ("VirtualSpace", "_low_boundary", false, 0),
    ("VirtualSpace", "_high_boundary", false, 8),
    ("GrowableArrayBase", "_len", false, 0),
    ("GrowableArray<int>", "_data", false, 8),
    ("StubQueue", "_stub_buffer", false, 8),
    ("StubQueue", "_buffer_limit", false, 20),
    ("CodeBlob", "_name", false, 96),
    ("CodeBlob", "_frame_size", false, 28),
    ("CodeBlob", "_code_begin", false, 32),
    ("CompiledMethod", "_method", false, 112),
    ("CompiledMethod", "_scopes_data_begin", false, 120),
    ("CompiledMethod", "_deopt_handler_begin", false, 128),
    ("CompiledMethod", "_deopt_mh_handler_begin", false, 136),
    ("nmethod", "_compile_id", false, 304),
    ("nmethod", "_orig_pc_offset", false, 300),
    ("nmethod", "_metadata_offset", false, 260),
    ("nmethod", "_scopes_pcs_offset", false, 268),
    ("nmethod", "_dependencies_offset", false, 272),
    ("Method", "_constMethod", false, 8),
    ("ConstMethod", "_constants", false, 8),
    ("ConstMethod", "_flags", false, 28),
    ("ConstMethod", "_code_size", false, 32),
    ("ConstMethod", "_name_index", false, 34),
    ("ConstantPool", "_pool_holder", false, 24),
    ("ConstantPool", "_source_file_name_index", false, 54),
    ("Klass", "_name", false, 24),
    ("Symbol", "_length", false, 4),
    ("Symbol", "_body", false, 6),
];
const SIZES: &[(&str, u64)] = &[("ConstMethod", 48), ("ConstantPool", 72), ("HeapBlock", 16)];

const EXPORTS: Exports = Exports { structs: LinkAddr(0x1000), types: LinkAddr(0x1008) };
const BIAS: u64 = 0x10_0000;
const VALUES: u64 = 0x20_0000;
const TEXTS: u64 = 0x40_0000;
const TABLES: u64 = 0x50_0000;
const DATA: u64 = 0x60_0000;
const METHODS: u64 = 0x70_0000;
const BLOB: u64 = 0x80_0000;

/// With two methods, `a.Outer.run` and `b.Inner$.make`, and a blob of the first that has inlined the second.
fn image() -> Image {
    described(FIELDS, SIZES)
}

/// As above, with this description.
fn described(fields: &[(&str, &str, bool, u64)], sizes: &[(&str, u64)]) -> Image {
    let mut image = Image::default();
    for (start, bytes) in [
        (BIAS + 0x1000, 16),
        (VALUES, 64),
        (TEXTS, 0x8000),
        (TABLES, 0x8000),
        (DATA, 0x1000),
        (METHODS, 0x4000),
        (BLOB, 0x1000),
    ] {
        image.0.insert(start, vec![0; bytes]);
    }
    let mut texts = TEXTS;
    let mut text = |image: &mut Image, text: &str| {
        image.put(texts, text.as_bytes());
        texts += text.len() as u64 + 1;
        texts - text.len() as u64 - 1
    };
    for (entry, (kind, field, is_static, value)) in (TABLES..).step_by(48).zip(fields) {
        let (kind, field) = (text(&mut image, kind), text(&mut image, field));
        image.set_word(entry, kind);
        image.set_word(entry + 8, field);
        image.set_integer(entry + 24, u32::from(*is_static));
        image.set_word(entry + if *is_static { 40 } else { 32 }, *value);
    }
    let types = TABLES + 0x4000;
    for (entry, (kind, size)) in (types..).step_by(40).zip(sizes) {
        let kind = text(&mut image, kind);
        image.set_word(entry, kind);
        image.set_word(entry + 32, *size);
    }
    image.set_word(BIAS + 0x1000, TABLES);
    image.set_word(BIAS + 0x1008, types);
    image.set_integer(VALUES, 17);
    image.set_word(VALUES + 8, DATA);
    image.set_word(VALUES + 16, DATA + 0x100);
    // The interpreter, and one heap.
    image.set_word(DATA + 8, 0x9000_1000);
    image.set_integer(DATA + 20, 0x800);
    image.set_integer(DATA + 0x100, 1);
    image.set_word(DATA + 0x108, DATA + 0x200);
    image.set_word(DATA + 0x200, DATA + 0x300);
    image.set_word(DATA + 0x308, 0x9000_0000);
    image.set_word(DATA + 0x310, 0x9100_0000);
    image.set_word(DATA + 0x378, 0xa000_0000);
    image.set_integer(DATA + 0x400, 7);
    put_method(&mut image, METHODS, ["a/Outer", "run", "Outer.java"], &[3 << 3 | 5, 4 << 3 | 2, 0]);
    put_method(&mut image, METHODS + 0x1000, ["b/Inner$+0x0800", "make", "Inner.java"], &[7, 0]);
    put_blob(&mut image);
    image
}

/// A method whose constant part is 0x100 behind it, its pool 0x200, its class 0x400, its texts 0x500.
fn put_method(image: &mut Image, at: u64, [class, name, file]: [&str; 3], lines: &[u8]) {
    let (constant, pool, holder, texts) = (at + 0x100, at + 0x200, at + 0x400, at + 0x500);
    image.set_word(at + 8, constant);
    image.set_word(constant + 8, pool);
    image.set_short(constant + 28, 1);
    image.set_short(constant + 32, 20);
    image.set_short(constant + 34, 1);
    image.put(constant + 48 + 20, lines);
    image.set_word(pool + 24, holder);
    image.set_short(pool + 54, 2);
    for (index, text) in [class, name, file].into_iter().enumerate() {
        let symbol = texts + index as u64 * 0x80;
        image.set_short(symbol + 4, u16::try_from(text.len()).expect("short"));
        image.put(symbol + 6, text.as_bytes());
        let slot = if index == 0 { holder + 24 } else { pool + 72 + index as u64 * 8 };
        image.set_word(slot, symbol);
    }
}

fn put_blob(image: &mut Image) {
    image.set_word(BLOB + 112, METHODS);
    image.set_integer(BLOB + 304, 42);
    image.set_word(BLOB + 32, BLOB + 0x200);
    let (metadata, scopes, pcs) = (0x400u32, 0x420u32, 0x440u32);
    image.set_integer(BLOB + 260, metadata);
    image.set_word(BLOB + 120, BLOB + u64::from(scopes));
    image.set_integer(BLOB + 268, pcs);
    image.set_integer(BLOB + 272, pcs + 4 * 16);
    image.set_word(BLOB + u64::from(metadata), METHODS);
    image.set_word(BLOB + u64::from(metadata) + 8, METHODS + 0x1000);
    // Scopes: caller, method, index plus 1. The outer one is at 1, the inner one at 4; the one at 7 is its own caller.
    image.put(BLOB + u64::from(scopes), &[0, 0, 1, 4, 1, 2, 1, 7, 2, 1]);
    let pc = |image: &mut Image, index: u64, offset: i32, scope: u32| {
        image.set_integer(BLOB + u64::from(pcs) + index * 16, offset.cast_unsigned());
        image.set_integer(BLOB + u64::from(pcs) + index * 16 + 4, scope);
    };
    pc(image, 0, -1, 0);
    pc(image, 1, 0x10, 1);
    pc(image, 2, 0x20, 4);
    pc(image, 3, 0x30, 7);
}

fn machine(image: &Image) -> Machine {
    let structs = Structs::read(image, EXPORTS, BIAS).expect("the tables are whole");
    let layout = Layout::new(&structs, image).expect("nothing is missing");
    let place = place(&structs, &layout, image).expect("readable").expect("it has started");
    Machine::new(layout, place)
}

#[test]
fn a_machine_has_heaps_and_an_interpreter() {
    let image = image();
    let machine = machine(&image);
    let heap = CodeHeap {
        range: AddressRange { start: 0x9000_0000, bytes: 0x100_0000 },
        segments: 0xa000_0000,
        segment_shift: 7,
        reserved: 0,
    };
    let expected = Hotspot {
        code: heap.range,
        interpreter: AddressRange { start: 0x9000_1000, bytes: 0x800 },
        heaps: [heap, CodeHeap::default(), CodeHeap::default()],
        block_header: 16,
        blob_bytes: 312,
        blob_name: 96,
        blob_frame_words: 28,
        blob_method: 112,
        blob_compilation: 304,
        blob_deoptimizers: [128, 136],
        blob_original: 300,
        method_constant: 8,
        constant_bytecode: 48,
        flags: 0,
        frozen: FrozenFrames::default(),
    };
    assert_eq!(machine.place, expected);
}

const CLASSES: u64 = 0x90_0000;
const CHUNK: u64 = CLASSES + 0x800;

/// A machine of JDK 21 with the classes of continuations and chunks, and these flags.
fn with_virtual_threads(flags: &[(&str, bool)]) -> Image {
    let fields = [
        ("InstanceKlass", "_fieldinfo_stream", false, 0x40),
        ("InstanceKlass", "_constants", false, 0x48),
        ("Klass", "_layout_helper", false, 8),
        ("vmClasses", frozen::FIRST_CLASS, true, CLASSES + 0x1000),
        ("vmClasses", frozen::LATER_CLASS, true, CLASSES + 0x1018),
        ("JVMFlag", "_addr", false, 0),
        ("JVMFlag", "_name", false, 8),
        ("JVMFlag", "flags", true, CLASSES + 0x1020),
        ("JVMFlag", "numFlags", true, CLASSES + 0x1028),
        ("CompressedOops", "_narrow_oop._base", true, CLASSES + 0x1030),
        ("CompressedOops", "_shift", true, CLASSES + 0x1038),
        ("CompressedKlassPointers", "_base", true, CLASSES + 0x1040),
        ("CompressedKlassPointers", "_narrow_klass._shift", true, CLASSES + 0x1048),
    ];
    let fields: Vec<_> = FIELDS.iter().chain(&fields).copied().collect();
    let mut image = described(&fields, &[SIZES, &[("JVMFlag", 24)]].concat());
    image.0.insert(CLASSES, vec![0; 0x2000]);
    image.set_integer(VALUES, 21);
    // Another class is first.
    for (index, class) in [METHODS + 0x400, CLASSES, CHUNK, METHODS + 0x400].into_iter().enumerate() {
        image.set_word(CLASSES + 0x1000 + index as u64 * 8, class);
    }
    for (at, value) in [(0x1020, CLASSES + 0x1100), (0x1028, flags.len() as u64), (0x1030, 0x7000), (0x1038, 3)] {
        image.set_word(CLASSES + at, value);
    }
    image.set_word(CLASSES + 0x1040, CLASSES);
    for (index, (name, value)) in (0..).zip(flags) {
        let (flag, text) = (CLASSES + 0x1100 + index * 24, CLASSES + 0x1400 + index * 0x40);
        image.put(text, name.as_bytes());
        image.put(text + 0x30, &[u8::from(*value)]);
        image.set_word(flag, text + 0x30);
        image.set_word(flag + 8, text);
    }
    put_class(&mut image, CLASSES, frozen::CONTINUATION, 48, &[("done", 12, 1), ("tail", 32, 0)]);
    let fields = [("parent", 40, 0), ("size", 12, 16), ("sp", 24, 0), ("bottom", 28, 4)];
    put_class(&mut image, CHUNK, frozen::CHUNK, 48 | 1, &fields);
    image
}

/// A class whose fields have these names, offsets and flags, and one that the machine has added.
fn put_class(image: &mut Image, class: u64, name: &str, layout_helper: u32, fields: &[(&str, u8, u8)]) {
    let (stream, pool, symbols) = (class + 0x100, class + 0x200, class + 0x400);
    image.set_integer(class + 8, layout_helper);
    image.set_word(class + 24, symbols);
    image.set_word(class + 0x40, stream);
    image.set_word(class + 0x48, pool);
    let mut numbers = vec![u8::try_from(fields.len()).expect("few"), 1];
    for (index, (name, offset, flags)) in (1..).zip(fields) {
        numbers.extend([index, 0, *offset, 2, *flags]);
        // What the flags announce.
        numbers.extend((*flags != 0).then_some(9));
        let symbol = symbols + u64::from(index) * 0x40;
        image.set_word(pool + 72 + u64::from(index) * 8, symbol);
        image.set_short(symbol + 4, u16::try_from(name.len()).expect("short"));
        image.put(symbol + 6, name.as_bytes());
    }
    numbers.extend([99, 99, 16, 0, 2]);
    let bytes: Vec<u8> = numbers.iter().map(|number| number + 1).collect();
    image.set_integer(stream, u32::try_from(bytes.len()).expect("short"));
    image.put(stream + 4, &bytes);
    image.set_short(symbols + 4, u16::try_from(name.len()).expect("short"));
    image.put(symbols + 6, name.as_bytes());
}

fn frozen_of(image: &Image) -> Option<FrozenFrames> {
    let structs = Structs::read(image, EXPORTS, BIAS).expect("the tables are whole");
    frozen::find(&structs, &Layout::new(&structs, image).expect("nothing is missing"), image)
}

#[test]
fn places_of_frames_in_the_heap_follow_from_the_fields_of_classes() {
    let plain = FrozenFrames {
        class: CHUNK,
        class_mask: u64::MAX,
        class_at: 8,
        tail: 32,
        parent: 40,
        sp: 24,
        bottom: 28,
        stack: 48,
        ..FrozenFrames::default()
    };
    assert_eq!(frozen_of(&with_virtual_threads(&[("UseZGC", false), ("Other", true)])), Some(plain));
    let references = FrozenFrames { reference_base: 0x7000, reference_shift: 3, is_compressed: 1, ..plain };
    assert_eq!(frozen_of(&with_virtual_threads(&[("UseCompressedOops", true)])), Some(references));
    let narrow = FrozenFrames { class: CHUNK - CLASSES, class_mask: u64::from(u32::MAX), ..plain };
    assert_eq!(frozen_of(&with_virtual_threads(&[("UseCompressedClassPointers", true)])), Some(narrow));
    let compact = FrozenFrames { class_at: 0, class_shift: 42, class_mask: (1 << 22) - 1, ..narrow };
    assert_eq!(frozen_of(&with_virtual_threads(&[("UseCompactObjectHeaders", true)])), Some(compact));
}

#[test]
fn without_classes_or_with_marked_references_there_are_no_places() {
    let unknown = Some(FrozenFrames::default());
    assert_eq!(frozen_of(&image()), unknown, "before JDK 21");
    assert_eq!(frozen_of(&with_virtual_threads(&[("UseZGC", true)])), unknown);
    let mut starting = with_virtual_threads(&[]);
    starting.set_word(CLASSES + 0x1018, 0);
    assert_eq!(frozen_of(&starting), None);
    let mut other = with_virtual_threads(&[]);
    other.put(CHUNK + 0x400 + 6, b"x");
    assert_eq!(frozen_of(&other), unknown, "no class has the name");
}

#[test]
fn a_machine_that_has_not_started_has_no_place() {
    for unset in [VALUES + 8, VALUES + 16] {
        let mut image = image();
        image.set_word(unset, 0);
        let structs = Structs::read(&image, EXPORTS, BIAS).expect("the tables are whole");
        let layout = Layout::new(&structs, &image).expect("nothing is missing");
        assert_eq!(place(&structs, &layout, &image), Ok(None));
    }
}

#[test]
fn what_is_missing_is_named() {
    let mut image = image();
    // Its first field is renamed.
    let name = Memory::word(&image, TABLES + 8).expect("it is there");
    image.put(name, b"x");
    let structs = Structs::read(&image, EXPORTS, BIAS).expect("the tables are whole");
    assert_eq!(Layout::new(&structs, &image).err(), Some(Unsupported::Missing("_vm_major_version")));
    let empty = Structs::read(&Image::default(), EXPORTS, BIAS);
    assert_eq!(empty.err(), Some(Unsupported::Unreadable));
    // A table without an end.
    image.0.insert(TABLES, vec![1; 48 << 14]);
    assert_eq!(Structs::read(&image, EXPORTS, BIAS).err(), Some(Unsupported::Unreadable));
}

fn placed(kind: CodeKind, place: CodePlace) -> PlacedCode {
    PlacedCode { id: 5, language: Language::Java, kind, place }
}

fn changed(mut code: PlacedCode, change: impl FnOnce(&mut CodePlace)) -> PlacedCode {
    change(&mut code.place);
    code
}

fn interpreted() -> PlacedCode {
    placed(CodeKind::JavaInterpreted, CodePlace { address: METHODS, refers_to: METHODS + 0x100, detail: 0 })
}

fn compiled() -> PlacedCode {
    placed(CodeKind::JavaCompiled, CodePlace { address: BLOB, refers_to: METHODS, detail: 42 })
}

#[test]
fn an_interpreted_method_has_a_name_and_lines() {
    let image = image();
    let code = machine(&image).read(&image, &interpreted()).expect("readable");
    let lines = CodeLines::Starts([(3, 5), (7, 7)].into());
    let function = Function { name: Some("a.Outer.run".into()), file: Some("Outer.java".into()), lines, script: None };
    assert_eq!(code, Code { id: 5, body: CodeBody::Function(function) });
}

/// As until JDK 15.
#[test]
fn the_class_may_have_the_name_of_the_file() {
    let mut image = image();
    let (entry, _) =
        (TABLES..).step_by(48).zip(FIELDS).find(|(_, field)| field.1 == "_source_file_name_index").expect("there");
    let texts = TEXTS + 0x7000;
    image.put(texts, b"InstanceKlass\0");
    image.set_word(entry, texts);
    image.set_word(entry + 32, 0x20);
    image.set_short(METHODS + 0x420, 2);
    let code = machine(&image).read(&image, &interpreted()).expect("readable");
    let CodeBody::Function(function) = code.body else { panic!("it is interpreted") };
    assert_eq!(function.file.as_deref(), Some("Outer.java"));
}

#[test]
fn a_compiled_method_has_inlined_ones() {
    let image = image();
    let code = machine(&image).read(&image, &compiled()).expect("readable");
    let expected = Compiled {
        functions: vec![
            ("a.Outer.run".into(), Some("Outer.java".into())),
            ("b.Inner$.make".into(), Some("Inner.java".into())),
        ],
        scripts: Vec::new(),
        scopes: vec![
            Scope { function: 0, line: Some(5), column: None, caller: None },
            Scope { function: 1, line: Some(7), column: None, caller: Some(0) },
        ],
        calls: vec![(0x210, 0), (0x220, 1)],
        may_lack_inlined: false,
    };
    assert_eq!(code.body, CodeBody::Compiled(expected));
}

#[test]
fn replaced_code_has_no_names() {
    let image = image();
    let mut machine = machine(&image);
    for replaced in [
        changed(interpreted(), |place| place.refers_to = 1),
        changed(compiled(), |place| place.refers_to = 1),
        changed(compiled(), |place| place.detail = 43),
        changed(compiled(), |place| place.address = 1),
    ] {
        assert_eq!(machine.read(&image, &replaced), None, "{replaced:?}");
    }
}

#[test]
fn a_stub_has_the_name_of_its_blob() {
    let mut image = image();
    image.put(TEXTS + 0x7000, b"StubRoutines (1)\0");
    let stub = CodePlace { refers_to: TEXTS + 0x7000, ..compiled().place };
    let stub = placed(CodeKind::JavaStub, stub);
    let code = machine(&image).read(&image, &stub).expect("readable");
    let function = Function { name: Some("StubRoutines (1)".into()), ..Function::default() };
    assert_eq!(code.body, CodeBody::Function(function));
}

/// Memory whose every read gives other bytes.
struct Random<'a>(&'a [u8], Cell<usize>);

impl Memory for Random<'_> {
    fn fill(&self, _: u64, buffer: &mut [u8]) -> Option<()> {
        for byte in buffer {
            *byte = *self.0.get(self.1.get() % self.0.len())?;
            self.1.set(self.1.get() + 1);
        }
        Some(())
    }
}

proptest! {
    // Random tables of structures are long.
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn changed_memory_gives_code_or_none(
        changes in proptest::collection::vec((0u64..0x1_0000, any::<u64>()), 1..20),
    ) {
        let mut image = image();
        let mut machine = machine(&image);
        for (at, word) in changes {
            let part = [METHODS, BLOB][usize::from(at % 3 == 0)];
            image.set_word(part + at % 0xff8, word);
        }
        let _ = machine.read(&image, &interpreted());
        let _ = machine.read(&image, &compiled());
    }

    #[test]
    fn random_memory_gives_code_or_none(bytes in proptest::collection::vec(any::<u8>(), 1..4000)) {
        let mut machine = machine(&image());
        let memory = Random(&bytes, Cell::default());
        for code in [interpreted(), compiled(), PlacedCode { kind: CodeKind::JavaStub, ..compiled() }] {
            let _ = machine.read(&memory, &code);
        }
        if let Ok(structs) = Structs::read(&memory, EXPORTS, BIAS) {
            let _ = Layout::new(&structs, &memory);
        }
    }
}
