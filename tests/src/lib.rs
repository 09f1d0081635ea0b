//! Integration tests of heapbpf, through the built binary and on the kernel of this machine.
//!
//! Owns the programs under `targets/`, what starts and stops them and the profiler, and the reading of JSON reports.
//! Uses nothing of the crates under test: what they promise is written down here a second time, from the outside. (Two
//! tests look inside: `tests/unwind` needs stacks in a form that the binary does not give out, and `tests/shapes.rs` calls
//! that no allocator can be made to answer so.)
//!
//! # What the binary promises
//!
//! ```text
//! heapbpf [record] --pid PID [--pid PID2] [--interval BYTES=4KiB] [--duration TIME] [-o FILE]…
//!         [--view live-bytes|live-count|alloc-bytes|alloc-count] [--quiet]
//! ```
//!
//! - Once probes are in place, one line on stderr starts with `heapbpf: recording`.
//! - It ends at SIGINT, at SIGTERM, after `--duration` or when the target exits. Each time it writes the reports and
//!   prints a summary on stdout.
//! - Without `-o` the report is `heapbpf-<comm>-<pid>.svg` in the current directory. A file's extension gives its format:
//!   `.svg`, `.folded`, `.json`.
//! - Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but incomplete, 130 interrupted before anything was written.
//! - Errors go to stderr as `heapbpf: error: …` or `error: …`, in lower case, with the value in backticks.
//! - At an interval of 1, totals are integers and exact. A stack's leaf is the caller of the allocator's function.
//!
//! # What counts
//!
//! - A block belongs to the function that asked for it, wherever it is freed. It counts with the size asked for, which for
//!   `pvalloc` is rounded up to pages.
//! - A successful `realloc` of a block is a free of the old block and an allocation of the new one; `realloc(p, 0)` is a
//!   free; a failed call and `free(NULL)` are nothing; `malloc(0)` is a block of 0 bytes.
//! - An allocator's function that calls another one counts once.
//! - Blocks from before the session are unknown: their frees are not counted.
//!
//! # Running
//!
//! `cargo xtask test` builds the binary and runs these as root. By hand: `HEAPBPF_BIN` names the binary (otherwise
//! `target/debug/heapbpf` is taken), and `HEAPBPF_BPF_OBJECT` is passed on to it; `cargo xtask viewers` installs what
//! `tests/viewers.rs` opens profiles with (`HEAPBPF_VIEWERS` names another place for it). Without root the tests fail and say so:
//! a test that passes by not running would say something untrue.

pub mod cgroup;
pub mod faults;
pub mod heapbpf;
pub mod kernel;
pub mod nginx;
pub mod postgres;
pub mod recipe;
pub mod redis;
pub mod report;
pub mod sampling;
pub mod target;
pub mod unreachable;
pub mod viewers;
