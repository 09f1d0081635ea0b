//! Leaks: callsites that grow (`growth`), and blocks that nothing holds any more, found by mark and sweep
//! (`blocks` ─▶ `mark` ─▶ `fold`). Pure.

pub mod blocks;
mod components;
pub mod fold;
mod graph;
pub mod growth;
mod index;
#[cfg(test)]
mod made_up;
pub mod mark;
mod reach;
mod words;
