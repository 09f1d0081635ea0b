//! What the kernel side knows of a target: the flags in its map of targets.

/// The processes that the target forks are targets as well.
pub const FOLLOWS_FORKS: u32 = 1;
