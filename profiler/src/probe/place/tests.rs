//! Placements on code from real allocators, on synthetic code, and on random code against an interpreter.

mod beginnings;
mod interpreter;

use super::*;
use crate::address::LinkAddr;

use crate::allocator::functions;

const ADDRESS: LinkAddr = LinkAddr(0x1000);

/// The table entry of a function.
fn spec(function: &str) -> HookSpec {
    functions::C.iter().chain(functions::MAPPINGS.iter()).find(|spec| spec.function == function).expect("in the table")
}

fn parse(hexadecimal: &str) -> Vec<u8> {
    let digits: String = hexadecimal.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
}

/// Places the hook of a table function in these bytes, which are the whole function.
fn placed(function: &str, bytes: &[u8]) -> Result<Placement, PlaceError> {
    place(&code(bytes, true), &spec(function), PlacementMode::Auto, Emulation::default())
}

fn code(bytes: &[u8], whole: bool) -> Code {
    Code { bytes: bytes.to_vec(), whole, address: ADDRESS }
}
