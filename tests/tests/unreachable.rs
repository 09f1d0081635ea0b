//! `heapbpf leaks`: what it finds in programs that know what they have lost, and what it does to those that it looks at.

#[path = "unreachable/attached.rs"]
mod attached;
#[path = "unreachable/crowds.rs"]
mod crowds;
#[path = "unreachable/intrusion.rs"]
mod intrusion;
#[path = "unreachable/launched.rs"]
mod launched;
#[path = "unreachable/looks.rs"]
mod looks;
#[path = "unreachable/owners.rs"]
mod owners;
#[path = "unreachable/places.rs"]
mod places;
#[path = "unreachable/refused.rs"]
mod refused;
#[path = "unreachable/told.rs"]
mod told;

/// The command's exit codes.
const CLEAN: i32 = 0;
const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;
const LEAKS: i32 = 4;
