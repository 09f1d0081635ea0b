//! Tables of aarch64's unwind information.

use heapbpf_base::address::LinkAddr;
use profiler_common::unwind::{CallerBp, Cfa, ReturnAddress, Rule};

use super::super::arch::Processor;
use super::super::{Image, Table, build_from_image};
use super::file;
use super::module::{CODE, Module, cfa, function};

fn table(module: &Module) -> Table {
    let file = file(&module.bytes());
    let table = build_from_image(&Image::parse_for(&file, Processor::Aarch64).expect("an ELF image"));
    assert!(table.is_consistent());
    table
}

/// Pairs of an offset into the code and the rule there.
fn check(table: &Table, want: &[(u64, Rule)]) {
    for &(at, rule) in want {
        assert_eq!(table.lookup(LinkAddr(CODE + at)), rule, "at {at:#x}");
    }
}

fn rule(cfa: Cfa, bp: CallerBp, address: ReturnAddress) -> Rule {
    Rule::with_return_address(cfa, bp, address).expect("representable")
}

#[test]
fn return_addresses_move_from_the_link_register_to_the_frame() {
    // paciasp; stp x29, x30, [sp, #-32]!; mov x29, sp
    let save = [cfa::def(cfa::SP, 32), cfa::offset(cfa::X29, 4), cfa::offset(cfa::X30, 3)].concat();
    let body = [&cfa::advance(4)[..], &cfa::SIGN, &cfa::advance(4), &save, &cfa::advance(4), &cfa::def(cfa::X29, 32)];
    let saved = |cfa| rule(cfa, CallerBp::AtCfa(-32), ReturnAddress::AtCfa(-24));
    let leaf = rule(Cfa::Sp { offset: 0 }, CallerBp::Same, ReturnAddress::Link);
    let table = table(&Module::for_aarch64(vec![function(0x100, 0x40, &body)]));
    let expected = [
        (0xfc, Rule::GAP),
        (0x100, leaf),
        (0x107, leaf),
        (0x108, saved(Cfa::Sp { offset: 32 })),
        (0x10c, saved(Cfa::Bp { offset: 32 })),
        (0x13f, saved(Cfa::Bp { offset: 32 })),
        (0x140, Rule::GAP),
    ];
    check(&table, &expected);
}

#[test]
fn first_functions_have_an_undefined_return_address() {
    let table = table(&Module::for_aarch64(vec![function(0, 0x10, &[&cfa::undefined(cfa::X30)])]));
    check(&table, &[(0, Rule::END), (0xf, Rule::END)]);
}

#[test]
fn frames_of_other_registers_are_not_supported() {
    let table = table(&Module::for_aarch64(vec![function(0, 0x10, &[&cfa::def(19, 16)])]));
    check(&table, &[(0, Rule::UNSUPPORTED)]);
}

#[test]
fn code_that_ends_a_signal_s_handler_is_found() {
    let mut module = Module::for_aarch64(vec![function(0, 0x100, &[])]);
    module.code[0x204..0x20c].copy_from_slice(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]);
    // The address before a return address is in the instruction before.
    check(&table(&module), &[(0x1ff, Rule::GAP), (0x203, Rule::SIGNAL), (0x20b, Rule::SIGNAL), (0x20c, Rule::GAP)]);
}

#[test]
fn files_of_another_processor_are_refused() {
    let aarch64 = file(&Module::for_aarch64(Vec::new()).bytes());
    assert!(Image::parse_for(&aarch64, Processor::X86_64).is_err());
    assert!(Image::parse_for(&aarch64, Processor::Aarch64).is_ok());
}
