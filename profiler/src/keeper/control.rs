//! Words at the end of a process's countdowns by which all its stubs are switched on and off: code that is mapped into a process
//! never changes, because a thread may stand anywhere in it, also behind the signal handler that it executes now.

use profiler_common::live::FILTER_ONE;

/// Number of bytes of the words, including padding.
pub(crate) const BYTES: usize = 64;
/// Address of the countdowns in use: the live or the idle ones.
pub(crate) const BASE: usize = 0;
/// 0, or [`BYPASS`] if frees continue at the function's entry.
pub(crate) const BYPASSED: usize = 8;
/// Address of the live countdowns.
pub(crate) const LIVE: usize = 16;
/// Address of the idle countdowns, whose interval of 0 makes allocating calls continue at the function's entry.
pub(crate) const IDLE: usize = 24;

/// A word of the filter that counts two blocks: a stub that adds it to the word that it searches excludes no block, and need not
/// test for it in the calls that the filter excludes.
pub(crate) const BYPASS: u64 = 2 * FILTER_ONE;
