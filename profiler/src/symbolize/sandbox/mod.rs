//! The symbolizer: a confined process (see `linux::confinement`) that parses files which targets can forge; the agent
//! opens them. If it crashes or takes too long, it is killed and restarted: the module's names are then read from its
//! symbol table, and if that fails too, there are none.

mod client;
mod protocol;
mod symbolizer;

pub(super) use self::client::Sandbox;
pub(crate) use self::client::{Interrupt, confinement};
pub use self::protocol::COMMAND;
pub(super) use self::protocol::{Defect, Depth, Names, Role};
pub use self::symbolizer::serve;
pub(super) use self::symbolizer::{Engine, ModuleFile, Reach};
