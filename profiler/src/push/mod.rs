//! Implementation of `--push`: ends a window of the running recording every few seconds and sends it to a server. A thread of its
//! own does all of this, so that the recording waits neither for the server nor for the disk.
//!
//! ```text
//! Feed ─▶ window ─▶ payload ─▶ queue ─▶ sender ─▶ client ─▶ server
//!                   labels     memory   retries   HTTP, gRPC, TLS
//!                              or disk
//! ```

mod client;
mod endpoint;
mod labels;
mod messages;
mod outcome;
mod payload;
mod pusher;
mod queue;
mod sender;
mod status;

#[cfg(test)]
mod tests;

pub(crate) use endpoint::{Endpoint, Header};
pub(crate) use labels::{UserLabel, check as check_labels};
pub(crate) use pusher::{PushConfig, Pusher, Tls};
pub(crate) use status::PushStatus;
