//! The handle by which views receive snapshots and profiles of the running recording.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use heapbpf_ledger::model::Profile;
use thiserror::Error;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::namer::{Job, Namer};
use crate::session::{Control, Progress, Request};
use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::sources::Sources;
use crate::symbolize::trim::Trim;

/// Time limit for an answer. The session answers within a few milliseconds, except while it attaches to many processes.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of recordings that have ended and wait for their last window. Each has all its callsites.
const ENDED_MAX: usize = 2;

/// A handle to the running recording. Cheap to clone, and usable from any thread and runtime. It outlives a session:
/// [`Feed::connect`] joins it to the next one.
///
/// The session itself only takes snapshots. Names are found on a thread of the feed's own.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Shared>);

struct Shared {
    session: Mutex<Option<mpsc::Sender<Request>>>,
    /// Locked while a snapshot is requested, so that callers share it.
    latest: AsyncMutex<Option<Taken>>,
    named: AsyncMutex<Option<(Arc<Snapshot>, Arc<Profile>)>>,
    namer: Namer,
    /// Channel that receives the last snapshot of each recording.
    ended: Mutex<Option<mpsc::Sender<Arc<Snapshot>>>>,
    progress: watch::Sender<Option<Progress>>,
}

struct Taken {
    requested: Instant,
    snapshot: Arc<Snapshot>,
}

/// Reason why a view receives no snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Unavailable {
    #[error("nothing is being recorded")]
    NotRecording,
    #[error("the recording is busy; try again")]
    Busy,
    #[error("internal error: the thread that names addresses panicked; please report it")]
    Naming,
}

impl Feed {
    /// Starts the thread that finds names. `trim` selects frames to remove from profiles. No debug information is
    /// downloaded, because views do not wait.
    pub(crate) fn start(trim: Trim, sources: Sources) -> Self {
        Self(Arc::new(Shared {
            session: Mutex::default(),
            latest: AsyncMutex::default(),
            named: AsyncMutex::default(),
            namer: Namer::start(trim, sources.without_downloads()),
            ended: Mutex::default(),
            progress: watch::Sender::new(None),
        }))
    }

    /// Directs requests to the session of `control`, until that value is dropped.
    pub(crate) fn connect(&self, control: &mut Control) {
        *self.0.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(control.accept());
    }

    /// Returns a snapshot of the whole recording that is at most `age_max` old. Callers at the same time share one. Where
    /// snapshots take long, because millions of blocks are live, the session repeats an older one.
    pub(crate) async fn snapshot(&self, age_max: Duration) -> Result<Arc<Snapshot>, Unavailable> {
        let asked = Instant::now();
        let mut latest = self.0.latest.lock().await;
        let session = self.session()?;
        if let Some(taken) = latest.as_ref().filter(|taken| taken.requested + age_max >= asked) {
            return Ok(Arc::clone(&taken.snapshot));
        }
        let requested = Instant::now();
        let (reply, answer) = oneshot::channel();
        request(&session, Request::Snapshot(reply)).await?;
        let answer = timeout(ANSWER_TIME_MAX, answer).await.map_err(|_| Unavailable::Busy)?;
        let snapshot = answer.map_err(|_| Unavailable::NotRecording)?;
        *latest = Some(Taken { requested, snapshot: Arc::clone(&snapshot) });
        Ok(snapshot)
    }

    /// Returns a profile with names of the whole recording that is at most `age_max` old.
    pub(crate) async fn profile(&self, age_max: Duration) -> Result<Arc<Profile>, Unavailable> {
        let snapshot = self.snapshot(age_max).await?;
        self.named(&snapshot).await
    }

    /// Returns the most recent snapshot, however old: the last one of a recording that has ended. `None` before the first.
    pub(crate) async fn last(&self) -> Option<Arc<Snapshot>> {
        self.0.latest.lock().await.as_ref().map(|taken| Arc::clone(&taken.snapshot))
    }

    /// Keeps the last snapshot of a recording for [`Feed::last`], and sends it to the receiver of [`Feed::ended`]. Returns false
    /// if the receiver does not take it in time.
    pub(crate) async fn end(&self, snapshot: Arc<Snapshot>) -> bool {
        let ended = self.0.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        *self.0.latest.lock().await = Some(Taken { requested: Instant::now(), snapshot: Arc::clone(&snapshot) });
        match ended {
            Some(ended) => timeout(ANSWER_TIME_MAX, ended.send(snapshot)).await.is_ok_and(|sent| sent.is_ok()),
            None => true,
        }
    }

    /// Returns the last snapshots of recordings from now on, for one receiver.
    pub(crate) fn ended(&self) -> mpsc::Receiver<Arc<Snapshot>> {
        let (sender, receiver) = mpsc::channel(ENDED_MAX);
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Returns the profile of the whole recording at this snapshot. The profile of one snapshot is cached.
    pub(crate) async fn named(&self, snapshot: &Arc<Snapshot>) -> Result<Arc<Profile>, Unavailable> {
        let mut named = self.0.named.lock().await;
        if let Some((_, profile)) = named.as_ref().filter(|(of, _)| Arc::ptr_eq(of, snapshot)) {
            return Ok(Arc::clone(profile));
        }
        let profile = self.name(Arc::clone(snapshot), Scope::Whole).await?;
        *named = Some((Arc::clone(snapshot), Arc::clone(&profile)));
        Ok(profile)
    }

    /// Returns the window between two snapshots: its allocations and frees, and the blocks that are live at its end. Where `base`
    /// is of a previous recording, the window starts with the recording of `end`.
    pub(crate) async fn window(&self, base: &Snapshot, end: &Snapshot) -> Result<Arc<Profile>, Unavailable> {
        self.name(Arc::new(end.since(base)), Scope::Window).await
    }

    /// Ends the window and writes it to files, as `SIGUSR1` does.
    pub(crate) async fn dump(&self) -> Result<(), Unavailable> {
        request(&self.session()?, Request::Dump).await
    }

    /// Sets a mark, as `SIGUSR2` does.
    pub(crate) async fn mark(&self) -> Result<(), Unavailable> {
        request(&self.session()?, Request::Mark).await
    }

    /// Receives totals, drops and overhead, twice a second while something is being recorded.
    pub(crate) fn progress(&self) -> watch::Receiver<Option<Progress>> {
        self.0.progress.subscribe()
    }

    /// Publishes progress. Called by the session's listener.
    pub(crate) fn publish(&self, progress: Option<&Progress>) {
        self.0.progress.send_replace(progress.map(|progress| Progress { top_grower: None, ..progress.clone() }));
    }

    fn session(&self) -> Result<mpsc::Sender<Request>, Unavailable> {
        let mut session = self.0.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.take_if(|session| session.is_closed());
        session.clone().ok_or(Unavailable::NotRecording)
    }

    async fn name(&self, snapshot: Arc<Snapshot>, scope: Scope) -> Result<Arc<Profile>, Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.0.namer.send(Job { snapshot, scope, reply });
        answer.await.map_err(|_| Unavailable::Naming)
    }
}

async fn request(session: &mpsc::Sender<Request>, request: Request) -> Result<(), Unavailable> {
    let sent = timeout(ANSWER_TIME_MAX, session.send(request)).await.map_err(|_| Unavailable::Busy)?;
    sent.map_err(|_| Unavailable::NotRecording)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers requests as a session does. Returns how many snapshots it has taken.
    async fn answer(mut control: Control, snapshots: u64) -> u64 {
        for started_unix_ns in 0..snapshots {
            match control.next().await {
                Request::Snapshot(reply) => {
                    tokio::task::yield_now().await;
                    let _ = reply.send(Arc::new(Snapshot { started_unix_ns, ..Snapshot::default() }));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        snapshots
    }

    fn connected() -> (Feed, Control) {
        let (feed, mut control) = (Feed::start(Trim::NOTHING, Sources::default()), Control::none());
        feed.connect(&mut control);
        (feed, control)
    }

    #[tokio::test]
    async fn callers_at_the_same_time_share_a_snapshot() {
        let (feed, control) = connected();
        let session = tokio::spawn(answer(control, 2));
        let (first, second) =
            tokio::join!(feed.snapshot(Duration::from_secs(60)), feed.snapshot(Duration::from_secs(60)));
        let (first, second) = (first.expect("recording"), second.expect("recording"));
        assert!(Arc::ptr_eq(&first, &second));
        let third = feed.snapshot(Duration::ZERO).await.expect("recording");
        assert_eq!((first.started_unix_ns, third.started_unix_ns), (0, 1));
        session.await.expect("no panic");
        assert_eq!(feed.snapshot(Duration::ZERO).await.expect_err("no session"), Unavailable::NotRecording);
        assert!(feed.last().await.is_some_and(|last| Arc::ptr_eq(&last, &third)), "the last one is kept");
    }

    #[tokio::test]
    async fn names_of_a_snapshot_are_found_once() {
        let (feed, control) = connected();
        let session = tokio::spawn(answer(control, 1));
        let snapshot = feed.snapshot(Duration::ZERO).await.expect("recording");
        session.await.expect("no panic");
        let (first, second) =
            (feed.named(&snapshot).await.expect("named"), feed.named(&snapshot).await.expect("named"));
        assert!(Arc::ptr_eq(&first, &second));
        let window = feed.window(&snapshot, &snapshot).await.expect("named");
        assert!(window.window.is_some() && first.window.is_none());
    }

    #[tokio::test]
    async fn a_feed_joins_the_next_session() {
        let feed = Feed::start(Trim::NOTHING, Sources::default());
        assert_eq!(feed.snapshot(Duration::MAX).await.expect_err("no session"), Unavailable::NotRecording);
        for _ in 0..2 {
            let mut control = Control::none();
            feed.connect(&mut control);
            let session = tokio::spawn(answer(control, 1));
            feed.snapshot(Duration::ZERO).await.expect("recording");
            session.await.expect("no panic");
        }
    }

    #[tokio::test]
    async fn requests_of_views_reach_the_session() {
        let (feed, mut control) = connected();
        feed.mark().await.expect("recording");
        feed.dump().await.expect("recording");
        assert!(matches!(control.next().await, Request::Mark));
        assert!(matches!(control.next().await, Request::Dump));
    }
}
