//! What the agent and the keeper say to each other. Both are the same binary, so there are no versions.

use serde::{Deserialize, Serialize};

use crate::bpf::load::LinkKind;
use crate::ids::Pid;

/// Maximum size of a request: a module with some 100,000 hooks.
pub(super) const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a reply: an identifier, or the kernel's reason.
pub(super) const REPLY_BYTES_MAX: usize = 64 << 10;

/// Names what is attached by one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct LinkId(pub(super) u64);

/// An instruction to attach to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Site {
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// What the programs receive (`bpf_get_attach_cookie`).
    pub cookie: u64,
    /// The return is of interest as well.
    pub returns: bool,
}

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Attach; answered. The descriptors are the file's and the programs'.
    Attach {
        kind: LinkKind,
        sites: Vec<Site>,
        /// `None` for all processes.
        pid: Option<Pid>,
    },
    /// Detach; not answered.
    Detach(LinkId),
    /// Answered once all is detached that was to be.
    Settle,
    /// Start a thread that traces a process; answered by [`Reply::Settled`]. The descriptor is its channel.
    Trace,
}

/// From the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Attached(LinkId),
    /// The kernel's reason.
    Refused(String),
    /// Done.
    Settled,
}
