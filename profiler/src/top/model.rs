//! Rows of the tables of `heapbpf top`: a profile compared with the previous one and with the mark. Callsites are identified
//! across profiles by their number in the ledger.

use std::collections::VecDeque;
use std::sync::Arc;

use heapbpf_ledger::model::{CallsiteProfile, MemoryPart, Profile, TargetId, TargetProfile};
use heapbpf_ledger::totals::Totals;
use rustc_hash::FxHashMap;

/// Number of refreshes that the trend shows.
const TREND_MAX: usize = 120;

/// Estimates in bytes: live bytes, and bytes allocated since the recording started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Held {
    live: f64,
    allocated: f64,
}

impl Held {
    fn of(totals: &Totals) -> Self {
        Self { live: totals.live_bytes().to_f64(), allocated: totals.alloc_bytes.to_f64() }
    }

    fn at_start(totals: &Totals) -> Self {
        Self { live: totals.opening_bytes.to_f64(), allocated: 0.0 }
    }
}

/// Sample with which later profiles are compared: 24 bytes per callsite.
#[derive(Debug, Default)]
struct Sample {
    unix_ns: u64,
    targets: FxHashMap<TargetId, TargetSample>,
}

#[derive(Debug, Default)]
struct TargetSample {
    held: Held,
    /// Amounts of callsites, by ascending number of the callsite.
    callsites: Vec<(u32, Held)>,
}

impl Sample {
    fn of(profile: &Profile) -> Self {
        let sample = |target: &TargetProfile| {
            let callsites = target.callsites.iter().map(|callsite| (callsite.index, Held::of(&callsite.totals)));
            let mut callsites: Vec<_> = callsites.collect();
            callsites.sort_unstable_by_key(|(index, _)| *index);
            TargetSample { held: Held::of(&target.totals), callsites }
        };
        let targets = profile.targets.iter().map(|target| (target.facts.id(), sample(target)));
        Self { unix_ns: profile.ended_unix_ns, targets: targets.collect() }
    }
}

impl TargetSample {
    fn callsite(&self, index: u32) -> Held {
        let found = self.callsites.binary_search_by_key(&index, |(index, _)| *index);
        found.map(|at| self.callsites[at].1).unwrap_or_default()
    }
}

/// A process. Amounts are estimates in bytes.
#[derive(Clone, Debug)]
pub(crate) struct TargetRow {
    pub(crate) key: TargetId,
    /// Position of the target in the profile.
    pub(crate) at: usize,
    pub(crate) live: f64,
    /// Growth of live bytes, since the mark, or since the recording started.
    pub(crate) growth: f64,
    pub(crate) growth_per_s: f64,
    pub(crate) allocated_per_s: f64,
    /// Resident memory at the last sample; `None` before the first.
    pub(crate) rss_bytes: Option<u64>,
    /// Parts of the resident memory, whose sum is `rss_bytes`.
    pub(crate) memory: Vec<MemoryPart>,
    /// Live bytes at the last refreshes.
    pub(crate) trend: Vec<f64>,
    pub(crate) is_running: bool,
}

/// A callsite of one process. Amounts are estimates in bytes.
#[derive(Clone, Debug)]
pub(crate) struct CallsiteRow {
    /// Number of the callsite in the ledger.
    pub(crate) index: u32,
    /// Position in the target's callsites.
    pub(crate) at: usize,
    pub(crate) live: f64,
    /// Growth of live bytes, since the mark, or since the recording started.
    pub(crate) growth: f64,
    pub(crate) allocated_per_s: f64,
    /// Median age of the live blocks; `None` if nothing is live.
    pub(crate) age_ns: Option<u64>,
    /// Share of the allocated blocks that were freed before the thread's next allocation, from 0 to 1; `None` where it is not
    /// known, because the heap was sampled.
    pub(crate) temporary: Option<f64>,
}

/// The latest profile, and the samples with which it is compared.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) profile: Arc<Profile>,
    previous: Sample,
    mark: Option<Sample>,
    trends: FxHashMap<TargetId, VecDeque<f64>>,
}

impl Model {
    pub(crate) fn new(profile: Arc<Profile>) -> Self {
        let mut model = Self { profile, previous: Sample::default(), mark: None, trends: FxHashMap::default() };
        model.extend_trends();
        model
    }

    /// Takes a later profile of the same recording; rates are those since the previous one.
    pub(crate) fn update(&mut self, profile: Arc<Profile>) {
        if profile.ended_unix_ns > self.profile.ended_unix_ns {
            self.previous = Sample::of(&self.profile);
            self.profile = profile;
            self.extend_trends();
        }
    }

    pub(crate) fn set_mark(&mut self) {
        self.mark = Some(Sample::of(&self.profile));
    }

    /// Time since the mark, in nanoseconds.
    pub(crate) fn since_mark_ns(&self) -> Option<u64> {
        Some(self.profile.ended_unix_ns.saturating_sub(self.mark.as_ref()?.unix_ns))
    }

    pub(crate) fn elapsed_ns(&self) -> u64 {
        self.profile.ended_unix_ns.saturating_sub(self.profile.started_unix_ns)
    }

    pub(crate) fn target(&self, key: TargetId) -> Option<&TargetProfile> {
        self.profile.targets.iter().find(|target| target.facts.id() == key)
    }

    fn extend_trends(&mut self) {
        self.trends.retain(|key, _| self.profile.targets.iter().any(|target| target.facts.id() == *key));
        for target in &self.profile.targets {
            let trend = self.trends.entry(target.facts.id()).or_default();
            trend.push_back(target.totals.live_bytes().to_f64());
            if trend.len() > TREND_MAX {
                trend.pop_front();
            }
        }
    }

    pub(crate) fn target_rows(&self) -> Vec<TargetRow> {
        let row = |(at, target): (usize, &TargetProfile)| {
            let key = target.facts.id();
            let held = Held::of(&target.totals);
            let before = self.previous.targets.get(&key);
            let previous = before.map_or(Held::at_start(&target.totals), |sample| sample.held);
            let seconds = self.seconds(target, before.is_some());
            let is_running = target.facts.is_running();
            let point = target.memory.points().last();
            TargetRow {
                key,
                at,
                live: held.live,
                growth: held.live - self.live_at_mark(key, &target.totals, |sample| sample.held),
                growth_per_s: if is_running { (held.live - previous.live) / seconds } else { 0.0 },
                allocated_per_s: if is_running { (held.allocated - previous.allocated) / seconds } else { 0.0 },
                rss_bytes: point.filter(|_| is_running).map(|point| point.rss_bytes()),
                memory: point.filter(|_| is_running).map(|point| point.parts.clone()).unwrap_or_default(),
                trend: self.trends.get(&key).map(|trend| trend.iter().copied().collect()).unwrap_or_default(),
                is_running,
            }
        };
        self.profile.targets.iter().enumerate().map(row).collect()
    }

    /// Rows of the callsites that `keeps` accepts.
    pub(crate) fn callsite_rows(
        &self,
        target: &TargetProfile,
        keeps: impl Fn(&CallsiteProfile) -> bool,
    ) -> Vec<CallsiteRow> {
        let key = target.facts.id();
        let before = self.previous.targets.get(&key);
        let seconds = self.seconds(target, before.is_some());
        let is_running = target.facts.is_running();
        let row = |(at, callsite): (usize, &CallsiteProfile)| {
            let held = Held::of(&callsite.totals);
            let previous = before.map_or(Held::default(), |sample| sample.callsite(callsite.index));
            let at_mark = |sample: &TargetSample| sample.callsite(callsite.index);
            let allocated = callsite.totals.alloc_count.to_f64();
            let temporary = callsite.details.temporary_count.filter(|_| allocated > 0.0);
            CallsiteRow {
                index: callsite.index,
                at,
                live: held.live,
                growth: held.live - self.live_at_mark(key, &callsite.totals, at_mark),
                allocated_per_s: if is_running { (held.allocated - previous.allocated) / seconds } else { 0.0 },
                age_ns: callsite.details.ages.median_ns(),
                temporary: temporary.map(|count| (to_f64(count) / allocated).min(1.0)),
            }
        };
        let kept = target.callsites.iter().enumerate().filter(|(_, callsite)| keeps(callsite));
        kept.map(row).collect()
    }

    fn live_at_mark(&self, key: TargetId, totals: &Totals, held: impl Fn(&TargetSample) -> Held) -> f64 {
        match &self.mark {
            None => Held::at_start(totals).live,
            // A process that is newer than the mark had no live blocks then.
            Some(mark) => mark.targets.get(&key).map_or(0.0, |sample| held(sample).live),
        }
    }

    /// Time by which the rates of a target are divided: since the previous profile, or since its recording started.
    fn seconds(&self, target: &TargetProfile, has_previous: bool) -> f64 {
        let beginning = self.profile.unix_ns(target.facts.beginning.time);
        let start = if has_previous { self.previous.unix_ns } else { beginning.max(self.profile.started_unix_ns) };
        to_f64(self.profile.ended_unix_ns.saturating_sub(start)).max(1e6) / 1e9
    }
}

#[expect(clippy::cast_precision_loss, reason = "for rates and shares")]
fn to_f64(number: u64) -> f64 {
    number as f64
}
