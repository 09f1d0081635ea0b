//! Of [`returns.rs`](../../src/returns.rs): no probe follows calls here.

pub(crate) fn restore_return(_area: u32) -> u32 {
    0
}
