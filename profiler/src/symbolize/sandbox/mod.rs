//! The symbolizer: a separate process that parses files which targets can forge.
//!
//! ```text
//! agent: Resolver ─▶ client ══ channel: descriptors, addresses ═▶ symbolizer ─▶ blazesym
//!                           ◀═════════ names, checked ══════════
//! ```
//!
//! The agent opens files, and the symbolizer parses them: without capabilities or other files, with few system calls
//! and limited memory (see `linux::confinement`). If it crashes or takes too long, it is killed and restarted: the
//! module's names are then read from its symbol table, and if that fails too, there are none.

mod client;
mod protocol;
mod symbolizer;

pub(super) use self::client::Sandbox;
pub(crate) use self::client::{Interrupt, confinement};
pub use self::protocol::COMMAND;
pub(super) use self::protocol::{Defect, Depth, Names, Role};
pub use self::symbolizer::serve;
pub(super) use self::symbolizer::{Engine, ModuleFile, Reach};
