//! The JSON report: the whole profile, for programs and tests. Its shape is a contract (see `json/schema.rs`).
//! Targets and callsites are serialized one by one, so that the report is never in memory as a whole.

pub(super) mod health;
mod memory;
pub mod read;
pub(super) mod schema;
pub(super) mod values;
pub(super) mod verdict;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::io;

use heapbpf_base::units::{EstimatedBytes, EstimatedCount};
use heapbpf_ledger::details::{Details, Histogram};
use heapbpf_ledger::model::{
    Beginning, CallsiteProfile, CurvePoint, HeapProfile, HookStatus, LeakCandidate, Leaks, MappingProfile,
    ModuleProfile, Origin, Profile, TargetProfile,
};
use heapbpf_ledger::totals::Totals;
use serde::Serialize;
use values::{Amount, Hex};

use super::plain_json::write_line;
use super::presentation::{Presentation, View};
use super::tables::{Each, hex};

/// Writes the JSON report. The view only decides the order of callsites: the largest come first.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let report = schema::Report {
        version: schema::VERSION,
        interval_bytes: profile.interval_bytes,
        started_unix_ns: profile.started_unix_ns,
        ended_unix_ns: profile.ended_unix_ns,
        older_than_ns: profile.older_than_ns,
        filter: profile.filter.as_deref().map(Cow::Borrowed),
        window: profile.window,
        targets: Each(|| profile.targets.iter().map(|target| self::target(profile, target, presentation.view))),
        others: others(profile),
        modules: profile.modules.iter().map(module).collect(),
        health: verdict::HealthAndVerdict::of(profile),
    };
    write_line(&report, out)
}

fn target<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    view: View,
) -> schema::Target<'a, impl Serialize + use<'a>> {
    let TargetProfile { facts, .. } = target;
    let is_exact = profile.is_exact_of(target);
    let details = target.callsites.iter().map(|callsite| &callsite.details);
    let mut order: Vec<usize> = (0..target.callsites.len()).collect();
    order.sort_by_key(|&at| Reverse(view.nearest(&target.callsites[at])));
    let unnamed: Vec<Unnamed> = (0..target.heaps.len()).map(|heap| Unnamed::of(profile, target, heap)).collect();
    schema::Target {
        pid: facts.pid.0,
        command: Cow::Borrowed(&facts.command),
        comm: Some(Cow::Borrowed(&facts.comm)),
        cgroup: facts.cgroup.as_deref().map(Cow::Borrowed),
        rights: facts.rights.as_ref().map(Cow::Borrowed),
        beginning: beginning(profile, &facts.beginning),
        exited: facts.has_exited(),
        exit_code: facts.exit_code(),
        replaced: facts.is_replaced(),
        detached_unix_ns: facts.detached().map(|time| profile.unix_ns(time)),
        overhead: facts.overhead,
        totals: amounts(profile, &target.totals, &Details::sum(details), profile.interval_bytes_of(target), is_exact),
        heaps: (0..).zip(&target.heaps).map(|(index, heap)| self::heap(profile, target, heap, index)).collect(),
        curve: target.history.curve.iter().map(|moment| curve_point(profile, moment, is_exact)).collect(),
        memory: memory::describe(profile, &target.memory),
        inventory: target.memory.inventory().map(Cow::Borrowed),
        mappings: target.mappings.iter().filter_map(|mapping| self::mapping(profile, mapping)).collect(),
        threads: Cow::Borrowed(&target.threads),
        leak_candidates: target.leaks.as_ref().map(|leaks| leak_candidates(profile, target, leaks, &order)),
        callsites: Each(move || {
            let unnamed = unnamed.clone();
            order.clone().into_iter().map(move |at| {
                let one = &target.callsites[at];
                let unnamed = unnamed.get(one.heap).copied().unwrap_or_default();
                callsite(profile, target, one, if one.has_lost_stack() { Unnamed::default() } else { unnamed })
            })
        }),
    }
}

fn beginning(profile: &Profile, beginning: &Beginning) -> schema::Beginning {
    schema::Beginning {
        origin: beginning.origin.into(),
        parent: if let Origin::Forked(parent) = beginning.origin { Some(parent.0) } else { None },
        unix_ns: profile.unix_ns(beginning.time),
        delay_ns: beginning.delay_ns,
        from_first_call: beginning.from_first_call,
    }
}

fn heap<'a>(profile: &Profile, target: &TargetProfile, heap: &'a HeapProfile, index: usize) -> schema::Heap<'a> {
    let callsites = target.callsites.iter().filter(|callsite| callsite.heap == index);
    let details = Details::sum(callsites.map(|callsite| &callsite.details));
    let hook =
        |status: &'a HookStatus| schema::Hook { attached: status.error.is_none(), status: Cow::Borrowed(status) };
    schema::Heap {
        name: Cow::Borrowed(&heap.name),
        interval_bytes: heap.interval_bytes,
        interval_bytes_max: heap.interval_bytes_max.max(heap.interval_bytes),
        hooks: heap.hooks.iter().map(hook).collect(),
        amounts: amounts(profile, &heap.totals, &details, heap.interval_bytes, heap.is_exact()),
    }
}

fn curve_point(profile: &Profile, CurvePoint { time, held }: &CurvePoint, is_exact: bool) -> schema::CurvePoint {
    let bytes = |bytes| Amount::of_bytes(EstimatedBytes::from_f64(bytes), is_exact);
    let count = |count| Amount::of_count(EstimatedCount::from_f64(count), is_exact);
    schema::CurvePoint(
        profile.unix_ns(*time),
        bytes(held.live_bytes),
        count(held.live_count),
        bytes(held.alloc_bytes),
        count(held.alloc_count),
    )
}

fn module(module: &ModuleProfile) -> schema::Module<'_> {
    schema::Module {
        path: Cow::Borrowed(&module.path),
        build_id: module.build_id.as_deref().map(|bytes| Cow::Owned(hex(bytes))),
    }
}

fn mapping(profile: &Profile, mapping: &MappingProfile) -> Option<schema::Mapping> {
    let MappingProfile { start, end, offset, bias, module } = *mapping;
    let fields = schema::Mapping { start: Hex(start), end: Hex(end), offset: Hex(offset), bias: bias.map(Hex), module };
    (module < profile.modules.len()).then_some(fields)
}

fn others(profile: &Profile) -> schema::Others<'_> {
    let others = &profile.others;
    schema::Others {
        skipped: Cow::Borrowed(&others.skipped),
        skipped_count: others.skipped_count,
        short_lived_count: others.short_lived_count,
        not_inherited_count: others.not_inherited_count,
        folded_count: others.folded_count,
        folded_interval_bytes: others.folded_interval_bytes,
        folded_totals: totals(
            profile,
            &others.folded_totals,
            profile.interval_bytes_of_folded(),
            profile.is_exact_of_folded(),
            Unnamed::default(),
        ),
    }
}

/// Upper bounds, by view, of the blocks of a heap whose stack was dropped: each callsite of the heap may have allocated them.
#[derive(Clone, Copy, Default)]
struct Unnamed([f64; View::ALL.len()]);

impl Unnamed {
    fn of(profile: &Profile, target: &TargetProfile, heap: usize) -> Self {
        let interval_bytes = interval_of_unseen(profile, target, target.heaps.get(heap));
        let mut totals = Totals::default();
        let lost = target.callsites.iter().filter(|callsite| callsite.heap == heap && callsite.has_lost_stack());
        lost.for_each(|callsite| totals.add(&callsite.totals));
        let has_blocks = |view: View| view.estimate(&totals) > 0.0;
        Self(View::ALL.map(|view| if has_blocks(view) { view.confidence(&totals, interval_bytes)[1] } else { 0.0 }))
    }

    fn bound(self, view: View) -> f64 {
        View::ALL.iter().zip(self.0).find(|(it, _)| **it == view).map_or(0.0, |(_, bound)| bound)
    }
}

fn interval_of_unseen(profile: &Profile, target: &TargetProfile, heap: Option<&HeapProfile>) -> u64 {
    match heap {
        Some(heap) => View::interval_of_unseen(heap.interval_bytes, &heap.totals),
        None => View::interval_of_unseen(profile.interval_bytes_of(target), &target.totals),
    }
}

fn callsite<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    callsite: &'a CallsiteProfile,
    unnamed: Unnamed,
) -> schema::Callsite<'a> {
    let heap = target.heaps.get(callsite.heap);
    let is_exact = heap.map_or_else(|| profile.is_exact_of(target), HeapProfile::is_exact);
    let interval_bytes = interval_of_unseen(profile, target, heap);
    let totals = totals(profile, &callsite.totals, interval_bytes, is_exact, unnamed);
    schema::Callsite {
        stack: schema::Frame::of_stack(profile, &callsite.stack),
        end: callsite.end.map(|end| Cow::Borrowed(end.counter().name())),
        heap: heap.map(|heap| Cow::Borrowed(&*heap.name)),
        thread: callsite.thread.filter(|&thread| thread < target.threads.len()),
        inherited: callsite.inherited,
        amounts: schema::TotalsAndDetails { totals, details: details(&callsite.details, is_exact) },
        older_count: callsite.older.map(|older| Amount::of_count(older.count, is_exact)),
        older_bytes: callsite.older.map(|older| Amount::of_bytes(older.bytes, is_exact)),
    }
}

fn leak_candidates<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    leaks: &Leaks,
    order: &[usize],
) -> schema::LeakCandidates<'a> {
    let candidate = |candidate: &LeakCandidate| {
        let callsite = target.callsites.get(candidate.callsite)?;
        Some(schema::LeakCandidate {
            callsite: Some(order.iter().position(|&at| at == candidate.callsite)?),
            stack: schema::Frame::of_stack(profile, &callsite.stack),
            heap: target.heaps.get(callsite.heap).map(|heap| Cow::Borrowed(&*heap.name)),
            bytes_per_second: candidate.bytes_per_second,
            bytes_per_second_margin_95: candidate.margin,
            live_bytes: callsite.totals.live_bytes().to_f64(),
            live_count: callsite.totals.live_count().to_f64(),
            age_ns_oldest: callsite.details.ages.oldest_ns,
            old_share: candidate.old_share,
            survival: candidate.survival,
            score: candidate.score,
        })
    };
    schema::LeakCandidates {
        span_ns: leaks.span_ns,
        too_short: leaks.too_short,
        growing_count: leaks.count,
        suppressed_count: leaks.suppressed_count,
        suppressed_bytes: Amount::of_bytes(leaks.suppressed_bytes, false),
        candidates: leaks.candidates.iter().filter_map(candidate).collect(),
    }
}

fn amounts(
    profile: &Profile,
    totals: &Totals,
    details: &Details,
    interval_bytes: u64,
    exact: bool,
) -> schema::TotalsAndDetails {
    let totals = self::totals(profile, totals, interval_bytes, exact, Unnamed::default());
    schema::TotalsAndDetails { totals, details: self::details(details, exact) }
}

fn totals(profile: &Profile, totals: &Totals, interval_bytes: u64, exact: bool, unnamed: Unnamed) -> schema::Totals {
    let bytes = |bytes| Amount::of_bytes(bytes, exact);
    let count = |count| Amount::of_count(count, exact);
    let is_estimate = !exact || !profile.health.unaccounted.is_none();
    let interval = |view: View| {
        let more = unnamed.bound(view);
        let bounds = (is_estimate || more > 0.0).then(|| view.bounds(profile, totals, interval_bytes));
        bounds.flatten().map(|[low, high]| [low, high + more])
    };
    // Without these, a reader would derive them from the interval, which is that of what is missing where numbers are exact.
    let has_variance = |view: View| !exact || interval(view).is_some();
    let variance = |view: View| has_variance(view).then(|| view.variance(totals).to_f64());
    let cube = |view: View| has_variance(view).then(|| view.cube(totals).cubic());
    let in_window = profile.window.is_some();
    schema::Totals {
        inherited_count: count(totals.opening_count),
        inherited_bytes: bytes(totals.opening_bytes),
        alloc_count: count(totals.alloc_count),
        alloc_bytes: bytes(totals.alloc_bytes),
        free_count: count(totals.free_count),
        free_bytes: bytes(totals.free_bytes),
        live_count: count(totals.live_count()),
        live_bytes: bytes(totals.live_bytes()),
        alloc_samples: totals.alloc_samples,
        live_samples: totals.live_samples,
        alloc_count_95: interval(View::AllocCount),
        alloc_bytes_95: interval(View::AllocBytes),
        live_count_95: interval(View::LiveCount),
        live_bytes_95: interval(View::LiveBytes),
        alloc_count_variance: variance(View::AllocCount),
        alloc_bytes_variance: variance(View::AllocBytes),
        live_count_variance: variance(View::LiveCount),
        live_bytes_variance: variance(View::LiveBytes),
        alloc_count_third_cumulant: cube(View::AllocCount),
        alloc_bytes_third_cumulant: cube(View::AllocBytes),
        live_count_third_cumulant: cube(View::LiveCount),
        live_bytes_third_cumulant: cube(View::LiveBytes),
        peak_bytes: bytes(totals.peak_bytes),
        peak_count: count(totals.peak_count),
        peak_unix_ns: totals.peak_time.map(|time| profile.unix_ns(time)),
        at_peak_count: count(totals.at_peak.count),
        at_peak_bytes: bytes(totals.at_peak.bytes),
        live_start_count: in_window.then(|| count(totals.opening_count)),
        live_start_bytes: in_window.then(|| bytes(totals.opening_bytes)),
        delta_count: in_window.then(|| count(totals.delta_count())),
        delta_bytes: in_window.then(|| bytes(totals.delta_bytes())),
    }
}

fn details(details: &Details, exact: bool) -> schema::Details {
    let buckets = |histogram: &Histogram, unit: u64| {
        let bucket = |(value, count): (u64, EstimatedCount)| {
            schema::Bucket(value.saturating_mul(unit), Amount::of_count(count, exact))
        };
        histogram.iter().map(bucket).collect()
    };
    schema::Details {
        age_ns_oldest: details.ages.oldest_ns,
        age_ns_median: details.ages.median_ns(),
        age_ns_total: Amount::of_nanos(details.ages.total, exact),
        age_histogram: buckets(&details.ages.histogram, 1000),
        lifetime_ns_total: Amount::of_nanos(details.lifetime_total, exact),
        lifetime_histogram: buckets(&details.lifetimes, 1000),
        size_histogram: buckets(&details.sizes, 1),
        temporary_count: details.temporary_count,
    }
}
