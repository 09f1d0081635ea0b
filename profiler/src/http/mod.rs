//! Connections to servers, for HTTP clients: addresses, TCP and TLS.

mod connect;
mod resolve;
pub(crate) mod tls;

pub(crate) use connect::{AGENT, ConnectError, connect};
