//! The thread that pushes: windows of the recording into the queue, and the queue to the server.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_rustls::rustls::ClientConfig;

use super::client::Client;
use super::endpoint::{Endpoint, Header};
use super::labels::{Labeller, UserLabel};
use super::payload::payloads;
use super::queue::Queue;
use super::sender::{Sender, Shared};
use super::status::PushStatus;
use crate::http::tls::{self, TlsError};
use crate::live::Feed;
use crate::snapshot::Snapshot;

/// Time limit for the last window, after the recording.
const END_TIME_MAX: Duration = Duration::from_secs(10);
/// Time limit for the thread to end after that, or after an interruption. A server can keep the thread busy with data that
/// precedes an answer.
const THREAD_TIME_MAX: Duration = Duration::from_secs(1);
/// Bounds of the time limit of a request, which is two windows.
const REQUEST_TIME_MIN: Duration = Duration::from_secs(5);
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

const SYSTEM_FOLDER: &str = "/var/lib/heapbpf/push";

#[derive(Clone, Debug)]
pub(crate) struct PushConfig {
    pub(crate) endpoint: Endpoint,
    pub(crate) headers: Vec<Header>,
    pub(crate) tls: Option<Tls>,
    pub(crate) labels: Vec<UserLabel>,
    /// Time that a window covers.
    pub(crate) every: Duration,
    /// Folder of the queue; `None` for the default.
    pub(crate) queue: Option<PathBuf>,
    pub(crate) queue_bytes_max: u64,
}

/// The authorities that a connection trusts: those of `--push-ca`, or the system's.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Configuration of TLS; `None` for connections without TLS.
    pub(crate) fn of(endpoint: &Endpoint, ca_file: Option<&Path>) -> Result<Option<Self>, TlsError> {
        endpoint.is_tls.then(|| tls::config(ca_file, endpoint.is_grpc).map(Self)).transpose()
    }
}

#[derive(Debug, Error)]
pub(crate) enum PushError {
    #[error("cannot use `{0}` as the queue of `--push`: {1}; use `--push-queue DIR`")]
    Queue(PathBuf, io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Stage of the end of pushing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Recording,
    /// The recording has ended.
    Ending,
    /// The user has interrupted, and does not want to wait.
    Interrupted,
}

/// A running pusher, which pushes until it is finished.
pub(crate) struct Pusher {
    thread: JoinHandle<()>,
    stage: watch::Sender<Stage>,
    status: watch::Receiver<PushStatus>,
    endpoint: String,
}

impl Pusher {
    /// Opens the queue and starts the thread. `warn` receives problems, each kind at most once a minute.
    pub(crate) fn start(
        config: PushConfig,
        feed: Feed,
        warn: impl Fn(&str) + Send + 'static,
    ) -> Result<Self, PushError> {
        let queue = open_queue(&config)?;
        // A server that sends without end always has data: the time limit is checked after any of them.
        let runtime =
            Builder::new_current_thread().enable_all().event_interval(1).build().map_err(PushError::Thread)?;
        let time_max = config.every.saturating_mul(2).clamp(REQUEST_TIME_MIN, REQUEST_TIME_MAX);
        let client =
            Client::new(config.endpoint.clone(), config.headers.clone(), config.tls.clone().map(|tls| tls.0), time_max);
        let endpoint = config.endpoint.to_string();
        let (stage, stage_receiver) = watch::channel(Stage::Recording);
        let ended = feed.ended();
        let (status_sender, status) = watch::channel(PushStatus::default());
        let work = move || {
            let shared = Shared::new(queue, status_sender, warn);
            run(&runtime, &shared, client, &config, &feed, ended, &stage_receiver);
        };
        let thread = thread::Builder::new().name("push".to_owned()).spawn(work).map_err(PushError::Thread)?;
        Ok(Self { thread, stage, status, endpoint })
    }

    /// Receiver of the counters, as they change.
    pub(crate) fn status(&self) -> watch::Receiver<PushStatus> {
        self.status.clone()
    }

    /// Sends the last window, for a few seconds at most, or until `stop` resolves. Requests that the server does not accept stay
    /// in the queue. Returns one line for the summary.
    pub(crate) async fn finish(self, stop: impl Future<Output = ()>) -> String {
        self.stage.send_replace(Stage::Ending);
        let mut status = self.status.clone();
        let mut is_ended = pin!(async move { while status.changed().await.is_ok() {} });
        let has_ended = tokio::select! {
            () = &mut is_ended => true,
            () = sleep(END_TIME_MAX) => false,
            () = stop => {
                self.stage.send_replace(Stage::Interrupted);
                false
            }
        };
        let has_ended = has_ended || timeout(THREAD_TIME_MAX, is_ended).await.is_ok();
        let summary = self.status.borrow().summary(&self.endpoint);
        if !has_ended {
            return format!("the server keeps heapbpf busy without an answer ({summary})");
        }
        let panicked = self.thread.join().is_err();
        if panicked {
            format!("internal error: the thread of `--push` panicked; please report it ({summary})")
        } else {
            summary
        }
    }
}

/// Opens the queue of an earlier run with the same URL, so that this run continues with its requests.
fn open_queue(config: &PushConfig) -> Result<Queue, PushError> {
    let digest = Sha256::digest(config.endpoint.to_string());
    let digest: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("{}-{digest}", config.endpoint.backend.name());
    let open = |folder: &Path| Queue::open(folder, &name, config.queue_bytes_max);
    if let Some(folder) = &config.queue {
        return open(folder).map_err(|error| PushError::Queue(folder.clone(), error));
    }
    // The folder is the first of several, of a unit with `StateDirectory=`.
    let state = std::env::var_os("STATE_DIRECTORY").and_then(|paths| std::env::split_paths(&paths).next());
    let first = state.map_or_else(|| SYSTEM_FOLDER.into(), |folder| folder.join("push"));
    open(&first).or_else(|error| {
        let temporary = std::env::temp_dir().join(format!("heapbpf-push-{}", geteuid().as_raw()));
        // The file system cannot be written to, as in containers.
        open(&temporary).map_err(|_| PushError::Queue(first, error))
    })
}

fn run(
    runtime: &Runtime,
    shared: &Shared,
    client: Client,
    config: &PushConfig,
    feed: &Feed,
    ended: mpsc::Receiver<Arc<Snapshot>>,
    stage: &watch::Receiver<Stage>,
) {
    let labeller = Labeller::new(config.labels.clone());
    let mut windows = Windows { feed, ended, shared, labeller, config, base: Arc::default() };
    let until = |expected: Stage| async move {
        let reached = stage.clone().wait_for(|stage| *stage as u8 >= expected as u8).await.map(|_| ());
        // Fails only if the pusher has stopped, and then no one is waiting.
        drop(reached);
    };
    let too_long = async {
        until(Stage::Ending).await;
        sleep(END_TIME_MAX).await;
    };
    let all = async {
        tokio::join!(windows.run(stage.clone()), Sender::new(client, shared, config.every).run());
    };
    runtime.block_on(async {
        tokio::select! {
            () = all => {}
            () = too_long => {}
            () = until(Stage::Interrupted) => {}
        }
    });
    shared.queue.borrow_mut().close();
    shared.update(|_| {});
}

/// Ends windows, and adds their requests to the queue.
struct Windows<'a> {
    feed: &'a Feed,
    /// The last snapshots of recordings.
    ended: mpsc::Receiver<Arc<Snapshot>>,
    shared: &'a Shared,
    labeller: Labeller,
    config: &'a PushConfig,
    /// The snapshot at the end of the previous window. The first window starts with the recording.
    base: Arc<Snapshot>,
}

impl Windows<'_> {
    /// Runs until the recording has ended.
    async fn run(&mut self, mut stage: watch::Receiver<Stage>) {
        let every = self.config.every;
        let mut ticks = interval_at(Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        while *stage.borrow_and_update() == Stage::Recording {
            tokio::select! {
                // The branches are in this order because a window of the next recording would discard the rest of this one.
                biased;
                Some(last) = self.ended.recv() => self.end_recording(last).await,
                _ = ticks.tick() => self.end_window().await,
                _ = stage.changed() => {}
            }
        }
        while let Ok(last) = self.ended.try_recv() {
            self.end_recording(last).await;
        }
        self.end_last().await;
        self.shared.end();
    }

    async fn end_window(&mut self) {
        match self.feed.snapshot(Duration::ZERO).await {
            Ok(end) if !Arc::ptr_eq(&end, &self.base) => self.add(end).await,
            // The session repeats a snapshot where the next one would cost too much.
            Ok(_) => self.shared.update(|status| status.windows_delayed += 1),
            Err(error) => {
                tracing::debug!(%error, "no window ended");
                // Between two recordings, this is the last window of the first.
                if !self.end_last().await && self.base.started_unix_ns > 0 {
                    self.shared.update(|status| status.windows_delayed += 1);
                }
            }
        }
    }

    /// Adds the rest of a recording, of which windows may have ended already. Recordings that follow each other faster than
    /// windows have one window each.
    async fn end_recording(&mut self, last: Arc<Snapshot>) {
        if !Arc::ptr_eq(&last, &self.base) {
            self.add(last).await;
        }
    }

    /// Adds the rest of the last recording, if it was not sent. Returns whether there was one.
    async fn end_last(&mut self) -> bool {
        let last = self.feed.last().await.filter(|last| !Arc::ptr_eq(last, &self.base));
        let is_new = last.is_some();
        if let Some(last) = last {
            self.add(last).await;
        }
        is_new
    }

    async fn add(&mut self, end: Arc<Snapshot>) {
        let profile = match self.feed.window(&self.base, &end).await {
            Ok(profile) => profile,
            Err(error) => {
                tracing::warn!(%error, "a window was not pushed");
                return self.shared.update(|status| status.windows_delayed += 1);
            }
        };
        self.base = end;
        match payloads(self.config.endpoint.backend, &profile, &mut self.labeller) {
            Ok(payloads) => {
                let mut queue = self.shared.queue.borrow_mut();
                payloads.into_iter().for_each(|payload| queue.push(payload));
            }
            Err(error) => tracing::warn!(%error, "a window could not be encoded"),
        }
        self.shared.update(|status| status.windows += 1);
        self.shared.added.notify_one();
    }
}
