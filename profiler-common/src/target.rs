//! What the kernel side knows of a target: the flags in its map of targets.

/// The processes that the target forks are targets as well.
pub const FOLLOWS_FORKS: u32 = 1;

/// The process runs in another one's memory, as a child of `vfork` does until it calls exec: probes of that memory see its
/// calls, which are nobody's. It is entered so that its own forks are seen.
pub const BORROWS_MEMORY: u32 = 2;
