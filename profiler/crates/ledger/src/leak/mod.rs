//! Growing callsites (`growth`), and unreachable blocks by mark and sweep (`blocks` ─▶ `mark` ─▶ `fold`). Pure.

pub mod blocks;
pub mod fold;
mod graph;
pub mod growth;
pub mod mark;
mod words;
mod work;

#[cfg(test)]
mod tests {
    pub(super) mod synthetic;
}
