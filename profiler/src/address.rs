//! Addresses, one type per address space.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Address in a target's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetAddr(pub u64);

/// Offset in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileOffset(pub u64);

/// Address in an object's symbols and program headers, before loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkAddr(pub u64);

impl TargetAddr {
    /// Returns an address inside the call that returns to this one. The return address itself is that of the next
    /// instruction, which may belong to another line or, after a call that never returns, to another function.
    pub fn inside_call(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::LowerHex for TargetAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
