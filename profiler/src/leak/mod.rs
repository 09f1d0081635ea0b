//! Leaks: callsites that grow (`growth`), and blocks that nothing holds any more, found by mark and sweep
//! (`blocks` ─▶ `mark` ─▶ `fold`). Pure.

pub mod blocks;
pub mod fold;
pub mod growth;
pub mod mark;
