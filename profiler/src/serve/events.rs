//! Path `/api/events`: notifies the page of new data.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heapbpf_base::units::EstimatedBytes;
use hyper::body::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::render::Renders;
use super::source::Source;
use crate::session::Progress;

/// Shortest time between two updates.
const PERIOD: Duration = Duration::from_secs(2);

/// Period of sending something: proxies and browsers close connections on which nothing happens.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug)]
pub(super) struct Update {
    /// Number that grows when there may be a new document.
    pub(super) sequence: u64,
    pub(super) time: Instant,
    unix_ms: u64,
    pub(super) is_recording: bool,
    /// Whether no session will follow.
    has_ended: bool,
}

impl Update {
    fn text(&self) -> String {
        let Self { sequence, unix_ms, is_recording, .. } = self;
        format!("event: update\ndata: {{\"sequence\":{sequence},\"time\":{unix_ms},\"recording\":{is_recording}}}\n\n")
    }
}

pub(super) type Updates = watch::Sender<Update>;

pub(super) fn updates() -> Updates {
    let first = Update { sequence: 1, time: Instant::now(), unix_ms: unix_ms(), is_recording: false, has_ended: false };
    watch::Sender::new(first)
}

fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn advance(updates: &Updates, change: impl FnOnce(&mut Update)) {
    updates.send_modify(|update| {
        *update = Update { sequence: update.sequence + 1, time: Instant::now(), unix_ms: unix_ms(), ..*update };
        change(update);
    });
}

/// Announces that no session will follow: streams end.
pub(super) fn end(updates: &Updates) {
    advance(updates, |update| (update.is_recording, update.has_ended) = (false, true));
}

/// Announces changes of the recording, as long as there is a feed.
pub(super) async fn follow(source: Arc<Source>, renders: Arc<Renders>, updates: Arc<Updates>) {
    let mut progress = source.feed.progress();
    let mut announced = None;
    while progress.changed().await.is_ok() {
        let state = progress.borrow_and_update().as_ref().map(State::of);
        let last = *updates.borrow();
        let has_changed = state != announced || state.as_ref().is_some_and(|state| state.is_active);
        let is_due = last.time.elapsed() >= source.age().max(PERIOD);
        if last.is_recording != state.is_some() || has_changed && is_due {
            advance(&updates, |update| update.is_recording = state.is_some());
            announced = state;
        }
        renders.expire();
    }
}

/// State of the recording on which a document depends.
#[derive(PartialEq)]
struct State {
    amounts: [EstimatedBytes; 2],
    targets: usize,
    drops: u64,
    is_active: bool,
}

impl State {
    fn of(progress: &Progress) -> Self {
        Self {
            amounts: [progress.live_bytes, progress.growth_bytes],
            targets: progress.targets,
            drops: progress.lost,
            is_active: progress.allocated_bytes_per_second > 0.0,
        }
    }
}

/// Returns the parts of a stream, which starts with the current state. `open` is reduced by 1 when the stream ends.
pub(super) fn stream(updates: &Updates, open: Arc<AtomicUsize>) -> mpsc::Receiver<Bytes> {
    let (sender, parts) = mpsc::channel(1);
    let updates = updates.subscribe();
    tokio::spawn(async move {
        send(updates, sender).await;
        open.fetch_sub(1, Ordering::Relaxed);
    });
    parts
}

/// Sends updates. A client that reads slowly misses updates, never the latest.
async fn send(mut updates: watch::Receiver<Update>, sender: mpsc::Sender<Bytes>) {
    loop {
        let update = *updates.borrow_and_update();
        let part = if update.has_ended { "event: end\ndata: {}\n\n".to_owned() } else { update.text() };
        if sender.send(part.into()).await.is_err() || update.has_ended {
            return;
        }
        loop {
            tokio::select! {
                changed = updates.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                () = sleep(KEEP_ALIVE) => if sender.send(": keep-alive\n\n".into()).await.is_err() {
                    return;
                },
                () = sender.closed() => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::testing::run;

    #[test]
    fn streams_start_with_the_state_and_end_with_end() {
        run(async {
            let updates = updates();
            let mut parts = stream(&updates, Arc::new(AtomicUsize::new(1)));
            let first = parts.recv().await.expect("the state");
            let first = str::from_utf8(&first).expect("text");
            assert!(first.starts_with("event: update\ndata: {\"sequence\":1,\"time\":1"), "{first}");
            assert!(first.ends_with(",\"recording\":false}\n\n"), "{first}");
            advance(&updates, |update| update.is_recording = true);
            let second = parts.recv().await.expect("an update");
            assert!(second.starts_with(b"event: update\ndata: {\"sequence\":2,") && second.ends_with(b"true}\n\n"));
            assert_eq!(parts.recv().await.as_deref(), Some(": keep-alive\n\n".as_bytes()));
            end(&updates);
            assert_eq!(parts.recv().await.as_deref(), Some("event: end\ndata: {}\n\n".as_bytes()));
            assert_eq!(parts.recv().await, None);
        });
    }

    #[test]
    fn slow_readers_receive_the_latest() {
        run(async {
            let updates = updates();
            let mut parts = stream(&updates, Arc::new(AtomicUsize::new(1)));
            for _ in 0..100 {
                advance(&updates, |_| {});
                tokio::task::yield_now().await;
            }
            let mut last = Bytes::new();
            while let Ok(part) = tokio::time::timeout(Duration::from_secs(1), parts.recv()).await {
                last = part.expect("it goes on");
            }
            assert!(last.starts_with(b"event: update\ndata: {\"sequence\":101,"), "{last:?}");
        });
    }

    #[test]
    fn closed_streams_leave_no_task() {
        run(async {
            let updates = updates();
            let open = Arc::new(AtomicUsize::new(1));
            drop(stream(&updates, Arc::clone(&open)));
            sleep(Duration::from_millis(1)).await;
            assert_eq!((updates.receiver_count(), open.load(Ordering::Relaxed)), (0, 0));
        });
    }
}
