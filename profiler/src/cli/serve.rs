//! The options of `--serve`.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;

use super::exit::usage;
use crate::serve::{self, Address, Token};

/// Heading of the options of `--serve` in the help.
const HEADING: &str = "Serve";

// Options of all commands that record.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ServeArgs {
    /// Serve the live page, pprof, metrics and reports at ADDRESS.
    ///
    /// `127.0.0.1:8080`, `[::1]:8080` or `unix:/run/heapbpf.sock`; port 0 is a free one. Other addresses than this machine's own
    /// need `--token-file`. May be given several times; see docs/serve.md.
    #[arg(help_heading = HEADING, long, value_name = "ADDRESS")]
    pub(super) serve: Vec<Address>,

    /// Require the token in FILE from clients of `--serve`, except on Unix sockets: as `Authorization: Bearer TOKEN`, or as the
    /// password. Other users must not be able to read FILE.
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "serve")]
    pub(super) token_file: Option<PathBuf>,

    /// Serve over TLS, with the certificate and its chain in FILE (PEM).
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires_all = ["serve", "tls_key"])]
    pub(super) tls_cert: Option<PathBuf>,

    /// Private key of `--tls-cert` (PEM).
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "tls_cert")]
    pub(super) tls_key: Option<PathBuf>,

    /// Answer requests for the host NAME, too: besides IP addresses and `localhost`. May be given several times.
    #[arg(help_heading = HEADING, long, value_name = "NAME", requires = "serve")]
    pub(super) serve_name: Vec<String>,
}

impl ServeArgs {
    /// Files whose contents are part of the configuration.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.token_file.iter().chain(&self.tls_cert).chain(&self.tls_key)
    }

    /// The configuration, with the contents of its files; `None` without `--serve`.
    pub(super) fn config(&self) -> Result<Option<serve::Config>> {
        if self.serve.is_empty() {
            return Ok(None);
        }
        if let Some(remote) = self.serve.iter().find(|address| address.is_remote())
            && self.token_file.is_none()
        {
            return Err(usage(format!(
                "`--serve {remote}` can be reached from other machines: add `--token-file FILE`, or serve at 127.0.0.1"
            )));
        }
        let token = self.token_file.as_deref().map(Token::read).transpose().map_err(|error| anyhow!(error))?;
        let files = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let tls = files.map(|(certificate, key)| serve::acceptor(certificate, key)).transpose();
        let tls = tls.map_err(|error| anyhow!(error))?;
        let (addresses, names) = (self.serve.clone(), self.serve_name.clone());
        Ok(Some(serve::Config { addresses, token, tls, names }))
    }
}
