//! Of [`scratch.rs`](../../src/scratch.rs): a claimed area.

use crate::layout::Scratch;

pub(crate) struct Claim {
    pub(crate) scratch: *mut Scratch,
    pub(crate) area: u32,
}
