//! Flags of the kernel side's map of targets, and counts of its map of targets with stubs.

/// Forks of the target become targets too.
pub const FOLLOWS_FORKS: u32 = 1;

/// The process runs in its parent's memory, as a child of `vfork` does until exec: probes of that memory see its calls, which
/// are not recorded. It is in the map so that its own forks are observed.
pub const BORROWS_MEMORY: u32 = 2;

/// Calls of the target are recorded by the probes that all processes share, no longer by those of its own.
pub const SHARES_PROBES: u32 = 4;

/// Frees of blocks that are not in the live set are reported too, unless the filter excludes them: the agent is about to insert
/// the blocks that the process had before the recording. Forked children do not inherit the flag.
pub const REPORTS_FREES: u32 = 8;

/// Index of the number of allocating calls that met a probe in the function, in the counts of a process with stubs.
pub const TRAPPED_CALLS: usize = 0;

/// Index of the number of calls that stubs have sampled, as far as the probes in the stubs have seen them.
pub const SAMPLED_CALLS: usize = 1;

/// Key of the counts of all processes that have none of their own: they may use the memory of a process with stubs, as a child of
/// `vfork` does.
pub const OTHER_PROCESSES: u32 = 0;
