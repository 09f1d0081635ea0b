//! Growing callsites (`growth`), and unreachable blocks by mark and sweep (`blocks` ─▶ `mark` ─▶ `fold`). Pure.

pub(crate) mod blocks;
pub(crate) mod fold;
mod graph;
pub(crate) mod growth;
pub(crate) mod mark;
mod words;
mod work;

#[cfg(test)]
mod tests {
    pub(super) mod synthetic;
}
