//! Tests of placements on aarch64.

mod beginnings;
mod interpreter;
mod recorded;

use super::*;
use crate::probe::arch::aarch64::Aarch64;

/// Places the hook of a table function in these instructions, which are the whole function.
fn placed(function: &str, words: &[u32]) -> Result<Placement, PlaceError> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    place_on::<Aarch64>(&code(&bytes, true), &spec(function), PlacementMode::Auto, Emulation::default())
}
