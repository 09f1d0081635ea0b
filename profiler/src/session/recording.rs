//! What a session tells its recording besides events: what is known of it, its targets and its losses. Books are told of
//! where they change (`targets.rs`, `lifecycle.rs`).

use anyhow::Result;
use rustc_hash::FxHashSet;
use tracing::debug;

use super::Session;
use super::target::Target;
use crate::linux::clock;
use crate::recording::entry::{HealthFacts, LedgerId, SessionFacts, TargetRecord};
use crate::recording::recorder::{Finishing, Recorder};
use crate::snapshot::Snapshot;

impl Session {
    /// Begins the recording that is asked for, if any.
    pub(super) fn begin_recording(&mut self) -> Result<()> {
        let Some((path, size_bytes_max)) = &self.config.recording else { return Ok(()) };
        let mut recorder = Recorder::create(path, *size_bytes_max)?;
        recorder.session(SessionFacts {
            started_unix_ns: self.started.unix_ns,
            started_monotonic_ns: self.started.monotonic.0,
            interval_bytes: u64::from(self.config.interval.bytes()),
            by_thread: self.config.by_thread,
            arguments: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        });
        self.targets.recorder = Some(recorder);
        Ok(())
    }

    /// Tells what has changed, when it is time to, and hands over what there is.
    pub(super) fn record_facts(&mut self) {
        let Some(recorder) = &mut self.targets.recorder else { return };
        if !recorder.is_due() {
            return recorder.send();
        }
        match self.counters() {
            Ok(counters) => {
                let now = clock::now();
                let facts = HealthFacts {
                    monotonic_ns: now.monotonic.0,
                    unix_ns: now.unix_ns,
                    health: self.health(&counters),
                    others: self.others(),
                };
                self.record_all(facts, false);
            }
            Err(error) => debug!("{error:#}"),
        }
    }

    /// Tells that a dump was made here, or a mark set.
    pub(super) fn record_mark(&mut self, now: clock::Instant, reason: &str) {
        if let Some(recorder) = &mut self.targets.recorder {
            recorder.mark(now.monotonic, reason);
        }
    }

    /// Tells the last facts, which are those of the last snapshot. What the recording lacks then is names.
    pub(super) fn end_recording(&mut self, snapshot: &Snapshot, ended: clock::Instant) -> Option<Finishing> {
        let facts = HealthFacts {
            monotonic_ns: ended.monotonic.0,
            unix_ns: ended.unix_ns,
            health: snapshot.health.clone(),
            others: snapshot.others.clone(),
        };
        self.record_all(facts, true);
        self.targets.recorder.take().map(|recorder| recorder.end(ended.monotonic))
    }

    /// `is_last` has targets that have ended looked at again.
    fn record_all(&mut self, facts: HealthFacts, is_last: bool) {
        self.targets.record_corrections();
        let Some(mut recorder) = self.targets.recorder.take() else { return };
        recorder.modules(&self.probes.discovery.modules);
        let ended = self.targets.ended().iter().filter(|target| is_last || !recorder.is_complete(&target.ledger));
        let told: Vec<&Target> = ended.chain(self.targets.running()).collect();
        for target in told {
            recorder.target(&target.ledger, self.known(target), &target.space, target.threads.names());
        }
        if recorder.is_crowded() {
            let kept = self.targets.ended().iter().chain(self.targets.running());
            let kept: FxHashSet<LedgerId> = kept.filter_map(|target| target.ledger.id()).collect();
            recorder.retain_targets(|ledger| kept.contains(&ledger));
        }
        recorder.health(facts);
        recorder.send();
        self.targets.recorder = Some(recorder);
    }

    fn known(&self, target: &Target) -> TargetRecord {
        let heaps = self.heaps(target, &target.ledger.heaps());
        TargetRecord { facts: target.facts(), begun: target.has_begun(), heaps }
    }
}
