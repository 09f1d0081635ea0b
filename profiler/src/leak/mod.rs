//! Leaks: callsites that grow (`growth`), and blocks that nothing holds any more, found by mark and sweep
//! (`blocks` ─▶ `mark` ─▶ `fold`). Pure.

pub(crate) mod blocks;
mod components;
pub(crate) mod fold;
mod graph;
pub(crate) mod growth;
mod index;
#[cfg(test)]
mod made_up;
pub(crate) mod mark;
mod reach;
mod words;
