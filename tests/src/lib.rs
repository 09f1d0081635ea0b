//! Integration tests of heapbpf, through the built binary and on the kernel of this machine.
//!
//! Contains the programs under `targets/`, code that starts and stops them and the profiler, and a parser of JSON
//! reports. Uses nothing of the crates under test: it states their contract independently. (Two tests use the library:
//! `tests/unwind` needs raw stacks, which the binary does not output, and `tests/shapes.rs` needs call outcomes that no
//! allocator produces on demand.)
//!
//! # The binary's contract
//!
//! ```text
//! heapbpf [record] --pid PID [--pid PID2] [--interval BYTES=4KiB] [--duration TIME] [-o FILE]…
//!         [--view live-bytes|live-count|alloc-bytes|alloc-count] [--quiet]
//! ```
//!
//! - Once probes are attached, one line on stderr starts with `heapbpf: recording`.
//! - It exits at SIGINT, at SIGTERM, after `--duration` or when the target exits. Each time it writes the reports and
//!   prints a summary on stdout.
//! - Without `-o` the reports are `heapbpf-<comm>-<pid>-<time>.svg` and `.html` in the current directory. A file's extension selects its
//!   format: `.svg`, `.folded`, `.json`.
//! - Exit codes: 0 done, 1 failed, 2 wrong usage, 3 done but incomplete, 130 interrupted before anything was written.
//! - Errors go to stderr as `heapbpf: error: …` or `error: …`, in lower case, with the value in backticks.
//! - At an interval of 1, totals are integers and exact. A stack's leaf is the caller of the allocator's function.
//!
//! # Counting
//!
//! - A block belongs to the function that allocated it, wherever it is freed. Its size is the requested one, which for
//!   `pvalloc` is rounded up to pages.
//! - A successful `realloc` of a block is a free of the old block and an allocation of the new one; `realloc(p, 0)` is
//!   a free; failed calls and `free(NULL)` do not count; `malloc(0)` is a block of 0 bytes.
//! - Nested calls of allocator functions count once.
//! - Blocks from before the session are unknown: their frees are not counted.
//!
//! # Running
//!
//! `cargo xtask test` builds the binary and runs these as root. By hand: `HEAPBPF_BIN` is the path of the binary
//! (default: `target/debug/heapbpf`), and `HEAPBPF_BPF_OBJECT` is passed on to it; `cargo xtask viewers` installs the
//! viewers of `tests/viewers.rs` (in `HEAPBPF_VIEWERS`, if set). Without root the tests fail with that reason: skipped
//! tests would be mistaken for passed ones.

pub mod cgroup;
pub mod faults;
pub mod fuse;
pub mod heapbpf;
pub mod interpreters;
pub mod kernel;
pub mod model;
pub mod nginx;
pub mod postgres;
pub mod python;
pub mod recipe;
pub mod redis;
pub mod report;
pub mod sampling;
pub mod shared;
pub mod stubs;
pub mod target;
pub mod tmux;
pub mod unreachable;
pub mod viewers;
pub mod vm;
