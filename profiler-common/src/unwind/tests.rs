//! Rules survive packing, and the search agrees with a linear scan of all rows.

use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

/// The three arrays as vectors.
struct Tables {
    rows: Vec<UnwindRow>,
    pages: Vec<PageRows>,
    rules: Vec<Rule>,
}

impl ReadTables for Tables {
    fn row(&self, index: u32) -> Option<UnwindRow> {
        self.rows.get(index as usize).copied()
    }
    fn page(&self, index: u32) -> Option<PageRows> {
        self.pages.get(index as usize).copied()
    }
    fn rule(&self, index: u16) -> Option<Rule> {
        self.rules.get(usize::from(index)).copied()
    }
}

pub(crate) fn cfa() -> impl Strategy<Value = Cfa> {
    prop_oneof![
        (8..i32::MAX).prop_map(|offset| Cfa::Sp { offset }),
        any::<i32>().prop_map(|offset| Cfa::Bp { offset }),
        any::<(i16, i16)>().prop_map(|(slot, add)| Cfa::AtSp { slot, add }),
        any::<(i16, i16)>().prop_map(|(slot, add)| Cfa::AtBp { slot, add }),
        (8..i16::MAX, 0_u8..16).prop_map(|(offset, threshold)| Cfa::Plt { offset, threshold }),
    ]
}

pub(crate) fn caller_bp() -> impl Strategy<Value = CallerBp> {
    prop_oneof![
        Just(CallerBp::Same),
        any::<i16>().prop_map(CallerBp::AtCfa),
        any::<i16>().prop_map(CallerBp::AtBp),
        Just(CallerBp::Lost),
    ]
}

#[test]
fn a_rule_that_does_not_shrink_the_stack_is_rejected() {
    for offset in [i32::MIN, -8, 0, 7] {
        assert_eq!(Rule::new(Cfa::Sp { offset }, CallerBp::Same), None, "rsp{offset:+}");
    }
    assert_eq!(Rule::new(Cfa::Plt { offset: 0, threshold: 11 }, CallerBp::Same), None);
    assert_eq!(Rule::new(Cfa::Plt { offset: 8, threshold: 16 }, CallerBp::Same), None);
}

#[test]
fn reserved_rules_are_distinct_and_have_no_cfa() {
    for (i, rule) in Rule::RESERVED.iter().enumerate() {
        assert_eq!(rule.cfa(), None);
        assert_eq!(Rule::from_bytes(rule.to_bytes()), Some(*rule));
        assert!(!Rule::RESERVED[..i].contains(rule), "{rule:?} occurs twice");
    }
}

#[test]
fn unknown_kinds_are_refused() {
    assert_eq!(Rule::from_bytes([0, 0, 0, 0, 0, 0, KIND_LINK_BP + 1, 0]), None);
    assert_eq!(Rule::from_bytes([8, 0, 0, 0, 0, 0, KIND_SP, BP_LOST + 1]), None);
    // Bytes that no encoding produces.
    assert_eq!(Rule::from_bytes([8, 0, 0, 0, 1, 0, KIND_SP, BP_SAME]), None);
    assert_eq!(Rule::from_bytes([1, 0, 0, 0, 0, 0, KIND_END, BP_SAME]), None);
}

#[test]
fn a_full_page_is_searched_to_the_byte() {
    let rows: Vec<UnwindRow> = (0..=u16::MAX).map(|pc_low| UnwindRow { pc_low, rule: pc_low ^ 0x5555 }).collect();
    let pages = vec![PageRows { first: 0, end: 1 << 16 }];
    let tables = Tables { rows, pages, rules: Vec::new() };
    for pc_low in 0..=u16::MAX {
        let row = find_row(&tables, tables.pages[0], pc_low);
        assert_eq!(row, Some(UnwindRow { pc_low, rule: pc_low ^ 0x5555 }));
    }
}

#[test]
fn cells_hold_rows_by_parity() {
    let (even, odd) = (UnwindRow { pc_low: 1, rule: 2 }, UnwindRow { pc_low: 3, rule: 4 });
    let cell = RowCell { even, odd };
    assert_eq!((cell.row(6), cell.row(7)), (even, odd));
}

proptest! {
    #[test]
    fn rules_survive_packing(cfa in cfa(), bp in caller_bp()) {
        let rule = Rule::new(cfa, bp).expect("these shrink the stack");
        prop_assert_eq!(rule.cfa(), Some(cfa));
        prop_assert_eq!(rule.caller_bp(), bp);
        prop_assert_eq!(Rule::from_bytes(rule.to_bytes()), Some(rule));
    }

    #[test]
    fn the_search_agrees_with_a_linear_scan(
        // Address in a module of 8 pages → rule, as a sorted map: the rule holds up to the next address.
        model in btree_map(0_u64..8 << PAGE_BITS, 1_u16..6, 0..200),
        start in any::<u64>(),
        probes in vec(0_u64..9 << PAGE_BITS, 50),
    ) {
        let rules: Vec<Rule> =
            (0..6).map(|i| Rule::new(Cfa::Sp { offset: 8 + i }, CallerBp::Same).expect("at least 8")).collect();
        let (mut rows, mut pages) = (Vec::new(), Vec::new());
        let mut held = 0;
        for page in 0..8_u64 {
            let first = u32::try_from(rows.len()).expect("few rows");
            rows.push(UnwindRow { pc_low: 0, rule: held });
            for (&address, &rule) in model.range(page << PAGE_BITS..(page + 1) << PAGE_BITS) {
                let pc_low = u16::try_from(address & 0xffff).expect("16 bits");
                if pc_low == 0 {
                    rows.pop();
                }
                rows.push(UnwindRow { pc_low, rule });
                held = rule;
            }
            pages.push(PageRows { first, end: u32::try_from(rows.len()).expect("few rows") });
        }
        // Pages of other modules.
        let pages = [vec![PageRows { first: 7, end: 3 }; 3], pages].concat();
        let tables = Tables { rows, pages, rules: rules.clone() };
        let table = TableRef { start, page_first: 3, page_count: 8 };
        for probe in probes {
            let want = (probe < 8 << PAGE_BITS)
                .then(|| rules[usize::from(model.range(..=probe).next_back().map_or(0, |(_, &rule)| rule))]);
            prop_assert_eq!(find_rule(&tables, &table, start.wrapping_add(probe)), want, "at {:#x}", probe);
        }
    }

    #[test]
    fn arbitrary_map_contents_do_not_panic(
        rows in vec(any::<(u16, u16)>(), 0..50),
        page in any::<(u32, u32)>(),
        table in any::<(u64, u32, u32)>(),
        address in any::<u64>(),
    ) {
        let tables = Tables {
            rows: rows.into_iter().map(|(pc_low, rule)| UnwindRow { pc_low, rule }).collect(),
            pages: vec![PageRows { first: page.0 % 64, end: page.1 }; 4],
            rules: Rule::RESERVED.to_vec(),
        };
        let (start, page_first, page_count) = table;
        find_rule(&tables, &TableRef { start, page_first, page_count }, address);
        find_rule(&tables, &TableRef { start: address, page_first: page_first % 4, page_count }, address);
    }
}
