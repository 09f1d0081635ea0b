//! Tests of placements on code of real allocators, on synthetic code, and on random code, which an interpreter executes.

mod aarch64;
mod x86_64;

use heapbpf_base::address::LinkAddr;

use super::*;
use crate::allocator::functions;

const ADDRESS: LinkAddr = LinkAddr(0x1000);

/// Returns the table entry of a function.
fn spec(function: &str) -> HookSpec {
    let tables = [functions::C, functions::OPERATORS, functions::MAPPINGS];
    let mut specs = tables.into_iter().flat_map(|table| table.iter());
    specs.find(|spec| spec.function == function).expect("in the table")
}

fn parse(hexadecimal: &str) -> Vec<u8> {
    let digits: String = hexadecimal.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
}

fn code(bytes: &[u8], whole: bool) -> Code {
    Code { bytes: bytes.to_vec(), whole, address: ADDRESS }
}
