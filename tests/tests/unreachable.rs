//! `heapbpf leaks`: leaks found in programs with a ledger of their own, and its effects on the inspected programs.

#[path = "unreachable/attached.rs"]
mod attached;
#[path = "unreachable/ends.rs"]
mod ends;
#[path = "unreachable/errors.rs"]
mod errors;
#[path = "unreachable/intrusion.rs"]
mod intrusion;
#[path = "unreachable/launched.rs"]
mod launched;
#[path = "unreachable/many.rs"]
mod many;
#[path = "unreachable/output.rs"]
mod output;
#[path = "unreachable/owners.rs"]
mod owners;
#[path = "unreachable/roots.rs"]
mod roots;
#[path = "unreachable/runs.rs"]
mod runs;
#[path = "unreachable/unusual.rs"]
mod unusual;

/// Exit codes of the command.
const CLEAN: i32 = 0;
const FAILED: i32 = 1;
const WRONG_USAGE: i32 = 2;
const INCOMPLETE: i32 = 3;
const LEAKS: i32 = 4;
