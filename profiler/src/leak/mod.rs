//! Leaks: growing callsites (`growth`), and unreachable blocks, found by mark and sweep
//! (`blocks` ─▶ `mark` ─▶ `fold`). Pure.

pub(crate) mod blocks;
pub(crate) mod fold;
mod graph;
pub(crate) mod growth;
mod index;
pub(crate) mod mark;
#[cfg(test)]
mod synthetic;
mod words;
mod work;
