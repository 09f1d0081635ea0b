//! Sends the requests of the queue, in order, and repeats failed ones.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::client::Client;
use super::outcome::Outcome;
use super::queue::{Pending, Queue};
use super::status::{DropReason, PushStatus};

/// Maximum number of repetitions of a request to which the server responds with an error of its own: other requests wait
/// meanwhile.
const SUSPECT_ATTEMPTS_MAX: u32 = 10;
/// The first pause, and the longest, which is four windows.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_LONGEST: Duration = Duration::from_secs(60);
const WARNING_PERIOD: Duration = Duration::from_secs(60);

/// State that the windows and the sender share, on one thread.
pub(super) struct Shared {
    pub(super) queue: RefCell<Queue>,
    /// Notified when a request was added.
    pub(super) added: Notify,
    /// Whether the last request was added: failed requests are kept for the next run.
    pub(super) is_ending: Cell<bool>,
    pub(super) ending: Notify,
    pub(super) status: watch::Sender<PushStatus>,
    pub(super) warnings: RefCell<Warnings>,
}

impl Shared {
    pub(super) fn new(queue: Queue, status: watch::Sender<PushStatus>, report: impl Fn(&str) + 'static) -> Self {
        Self {
            queue: RefCell::new(queue),
            added: Notify::new(),
            is_ending: Cell::new(false),
            ending: Notify::new(),
            status,
            warnings: RefCell::new(Warnings { report: Box::new(report), last: Vec::new() }),
        }
    }

    /// Notes that no request follows.
    pub(super) fn end(&self) {
        self.is_ending.set(true);
        self.ending.notify_one();
    }

    /// Publishes the state of the queue, and reports its errors.
    pub(super) fn update(&self, change: impl FnOnce(&mut PushStatus)) {
        let mut queue = self.queue.borrow_mut();
        self.status.send_modify(|status| {
            (status.queued, status.queued_bytes, status.drops) = (queue.profiles(), queue.bytes(), queue.drops());
            change(status);
        });
        if let Some(error) = queue.take_error() {
            self.warnings.borrow_mut().warn(Warning::Queue, &format!("the queue of `--push` failed: {error}"));
        }
        if queue.drops().of(DropReason::QueueFull) > 0 {
            let text = format!("the queue of `--push` is full: {} profiles dropped", queue.drops().total());
            self.warnings.borrow_mut().warn(Warning::Full, &text);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Warning {
    Failing,
    Refused,
    Queue,
    Full,
}

/// Reports each kind of problem at most once a minute.
pub(super) struct Warnings {
    report: Box<dyn Fn(&str)>,
    last: Vec<(Warning, Instant)>,
}

impl Warnings {
    pub(super) fn warn(&mut self, kind: Warning, text: &str) {
        self.warn_at(Instant::now(), kind, text);
    }

    fn warn_at(&mut self, now: Instant, kind: Warning, text: &str) {
        self.last.retain(|(_, time)| now.duration_since(*time) < WARNING_PERIOD);
        if self.last.iter().all(|(other, _)| *other != kind) {
            self.last.push((kind, now));
            (self.report)(text);
        }
    }

    fn recovered(&mut self, text: &str) {
        let was_reported = self.last.iter().any(|(kind, _)| *kind == Warning::Failing);
        self.last.retain(|(kind, _)| *kind != Warning::Failing);
        if was_reported {
            (self.report)(text);
        }
    }
}

/// Exponential back-off with jitter, so that the agents of a fleet do not return at the same time.
#[derive(Debug)]
struct Pauses {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Pauses {
    fn new(every: Duration) -> Self {
        let first = (every / 4).clamp(PAUSE_MIN, PAUSE_FIRST);
        Self { first, longest: every.saturating_mul(4).clamp(first, PAUSE_LONGEST), failures: 0 }
    }

    /// Returns the next pause: at least the one that the server requests; otherwise half to all of a pause that doubles.
    fn next(&mut self, after: Option<Duration>, random: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(16)).min(self.longest);
        self.failures += 1;
        doubled.mul_f64(0.5 + random / 2.0).max(after.unwrap_or_default())
    }
}

/// Returns a random number from 0 to 1.
fn random() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "any number")]
    let random = RandomState::new().hash_one(0) as f64;
    random / 2_f64.powi(64)
}

pub(super) struct Sender<'a> {
    client: Client,
    shared: &'a Shared,
    pauses: Pauses,
    /// Number of the request at the front, and how often the request was suspected.
    suspect: (u64, u32),
}

impl<'a> Sender<'a> {
    pub(super) fn new(client: Client, shared: &'a Shared, every: Duration) -> Self {
        Self { client, shared, pauses: Pauses::new(every), suspect: (0, 0) }
    }

    /// Sends until the recording has ended, and then the remaining requests; ends at the first failure after that.
    pub(super) async fn run(mut self) {
        loop {
            let front = self.shared.queue.borrow_mut().front();
            self.shared.update(|_| {});
            let Some(request) = front else {
                if self.shared.is_ending.get() {
                    return;
                }
                tokio::select! {
                    () = self.shared.added.notified() => {}
                    () = self.shared.ending.notified() => {}
                }
                continue;
            };
            let was_ending = self.shared.is_ending.get();
            let Err((after, reason)) = self.send(request).await else { continue };
            self.shared.queue.borrow_mut().spill();
            self.report_failure(&reason);
            if was_ending {
                return;
            }
            let pause = self.pauses.next(after, random());
            tracing::debug!(?pause, reason, "a push failed");
            tokio::select! {
                () = sleep(pause) => {}
                () = self.shared.ending.notified() => {}
            }
        }
    }

    /// Sends a request. Fails if the request is to be repeated: with the pause that the server requests, and the reason.
    async fn send(&mut self, request: Pending) -> Result<(), (Option<Duration>, String)> {
        let outcome = match self.client.post(&request.body).await {
            Ok(answer) => Outcome::of(self.client.endpoint(), &answer),
            Err(failure) => return Err((None, failure.to_string())),
        };
        match outcome {
            Outcome::Accepted { rejected, reason } => self.accept(&request, rejected, &reason),
            Outcome::Refused(reason) => self.refuse(&request, &reason),
            Outcome::Retry { is_suspect: true, reason, .. } if self.suspect(request.number) => {
                self.refuse(&request, &reason);
            }
            Outcome::Retry { after, reason, .. } => return Err((after, reason)),
        }
        self.pauses.failures = 0;
        Ok(())
    }

    /// Counts a suspect request. Returns whether the request was repeated often enough.
    fn suspect(&mut self, number: u64) -> bool {
        let attempts = if self.suspect.0 == number { self.suspect.1 + 1 } else { 1 };
        self.suspect = (number, attempts);
        attempts >= SUSPECT_ATTEMPTS_MAX
    }

    fn accept(&self, request: &Pending, rejected: u64, reason: &str) {
        let profiles = u64::from(request.profiles);
        let rejected = rejected.min(profiles);
        {
            let mut queue = self.shared.queue.borrow_mut();
            if !queue.remove(request.number) {
                queue.retract_drop(request);
            }
            queue.count_drop(DropReason::Rejected, rejected);
            self.shared.status.send_modify(|status| {
                status.pushed += profiles - rejected;
                status.pushed_bytes += request.body.len() as u64;
            });
        }
        let endpoint = self.client.endpoint();
        if rejected > 0 {
            let text = format!("{endpoint} rejected {rejected} of {profiles} profiles: {reason}");
            self.shared.warnings.borrow_mut().warn(Warning::Refused, &text);
        }
        self.shared.warnings.borrow_mut().recovered(&format!("{endpoint} accepts profiles again"));
        self.shared.update(|status| status.failing = None);
    }

    fn refuse(&self, request: &Pending, reason: &str) {
        {
            let mut queue = self.shared.queue.borrow_mut();
            if queue.remove(request.number) {
                queue.count_drop(DropReason::Refused, request.profiles.into());
            }
        }
        let text = format!("{} refused {} profiles: {reason}", self.client.endpoint(), request.profiles);
        self.shared.warnings.borrow_mut().warn(Warning::Refused, &text);
        self.shared.update(|status| status.failing = Some(reason.to_owned()));
    }

    fn report_failure(&self, reason: &str) {
        self.shared.update(|status| {
            status.retries += 1;
            status.failing = Some(reason.to_owned());
        });
        let text = format!("cannot push to {}: {reason}; profiles are queued", self.client.endpoint());
        self.shared.warnings.borrow_mut().warn(Warning::Failing, &text);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn pauses_double_up_to_four_windows() {
        let seconds = Duration::from_secs;
        let mut pauses = Pauses::new(seconds(15));
        let all: Vec<_> = (0..8).map(|_| pauses.next(None, 1.0).as_secs()).collect();
        assert_eq!(all, [1, 2, 4, 8, 16, 32, 60, 60]);
        pauses.failures = 0;
        assert_eq!(pauses.next(None, 0.0), Duration::from_millis(500));
        assert_eq!(pauses.next(Some(seconds(100)), 0.0), seconds(100));
        let mut pauses = Pauses::new(Duration::from_millis(400));
        let all: Vec<_> = (0..6).map(|_| pauses.next(None, 1.0).as_millis()).collect();
        assert_eq!(all, [100, 200, 400, 800, 1600, 1600]);
        assert!((0..100).map(|_| random()).all(|random| (0.0..=1.0).contains(&random)));
    }

    #[test]
    fn each_problem_is_reported_once_a_minute() {
        let reported = Rc::new(RefCell::new(Vec::new()));
        let report = {
            let reported = Rc::clone(&reported);
            move |text: &str| reported.borrow_mut().push(text.to_owned())
        };
        let mut warnings = Warnings { report: Box::new(report), last: Vec::new() };
        let start = Instant::now();
        warnings.warn_at(start, Warning::Failing, "down");
        warnings.warn_at(start, Warning::Failing, "down again");
        warnings.warn_at(start, Warning::Full, "full");
        warnings.recovered("up");
        warnings.recovered("up again");
        warnings.warn_at(start + WARNING_PERIOD, Warning::Full, "still full");
        assert_eq!(*reported.borrow(), ["down", "full", "up", "still full"]);
    }
}
