//! Counters of pushing, for the summary, warnings and metrics.

use strum::{EnumCount, EnumIter, IntoEnumIterator, IntoStaticStr};

/// Reason why the server has not stored a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumCount, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum DropReason {
    /// The queue exceeded its limit, and the oldest profiles were dropped.
    QueueFull,
    /// The server refused the request, for a reason that repeating it does not change.
    Refused,
    /// The server accepted the request, but not these profiles.
    Rejected,
    /// The files of the queue could not be written, and the memory for such requests is full.
    DiskError,
    /// A file of the queue is damaged or cannot be read.
    Corrupt,
}

impl DropReason {
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

/// Number of profiles dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drops([u64; DropReason::COUNT]);

impl Drops {
    pub(super) fn add(&mut self, reason: DropReason, profiles: u64) {
        self.0[reason as usize] += profiles;
    }

    /// Subtracts profiles that were counted and have arrived.
    pub(super) fn retract(&mut self, reason: DropReason, profiles: u64) {
        self.0[reason as usize] = self.0[reason as usize].saturating_sub(profiles);
    }

    pub(crate) fn of(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    pub(crate) fn each(self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::iter().map(move |reason| (reason, self.of(reason)))
    }
}

/// Counters since heapbpf started. A profile has the amounts of one process, or of several with the same labels, in one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushStatus {
    /// Number of windows that ended.
    pub(crate) windows: u64,
    /// Number of times that a window could not end, because the recording did not answer: the next one is longer.
    pub(crate) windows_delayed: u64,
    /// Number of profiles that the server has accepted.
    pub(crate) pushed: u64,
    /// Size of the requests with accepted profiles, without headers.
    pub(crate) pushed_bytes: u64,
    /// Number of profiles that wait, on disk or in memory.
    pub(crate) queued: u64,
    pub(crate) queued_bytes: u64,
    pub(crate) drops: Drops,
    /// Number of requests that failed and were repeated.
    pub(crate) retries: u64,
    /// Reason why the server did not accept the last request.
    pub(crate) failing: Option<String>,
}

impl PushStatus {
    /// Summary as in `12 windows, 24 profiles (120.3 KiB) pushed to URL; 2 queued; 3 dropped (queue_full 3)`.
    pub(crate) fn summary(&self, endpoint: &str) -> String {
        let size = bytesize::ByteSize(self.pushed_bytes);
        let count = |number: u64, noun: &str| format!("{number} {noun}{}", if number == 1 { "" } else { "s" });
        let (windows, profiles) = (count(self.windows, "window"), count(self.pushed, "profile"));
        let mut text = format!("{windows}, {profiles} ({size}) pushed to {endpoint}");
        if self.queued > 0 {
            text.push_str(&format!("; {} queued for the next run", self.queued));
        }
        if self.drops.total() > 0 {
            let reasons = self.drops.each().filter(|(_, count)| *count > 0);
            let reasons: Vec<_> = reasons.map(|(reason, count)| format!("{} {count}", reason.name())).collect();
            text.push_str(&format!("; {} dropped ({})", self.drops.total(), reasons.join(", ")));
        }
        if let Some(error) = &self.failing {
            text.push_str(&format!("; last error: {error}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_was_not_stored() {
        let mut status = PushStatus { windows: 1, pushed: 1, pushed_bytes: 2048, ..PushStatus::default() };
        assert_eq!(status.summary("otlp+http://c"), "1 window, 1 profile (2.0 KiB) pushed to otlp+http://c");
        status.drops.add(DropReason::QueueFull, 3);
        status.drops.add(DropReason::Corrupt, 1);
        status.queued = 2;
        status.failing = Some("connection refused".to_owned());
        let expected = "1 window, 1 profile (2.0 KiB) pushed to x; 2 queued for the next run; \
                        4 dropped (queue_full 3, corrupt 1); last error: connection refused";
        assert_eq!(status.summary("x"), expected);
    }
}
