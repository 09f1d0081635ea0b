//! Addresses, one type for each space, and the only conversions between them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An address in a target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetAddr(pub u64);

/// An offset into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileOffset(pub u64);

/// An address as an object's symbols and program headers state it, before loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkAddr(pub u64);

impl TargetAddr {
    /// An address inside the call that returns to this one. A return address belongs to the next instruction, which may
    /// be another line or, after a call that never returns, another function.
    pub fn inside_call(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::LowerHex for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
