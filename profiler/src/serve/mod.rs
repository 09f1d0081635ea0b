//! `--serve`: the running recording over HTTP. The server has threads of its own and asks the session for snapshots only, so that
//! no client delays the recording. No request names a file.

mod access;
mod address;
mod body;
mod events;
mod metrics;
mod refusal;
mod render;
mod respond;
mod route;
mod server;
mod socket;
mod source;
mod stream;
mod tls;
mod token;

pub(crate) use address::Address;
pub(crate) use server::{Config, Running, Server};
pub(crate) use tls::acceptor;
pub(crate) use token::Token;

#[cfg(test)]
mod testing {
    /// Runs a test with a paused clock: it advances only when nothing else can run.
    pub(super) fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            tokio::time::pause();
            test.await;
        });
    }
}
