//! The views of a recording that is going on: their options, and when they start and end.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use heapbpf_linux::files;
use heapbpf_report::Presentation;
use sha2::{Digest as _, Sha256};

use super::push::PushArgs;
use super::serve::ServeArgs;
use super::terminal::say;
use super::top_settings::TopSettings;
use super::top_view::Top;
use crate::http::tls::system_authorities;
use crate::live::Feed;
use crate::push::{PushConfig, Pusher};
use crate::serve::{self, Running, Server};
use crate::session::{Control, Progress};
use crate::snapshot::Snapshot;
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::Trim;

// Options of all commands that record.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct ViewArgs {
    #[command(flatten)]
    pub(super) serve: ServeArgs,

    #[command(flatten)]
    pub(super) push: PushArgs,
}

/// Maximum size of a file that is part of the configuration: certificates of authorities are the largest.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Configuration of views: their options, and the contents of the files that these name.
#[derive(Clone, Default)]
pub(super) struct Prepared {
    server: Option<serve::Config>,
    push: Option<PushConfig>,
    /// Digest of the options and of the contents of files.
    digest: [u8; 32],
}

impl ViewArgs {
    /// Reads the files that the options name. Fails if any of them cannot be used.
    pub(super) fn prepare(&self) -> Result<Prepared> {
        // The digest is computed first: a file that is replaced meanwhile differs from this digest next time.
        let digest = self.digest();
        Ok(Prepared { server: self.serve.config()?, push: self.push.config()?, digest })
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        digest.update(format!("{self:?}"));
        for file in self.serve.files().chain(self.push.files()) {
            // A file that cannot be read is refused when it is used.
            let bytes = files::read(file, FILE_BYTES_MAX).unwrap_or_default();
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
        if self.push.push.is_some() && self.push.push_ca.is_none() {
            digest.update(system_authorities());
        }
        digest.finalize().into()
    }
}

impl Prepared {
    pub(super) fn any(&self) -> bool {
        self.server.is_some() || self.push.is_some()
    }

    /// Whether views that were started with `other` must be started again.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        self.digest != other.digest
    }
}

/// Presentation of profiles in views.
pub(super) struct Rendering {
    pub(super) presentation: Presentation,
    /// Frames of the language runtime to remove.
    pub(super) trim: Trim,
    /// Whether standard error is not for views' messages.
    pub(super) quiet: bool,
    pub(super) sources: Sources,
}

/// Running views. They have threads of their own, so that they do not delay the session.
pub(super) struct Views {
    feed: Feed,
    _server: Option<Running>,
    pusher: Option<Pusher>,
    /// Settings of `heapbpf top` until it is started.
    top_settings: Option<TopSettings>,
    top: Option<Top>,
}

impl Views {
    /// Starts the requested views before anything is attached, so that mistakes are reported first. `None` without any.
    pub(super) fn start(args: &ViewArgs, rendering: Rendering, top: Option<TopSettings>) -> Result<Option<Self>> {
        Self::start_prepared(args.prepare()?, rendering, top)
    }

    /// Starts the prepared views. Fails where an address or the queue is in use.
    pub(super) fn start_prepared(
        prepared: Prepared,
        rendering: Rendering,
        top: Option<TopSettings>,
    ) -> Result<Option<Self>> {
        if !prepared.any() && top.is_none() {
            return Ok(None);
        }
        let Rendering { presentation, trim, quiet, sources } = rendering;
        let server = prepared.server.map(Server::bind).transpose()?;
        let feed = Feed::start(trim, sources);
        let urls = server.as_ref().map(Server::urls).unwrap_or_default();
        let warn = move |text: &str| {
            if !quiet {
                say(&format!("heapbpf: warning: {text}"));
            }
        };
        let pusher = prepared.push.map(|config| Pusher::start(config, feed.clone(), warn)).transpose()?;
        let pushed = pusher.as_ref().map(Pusher::status);
        let server = server.map(|server| server.start(feed.clone(), presentation, pushed)).transpose()?;
        if !quiet {
            urls.iter().for_each(|url| say(&format!("heapbpf: serving {url}")));
        }
        Ok(Some(Self { feed, _server: server, pusher, top_settings: top, top: None }))
    }

    /// Joins the views to a session that has started.
    pub(super) fn connect(&mut self, control: &mut Control) {
        self.feed.connect(control);
        self.top = self.top_settings.take().map(|settings| Top::start(settings, self.feed.clone()));
    }

    /// Waits until the user closes the screen; for ever without one.
    pub(super) fn closed(views: Option<&Self>) -> impl Future<Output = ()> + use<> {
        let closed = views.and_then(|views| views.top.as_ref()).map(Top::closed);
        async move {
            match closed {
                Some(closed) => closed.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Shows the last state of a recording that has ended by itself, until the user closes the screen or `stop` resolves.
    pub(super) async fn close_screen(&mut self, stop: impl Future<Output = ()>) -> Result<()> {
        let Some(top) = self.top.take() else { return Ok(()) };
        tokio::select! {
            () = top.closed() => {}
            () = stop => {}
        }
        top.close()
    }

    pub(super) fn publish(&self, progress: &Progress) {
        self.feed.publish(Some(progress));
    }

    /// Ends a session with this snapshot, which views show until they are dropped.
    pub(super) async fn end_session(&self, last: Arc<Snapshot>) {
        self.feed.publish(None);
        if !self.feed.end(last).await {
            tracing::warn!("the last window of a recording was not pushed: earlier ones are being prepared");
        }
        self.top.iter().for_each(Top::end_recording);
    }

    /// Waits for the last window to be pushed, for a few seconds at most. Returns a line for the summary.
    pub(super) async fn finish(self, stop: impl Future<Output = ()>) -> Option<String> {
        match self.pusher {
            Some(pusher) => Some(pusher.finish(stop).await),
            None => None,
        }
    }
}
