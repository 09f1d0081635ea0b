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

pub(super) use self::client::Sandbox;
pub(crate) use self::client::{Interrupt, confinement};
pub(super) use self::engine::{Engine, ModuleFile, Reach};
pub use self::protocol::COMMAND;
pub(super) use self::protocol::{Defect, Depth, NamedFrame, Names, Role};
pub use self::server::serve;
