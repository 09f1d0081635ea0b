//! The symbolizer: a separate process that parses files which targets can forge.
//!
//! ```text
//! agent: Resolver ─▶ client ══ channel: descriptors, addresses ═▶ server ─▶ engine ─▶ blazesym
//!                           ◀═════════ names, checked ══════════
//! ```
//!
//! The agent opens files, and the symbolizer parses them: without capabilities or other files, with few system calls
//! and limited memory (see `linux::confinement`). If it crashes or takes too long, it is killed and restarted: the
//! module's names are then read from its symbol table, and if that fails too, there are none.

mod client;
mod engine;
mod protocol;
mod server;

use std::time::Duration;

pub(super) use self::client::Sandbox;
pub(crate) use self::client::{Interrupt, confinement};
pub(super) use self::engine::{Engine, ModuleFile, Reach};
pub(super) use self::protocol::{Defect, Depth, NamedFrame, Names, Role};
pub use self::server::serve;

/// The hidden command that runs the symbolizer.
pub const COMMAND: &str = "symbolizer";
/// The name of the process in `ps` and `top`.
const PROCESS_NAME: &str = "heapbpf-symbol";

/// Time limit for a module of ordinary size.
pub(crate) const MODULE_TIME: Duration = Duration::from_secs(3);
/// Bytes of a module's files that extend its time limit by a second.
pub(crate) const TIME_PER_BYTES: u64 = 64 << 20;
/// Time limit for a module of any size. A target chooses the size of its files.
pub(crate) const MODULE_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for all modules of a report.
pub(crate) const TOTAL_TIME_MAX: Duration = Duration::from_secs(30);
/// Memory limit of the symbolizer, files that it has mapped not counted, in bytes.
pub(crate) const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// CPU time after which the kernel ends the symbolizer, should the agent not.
const CPU_TIME_MAX: Duration = Duration::from_secs(60);
