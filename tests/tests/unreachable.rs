//! `heapbpf leaks`: leaks found in programs with a ledger of their own, and its effects on the inspected programs.

mod attached;
mod ends;
mod errors;
mod intrusion;
mod launched;
mod many;
mod output;
mod owners;
mod roots;
mod runs;
mod unusual;

/// Exit codes of the command.
const CLEAN: i32 = 0;
const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;
const INCOMPLETE: i32 = 3;
const LEAKS: i32 = 4;
