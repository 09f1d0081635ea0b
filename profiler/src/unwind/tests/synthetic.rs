//! Tables of single features, of contradictory information, and of damaged modules.

use heapbpf_base::address::{LinkAddr, TargetAddr};
use profiler_common::unwind::{CallerBp, Cfa, Rule};
use proptest::prelude::*;

use super::super::arch::Unsupported;
use super::super::cache::TableKey;
use super::super::{Image, ImageError, RuleTable, Table, build, build_from_image, table};
use super::file;
use super::module::{CODE, Fde, Module, cfa, function};

const DEREF: u8 = 0x06;
const BREG_RSP: u8 = 0x77;
const BREG_RBP: u8 = 0x76;

fn sp(offset: i32) -> Rule {
    Rule::new(Cfa::Sp { offset }, CallerBp::Same).expect("at least 8")
}

fn sp_saving_bp(offset: i32, at: i16) -> Rule {
    Rule::new(Cfa::Sp { offset }, CallerBp::AtCfa(at)).expect("at least 8")
}

fn table(module: &Module) -> Table {
    let table = build(&file(&module.bytes())).expect("an ELF image");
    assert!(table.is_consistent());
    table
}

/// Pairs of an offset into the code and the rule there.
fn check(table: &Table, want: &[(u64, Rule)]) {
    for &(at, rule) in want {
        assert_eq!(table.lookup(LinkAddr(CODE + at)), rule, "at {at:#x}");
    }
}

#[test]
fn a_rule_applies_up_to_the_next_row_within_its_function() {
    let push = [cfa::advance(1), cfa::def(cfa::RSP, 16), cfa::offset(cfa::RBP, 2)].concat();
    let frame = [cfa::advance(3), cfa::def(cfa::RBP, 16)].concat();
    let table = table(&Module::new(vec![function(0x100, 0x40, &[&push, &frame])]));
    let in_frame = Rule::new(Cfa::Bp { offset: 16 }, CallerBp::AtCfa(-16)).expect("any offset");
    check(
        &table,
        &[
            (0xff, Rule::GAP),
            (0x100, sp(8)),
            (0x101, sp_saving_bp(16, -16)),
            (0x103, sp_saving_bp(16, -16)),
            (0x104, in_frame),
            (0x13f, in_frame),
            (0x140, Rule::GAP),
            (0x4_0000, Rule::GAP),
        ],
    );
    assert_eq!(table.lookup(LinkAddr(0)), Rule::GAP);
    assert_eq!(table.lookup(LinkAddr(u64::MAX)), Rule::GAP);
    assert_eq!((table.stats.functions, table.stats.covered_bytes, table.stats.rows_read), (1, 0x40, 3));
}

#[test]
fn a_remembered_state_is_restored() {
    let body = [
        cfa::advance(1),
        cfa::def(cfa::RSP, 16),
        cfa::REMEMBER.to_vec(),
        cfa::advance(1),
        cfa::def(cfa::RSP, 8),
        cfa::advance(1),
        cfa::RESTORE.to_vec(),
    ];
    let table = table(&Module::new(vec![function(0, 0x10, &[&body.concat()])]));
    check(&table, &[(0, sp(8)), (1, sp(16)), (2, sp(8)), (3, sp(16)), (0xf, sp(16))]);
}

#[test]
fn each_page_has_its_own_rows() {
    // Covers the end of one page, all of the next, and the start of a third.
    let body = [cfa::advance(1), cfa::def(cfa::RSP, 32)].concat();
    let functions = vec![function(0x8000, 0x1_8000, &[&body]), function(0x3_8000, 0x10, &[])];
    let table = table(&Module::new(functions));
    check(&table, &[(0x8000, sp(8)), (0x8001, sp(32)), (0x1_5000, sp(32)), (0x1_ffff, sp(32)), (0x2_0000, Rule::GAP)]);
    check(&table, &[(0x3_7fff, Rule::GAP), (0x3_8000, sp(8)), (0x3_8010, Rule::GAP)]);
    for page in &table.pages {
        let rows = &table.rows[page.first as usize..page.end as usize];
        assert!(rows.is_empty() || rows[0].pc_low == 0, "a page begins in the middle: {rows:?}");
    }
}

#[test]
fn adjacent_functions_share_a_row_if_their_rules_are_equal() {
    let table = table(&Module::new((0..8).map(|i| function(0x1000 + i * 16, 16, &[])).collect()));
    check(&table, &[(0xfff, Rule::GAP), (0x1000, sp(8)), (0x107f, sp(8)), (0x1080, Rule::GAP)]);
    // The page's start, the eight functions, the gap after them.
    assert_eq!(table.rows.len(), 3);
}

#[test]
fn linkage_tables_of_both_linkers() {
    let plt = |threshold: u8| [BREG_RSP, 8, 0x80, 0, 0x3f, 0x1a, 0x30 + threshold, 0x2a, 0x33, 0x24, 0x22];
    let functions = [11, 10].into_iter().zip([0, 0x100]);
    let functions = functions.map(|(threshold, at)| function(at, 0x40, &[&cfa::def_expression(&plt(threshold))]));
    let table = table(&Module::new(functions.collect()));
    let rule = |threshold| Rule::new(Cfa::Plt { offset: 8, threshold }, CallerBp::Same).expect("in range");
    check(&table, &[(0, rule(11)), (0x3f, rule(11)), (0x100, rule(10))]);
}

#[test]
fn the_cfa_of_aligned_stacks_is_read_from_memory() {
    // gcc: the old stack pointer at rbp-8, the caller's rbp at rbp. OpenSSL: the old one at rsp+152, 8 below the CFA.
    let compiled = [cfa::def_expression(&[BREG_RBP, 0x78, DEREF]), cfa::expression(cfa::RBP, &[BREG_RBP, 0])].concat();
    let assembly = [cfa::def_expression(&[BREG_RSP, 0x98, 0x01, DEREF, 0x23, 8]), cfa::offset(cfa::RBP, 3)].concat();
    let table = table(&Module::new(vec![function(0, 0x10, &[&compiled]), function(0x10, 0x10, &[&assembly])]));
    let compiled = Rule::new(Cfa::AtBp { slot: -8, add: 0 }, CallerBp::AtBp(0)).expect("any offset");
    let assembly = Rule::new(Cfa::AtSp { slot: 152, add: 8 }, CallerBp::AtCfa(-24)).expect("any offset");
    check(&table, &[(0, compiled), (0x10, assembly)]);
}

fn trampoline(sp_at: [u8; 2]) -> Fde {
    let words = [
        cfa::def_expression(&[BREG_RSP, sp_at[0], sp_at[1], DEREF]),
        cfa::expression(cfa::RBP, &[BREG_RSP, 0xf8, 0x00]),
        cfa::expression(cfa::RA, &[BREG_RSP, 0xa8, 0x01]),
    ];
    Fde { is_signal: true, ..function(0x1f, 0x11, &[&words.concat()]) }
}

#[test]
fn the_signal_trampoline_is_recognised() {
    let known = table(&Module::new(vec![trampoline([0xa0, 0x01])]));
    check(&known, &[(0x1f, Rule::SIGNAL), (0x2f, Rule::SIGNAL), (0x30, Rule::GAP)]);
    let other = table(&Module::new(vec![trampoline([0xa8, 0x01])]));
    check(&other, &[(0x1f, Rule::UNSUPPORTED)]);
    assert_eq!(other.stats.unsupported[Unsupported::SignalFrame as usize].bytes, 0x11);
}

#[test]
fn unrepresentable_rules_are_unsupported_and_counted() {
    let from_rax = cfa::def(0, 16);
    let from_rbx = cfa::def(3, 16);
    let sum = cfa::def_expression(&[BREG_RSP, 8, BREG_RBP, 0, 0x22]);
    let ra_in_rdi = vec![0x09, cfa::RA, 5];
    let not_shrinking = cfa::def(cfa::RSP, 0);
    let unknown = vec![0x3f];
    let bodies = [from_rax, from_rbx, sum, ra_in_rdi, not_shrinking, unknown];
    let functions = bodies.iter().zip(0..).map(|(body, i)| function(i * 0x10, 0x10, &[body])).collect();
    let table = table(&Module::new(functions));
    for i in 0..6 {
        check(&table, &[(i * 0x10, Rule::UNSUPPORTED), (i * 0x10 + 0xf, Rule::UNSUPPORTED)]);
    }
    for reason in [
        Unsupported::VolatileCfa,
        Unsupported::PreservedCfa,
        Unsupported::CfaExpression,
        Unsupported::ReturnAddress,
        Unsupported::Offset,
        Unsupported::Malformed,
    ] {
        let tally = table.stats.unsupported[reason as usize];
        assert_eq!((tally.rows, tally.bytes), (1, 0x10), "{reason:?}");
    }
}

#[test]
fn rows_before_a_malformed_instruction_are_used() {
    let body = [cfa::advance(4), cfa::def(cfa::RSP, 24), cfa::advance(4), vec![0x3f]].concat();
    let table = table(&Module::new(vec![function(0, 0x20, &[&body])]));
    check(&table, &[(0, sp(8)), (4, sp(24)), (7, sp(24)), (8, Rule::UNSUPPORTED), (0x1f, Rule::UNSUPPORTED)]);
}

#[test]
fn the_first_frame_ends_the_stack() {
    let table = table(&Module::new(vec![function(0, 0x20, &[&cfa::undefined(cfa::RA)])]));
    check(&table, &[(0, Rule::END), (0x1f, Rule::END), (0x20, Rule::GAP)]);
}

#[test]
fn an_entry_point_without_unwind_information_ends_the_stack() {
    let mut module = Module::new(vec![function(0x100, 0x20, &[]), function(0x150, 0x10, &[])]);
    module.entry = CODE + 0x130;
    check(&table(&module), &[(0x12f, Rule::GAP), (0x130, Rule::END), (0x14f, Rule::END), (0x150, sp(8))]);
    module.entry = CODE + 0x1000;
    check(&table(&module), &[(0x1000, Rule::END), (0x104f, Rule::END), (0x1050, Rule::GAP)]);
    module.entry = CODE + 0x110;
    check(&table(&module), &[(0x110, sp(8))]);
}

/// musl: `exit(main(argc, argv, envp))`.
#[test]
fn a_call_whose_result_ends_the_thread_ends_the_stack() {
    const EXIT: u64 = CODE + 0x40;
    let built = |before: &[u8], after: &[u8], target: u64, at: usize| {
        let mut module = Module::new(vec![function(0x1000, 0x100, &[])]);
        module.entry = CODE + 0x2000;
        let next = CODE + (at + after.len() + 5) as u64;
        let offset = i32::try_from(target.wrapping_sub(next).cast_signed()).expect("near");
        let code = [before, after, &[0xe8], &offset.to_le_bytes()].concat();
        module.code[at - before.len()..][..code.len()].copy_from_slice(&code);
        let file = file(&module.bytes());
        let mut image = Image::parse(&file).expect("an ELF image");
        image.exits = vec![EXIT];
        build_from_image(&image)
    };
    for before in [&[0xff, 0xd3][..], &[0x41, 0xff, 0xd1], &[0xff, 0x13], &[0xff, 0x55, 0x08]] {
        for after in [&[0x89, 0xc7][..], &[0x48, 0x89, 0xc7], &[0x48, 0x63, 0xf8]] {
            // The return address is looked up by the byte before it.
            let table = built(before, after, EXIT, 0x500);
            check(&table, &[(0x4fe, Rule::GAP), (0x4ff, Rule::END), (0x500, Rule::GAP)]);
        }
    }
    let gap = [(0x4ff, Rule::GAP), (0x500, Rule::GAP)];
    check(&built(&[0xff, 0xd3], &[0x89, 0xc7], EXIT + 1, 0x500), &gap);
    check(&built(&[0xff, 0xd3], &[0x89, 0xc6], EXIT, 0x500), &gap);
    // A direct call, and a jump.
    check(&built(&[0xe8, 0, 0, 0, 0], &[0x89, 0xc7], EXIT, 0x500), &gap);
    check(&built(&[0xff, 0xe3], &[0x89, 0xc7], EXIT, 0x500), &gap);
    // Functions with unwind information have their own rules.
    check(&built(&[0xff, 0xd3], &[0x89, 0xc7], EXIT, 0x1050), &[(0x104f, sp(8)), (0x1050, sp(8))]);
}

#[test]
fn overlapping_functions_are_resolved_and_counted() {
    let wide = cfa::def(cfa::RSP, 64);
    let other = cfa::def(cfa::RSP, 32);
    let functions = vec![
        function(0x200, 0x10, &[]),
        function(0x100, 0x80, &[&wide]),
        function(0x120, 0x10, &[&other]),
        function(0x120, 0x40, &[]),
        function(0x300, 0, &[]),
        Fde { start: 0, ..function(0, 0x10, &[]) },
        function(0x5_0000, 0x10, &[]),
        function(0x3_fff0, 0x100, &[]),
    ];
    let table = table(&Module::new(functions));
    check(
        &table,
        &[
            (0x100, sp(64)),
            (0x11f, sp(64)),
            (0x120, sp(32)),
            (0x12f, sp(32)),
            // The first function does not resume: the C++ runtime would not find it either.
            (0x130, Rule::GAP),
            (0x200, sp(8)),
            (0x300, Rule::GAP),
            (0x3_ffff, sp(8)),
            (0x4_0000, Rule::GAP),
        ],
    );
    let stats = &table.stats;
    assert_eq!((stats.functions, stats.functions_overlapping), (5, 2));
    assert_eq!((stats.functions_empty, stats.functions_outside_code), (1, 2));
    assert!(!stats.truncated);
}

#[test]
fn sections_are_found_in_three_ways() {
    let functions = || vec![function(0x40, 0x20, &[&cfa::def(cfa::RSP, 48)])];
    let by_name = Module::new(functions());
    let by_segment = Module { section_headers: false, ..Module::new(functions()) };
    let debug = Module { section: ".debug_frame", ..Module::new(functions()) };
    for module in [by_name, by_segment, debug] {
        check(&table(&module), &[(0x3f, Rule::GAP), (0x40, sp(48)), (0x5f, sp(48)), (0x60, Rule::GAP)]);
    }
}

#[test]
fn gaps_with_frame_pointers_are_unwound_by_them() {
    let prologue = [0x55, 0x48, 0x89, 0xe5];
    let mut module = Module::new(vec![function(0, 0x20, &[])]);
    check(&table(&module), &[(0x20, Rule::GAP)]);
    for at in (0x100..module.code.len()).step_by(0x100) {
        module.code[at..at + 4].copy_from_slice(&prologue);
    }
    let table = table(&module);
    assert!(table.stats.fills_gaps);
    check(&table, &[(0, sp(8)), (0x1f, sp(8)), (0x20, Rule::FRAME_POINTER), (0x3_ffff, Rule::FRAME_POINTER)]);
    check(&table, &[(0x4_0000, Rule::GAP)]);
}

#[test]
fn keys_depend_on_the_input_of_tables() {
    let key = |module: &Module| TableKey::of(&Image::parse(&file(&module.bytes())).expect("a module"));
    let functions = |offset| vec![function(0x40, 0x20, &[&cfa::def(cfa::RSP, offset)])];
    let module = Module::new(functions(48));
    assert_eq!(key(&module), key(&Module::new(functions(48))));
    assert_ne!(key(&module), key(&Module::new(functions(40))));
    assert_ne!(key(&module), key(&Module { code: vec![0x90; 0x1000], ..Module::new(functions(48)) }));
    // Not on the code, which samples cover.
    let mut other = Module::new(functions(48));
    other.code[0x1100..0x1104].copy_from_slice(&[0x55, 0x48, 0x89, 0xe5]);
    assert_eq!(key(&module), key(&other));
    let bytes = file(&other.bytes());
    assert!(!table(&module).samples.matches(&Image::parse(&bytes).expect("a module")));
    assert!(table(&other).samples.matches(&Image::parse(&bytes).expect("a module")));
}

#[test]
fn tables_are_relocated_into_shared_arrays() {
    use profiler_common::unwind::{PageRows, ReadTables, RowCell, UnwindRow, find_rule};
    struct Maps(Vec<RowCell>, Vec<PageRows>, RuleTable);
    impl ReadTables for Maps {
        fn row(&self, index: u32) -> Option<UnwindRow> {
            self.0.get(index as usize / 2).map(|cell| cell.row(index))
        }
        fn page(&self, index: u32) -> Option<PageRows> {
            self.1.get(index as usize).copied()
        }
        fn rule(&self, index: u16) -> Option<Rule> {
            self.2.rules().get(usize::from(index)).copied()
        }
    }
    let first = table(&Module::new(vec![function(0x10, 0x10, &[&cfa::def(cfa::RSP, 16)])]));
    let second = table(&Module::new(vec![
        function(0x10, 0x10, &[&cfa::def(cfa::RSP, 32)]),
        function(0x2_0000, 0x10, &[&cfa::def(cfa::RSP, 16)]),
    ]));
    let mut maps = Maps(Vec::new(), Vec::new(), RuleTable::default());
    let place = |table: &Table, maps: &mut Maps, start| {
        let numbers = table.number_rules(&mut maps.2);
        let row_first = u32::try_from(maps.0.len() * 2).expect("few");
        let page_first = u32::try_from(maps.1.len()).expect("few");
        maps.0.extend(table.cells(&numbers));
        maps.1.extend(table.pages_at(row_first));
        table.place(TargetAddr(start), page_first)
    };
    // One is loaded above its link address, the other below.
    let (up, down) = (0x7f00_0000_0000_u64, 0x10_0000_u64);
    let first_at = place(&first, &mut maps, up + first.base.0);
    let second_at = place(&second, &mut maps, second.base.0 - down);
    assert_eq!(find_rule(&maps, &first_at, up + CODE + 0x10), Some(sp(16)));
    assert_eq!(find_rule(&maps, &first_at, up + CODE + 0x20), Some(Rule::GAP));
    assert_eq!(find_rule(&maps, &first_at, CODE + 0x10), None);
    assert_eq!(find_rule(&maps, &second_at, CODE - down + 0x1f), Some(sp(32)));
    assert_eq!(find_rule(&maps, &second_at, CODE - down + 0x2_0000), Some(sp(16)));
    // Both use rsp+16 under one number.
    assert_eq!(maps.2.rules().iter().filter(|&&rule| rule == sp(16)).count(), 1);
}

#[test]
fn a_full_rule_table_makes_rules_unsupported() {
    let mut shared = RuleTable::default();
    for offset in 8..=u32::from(u16::MAX) + 8 {
        shared.number(sp(i32::try_from(offset).expect("small")));
    }
    assert_eq!(shared.rules().len(), 1 << 16);
    let table = table(&Module::new(vec![function(0, 8, &[&cfa::def(cfa::RBP, 16)])]));
    let numbers = table.number_rules(&mut shared);
    assert_eq!(numbers[..5], [0, 1, 2, 3, 4]);
    assert!(numbers[5..].contains(&table::UNSUPPORTED));
}

#[test]
fn a_malformed_section_is_truncated() {
    let first = vec![function(0, 0x10, &[])];
    let both = vec![function(0, 0x10, &[]), function(0x10, 0x10, &[])];
    let last_entry = |functions: Vec<Fde>| {
        let bytes = Module::new(functions).bytes();
        let section = &bytes[0xf000..];
        let (mut at, mut last) = (0, 0);
        while let Some(&[a, b, c, d]) = section.get(at..at + 4)
            && [a, b, c, d] != [0; 4]
        {
            last = at;
            at += 4 + u32::from_le_bytes([a, b, c, d]) as usize;
        }
        (bytes, 0xf000 + last)
    };
    assert_eq!(build(&file(&last_entry(first).0)).map(|table| table.stats.truncated), Ok(false));
    // The second function's length exceeds the section.
    let (mut bytes, at) = last_entry(both);
    bytes[at..at + 4].copy_from_slice(&[0xf0, 0xff, 0, 0]);
    let table = build(&file(&bytes)).expect("an ELF image");
    assert!(table.stats.truncated);
    assert_eq!(table.stats.functions, 1);
    check(&table, &[(0, sp(8)), (0x10, Rule::GAP)]);
}

#[test]
fn cie_instructions_are_limited() {
    // 2 KiB that would be executed for every function: real ones have 20 bytes.
    let table = table(&Module { cie_padding: 2048, ..Module::new(vec![function(0, 0x10, &[])]) });
    check(&table, &[(0, Rule::UNSUPPORTED), (0xf, Rule::UNSUPPORTED)]);
    assert_eq!(table.stats.unsupported[Unsupported::Malformed as usize].bytes, 0x10);
}

#[test]
fn other_files_are_rejected() {
    let check = |change: fn(&mut Vec<u8>), want: ImageError| {
        let mut bytes = Module::new(Vec::new()).bytes();
        change(&mut bytes);
        assert_eq!(build(&file(&bytes)).err(), Some(want));
    };
    check(|bytes| bytes[0] = 0, ImageError::NotElf);
    check(|bytes| bytes[4] = 1, ImageError::NotElf);
    check(|bytes| bytes[5] = 2, ImageError::NotElf);
    check(|bytes| bytes[16] = 1, ImageError::OtherKind);
    check(|bytes| bytes[18] = 183, ImageError::OtherKind);
    check(|bytes| bytes.truncate(100), ImageError::Malformed);
    check(|bytes| bytes[56..58].copy_from_slice(&[0xff, 0xff]), ImageError::Malformed);
    check(|bytes| bytes[64 + 56 + 4] = 4, ImageError::NoCode);
    // The executable segment is 2^40 bytes long.
    check(|bytes| bytes[64 + 56 + 37] = 1, ImageError::TooWide);
    assert_eq!(build(&file(&[])).err(), Some(ImageError::NotElf));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn tables_of_damaged_modules_are_consistent(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        where_ in 0..3,
        section_headers in any::<bool>(),
    ) {
        let plt = [BREG_RSP, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let frame = [cfa::advance(1), cfa::def(cfa::RSP, 16), cfa::offset(cfa::RBP, 2), cfa::REMEMBER.to_vec(),
            cfa::advance(3), cfa::def(cfa::RBP, 16), cfa::RESTORE.to_vec()].concat();
        let functions = vec![
            function(0, 0x40, &[&cfa::def_expression(&plt)]),
            function(0x100, 0x80, &[&frame]),
            trampoline([0xa0, 0x01]),
            function(0x9000, 0x1_8000, &[&frame]),
        ];
        let mut bytes = Module { section_headers, entry: CODE + 0x3000, ..Module::new(functions) }.bytes();
        // The headers, the unwind section, or any part.
        let (start, end) = match where_ {
            0 => (0, 64 + 3 * 56),
            1 => (0xf000, 0xf000 + 0x100),
            _ => (0, bytes.len()),
        };
        for (index, value) in changes {
            let at = start + index.index(end - start);
            bytes[at] = value;
        }
        if let Ok(table) = build(&file(&bytes)) {
            prop_assert!(table.is_consistent());
            let explained: u64 = table.stats.unsupported.iter().map(|tally| tally.bytes).sum();
            prop_assert!(explained <= table.stats.bytes_read);
        }
    }
}
