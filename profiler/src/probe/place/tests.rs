//! Placements on sequences met in practice, on made-up ones, and on random ones against an interpreter.

mod beginnings;
mod interpreter;

use super::*;
use crate::allocator::libc::FUNCTIONS;
use crate::allocator::mmap;

const ADDRESS: LinkAddr = LinkAddr(0x1000);

/// The tables' entry for a function.
fn spec(function: &str) -> HookSpec {
    *FUNCTIONS.iter().chain(mmap::FUNCTIONS).find(|spec| spec.function == function).expect("in the table")
}

fn parse(hexadecimal: &str) -> Vec<u8> {
    let digits: String = hexadecimal.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
}

/// Places the hook of a function of the table in these bytes, which are all of the function.
fn placed(function: &str, bytes: &[u8]) -> Result<Placement, PlaceError> {
    let code = Function { bytes, whole: true, address: ADDRESS };
    place(&code, &spec(function), PlacementMode::Auto, Emulation::default())
}
