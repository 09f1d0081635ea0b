//! Which callsites leak, told from how what they hold has grown, without looking into the target's memory.
//!
//! Pure: books and times in, candidates out. `ledger/timeline.rs` notes, `growth` judges; docs/leak-candidates.md says how.

pub mod growth;
