//! Options of `--push`, and the configuration that they result in.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, anyhow};
use clap::Args;
use heapbpf_base::shown::Shown;
use heapbpf_linux::files;

use super::exit::usage;
use super::values;
use crate::push::{Endpoint, Header, PushConfig, Tls, UserLabel, check_labels};

const HEADING: &str = "Push to a server";
const HEADERS_BYTES_MAX: u64 = 1 << 20;
/// Minimum size of the queue, for a few windows of large processes.
const QUEUE_BYTES_MIN: u64 = 64 << 10;

#[derive(Args, Clone, Debug, Default)]
pub(super) struct PushArgs {
    /// Push a window of the profile to a server every 15 s.
    ///
    /// `pyroscope+http://HOST:4040`, `otlp+http://HOST:4318`, `otlp+grpc://HOST:4317` or `parca+grpc://HOST:7070`; with `https`
    /// or `grpcs` for TLS. See docs/push.md.
    #[arg(help_heading = HEADING, long, value_name = "URL")]
    pub(super) push: Option<Endpoint>,

    /// Length of a window.
    #[arg(help_heading = HEADING, long, value_name = "TIME", default_value = "15s", value_parser = values::period, requires = "push", allow_hyphen_values = true)]
    pub(super) push_every: Duration,

    /// Label of pushed profiles, such as `env=production`. `service`, `host` and the like replace heapbpf's own. May be
    /// given several times.
    #[arg(help_heading = HEADING, long, value_name = "NAME=VALUE", requires = "push")]
    pub(super) label: Vec<UserLabel>,

    /// Header of requests, such as `X-Scope-OrgID: tenant`. Every user can see it in `ps`: for secrets, use
    /// `--push-header-file`. May be given several times.
    #[arg(help_heading = HEADING, long, value_name = "HEADER", requires = "push")]
    pub(super) push_header: Vec<Header>,

    /// Read headers of requests from FILE, one per line, such as `Authorization: Bearer …`.
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "push")]
    pub(super) push_header_file: Option<PathBuf>,

    /// Trust the certificate authorities in FILE (PEM) instead of the system's.
    #[arg(help_heading = HEADING, long, value_name = "FILE", requires = "push")]
    pub(super) push_ca: Option<PathBuf>,

    /// Keep what the server does not accept in DIR, over restarts too. By default, in `push` below `$STATE_DIRECTORY` or
    /// /var/lib/heapbpf; where neither can be written, in the folder for temporary files.
    #[arg(help_heading = HEADING, long, value_name = "DIR", requires = "push")]
    pub(super) push_queue: Option<PathBuf>,

    /// Maximum size of the queue. Beyond that, the oldest profiles are dropped and counted.
    #[arg(help_heading = HEADING, long, value_name = "BYTES", default_value = "64MiB", value_parser = values::size_from(QUEUE_BYTES_MIN), requires = "push")]
    pub(super) push_queue_max: u64,
}

impl PushArgs {
    /// Files whose contents are part of the configuration.
    pub(super) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.push_header_file.iter().chain(&self.push_ca)
    }

    /// The configuration, with the contents of its files; `None` without `--push`.
    pub(super) fn config(&self) -> Result<Option<PushConfig>> {
        let Some(endpoint) = self.push.clone() else { return Ok(None) };
        check_labels(&self.label).map_err(usage)?;
        let mut headers = Vec::new();
        if let Some(path) = &self.push_header_file {
            let shown = Shown::of(path);
            let text = files::read_text(path, HEADERS_BYTES_MAX)
                .map_err(|error| anyhow!("cannot read headers from `{shown}`: {error}"))?;
            headers = Header::parse_file(&text).map_err(|error| usage(format!("`{shown}`, {error}")))?;
        }
        headers.extend(self.push_header.iter().cloned());
        let tls = Tls::of(&endpoint, self.push_ca.as_deref())?;
        Ok(Some(PushConfig {
            endpoint,
            headers,
            tls,
            labels: self.label.clone(),
            every: self.push_every,
            queue: self.push_queue.clone(),
            queue_bytes_max: self.push_queue_max,
        }))
    }
}
