//! Addresses, one type per address space.

use derive_more::LowerHex;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, LowerHex, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TargetAddr(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileOffset(pub u64);

/// Address in an object's symbols and program headers, before loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LinkAddr(pub u64);

impl TargetAddr {
    /// The return address itself is that of the next instruction, which may belong to another line or function.
    pub fn inside_call(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}
