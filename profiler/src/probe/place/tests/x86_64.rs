//! Tests of placements on x86-64.

mod beginnings;
mod interpreter;

use super::*;
use crate::probe::arch::x86_64::X86_64;

/// Places the hook of a table function in these bytes, which are the whole function.
fn placed(function: &str, bytes: &[u8]) -> Result<Placement, PlaceError> {
    place_on::<X86_64>(&code(bytes, true), &spec(function), PlacementMode::Auto, Emulation::default())
}

fn entry_arguments(function: &str) -> Arguments {
    Wanted::of::<X86_64>(&spec(function)).expect("at most six arguments").arguments
}
