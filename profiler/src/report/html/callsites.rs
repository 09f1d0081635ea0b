//! Callsites and history of a target, in columns.

use serde::Serialize;

use super::column::{Column, Number, float, millis};
use super::names::{Names, Stacks};
use crate::ledger::details::Histogram;
use crate::model::history::{CurvePoint, HeapUsage, SampleTrigger};
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use crate::report::frames;

/// The callsites of a target.
#[derive(Debug, Default, Serialize)]
pub(super) struct CallsiteColumns {
    count: usize,
    /// Nodes of the tree of stacks.
    node: Column,
    /// Indices of the labels between the process and the stack.
    gap: Column,
    /// Indices of the target's heaps; past the end where the heap is unknown.
    heap: Column,
    /// 1 + index of the target's threads; 0 for none.
    thread: Column,
    opening_bytes: Column,
    opening_count: Column,
    alloc_bytes: Column,
    alloc_count: Column,
    live_bytes: Column,
    live_count: Column,
    /// Live blocks above the minimum age, where one was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    older_bytes: Option<Column>,
    #[serde(skip_serializing_if = "Option::is_none")]
    older_count: Option<Column>,
    peak_bytes: Column,
    at_peak_bytes: Column,
    /// Number of samples behind the estimates.
    alloc_samples: Column,
    live_samples: Column,
    /// Milliseconds; -1 where nothing is live.
    oldest: Column,
    median: Column,
    /// 1 + number of temporary blocks; 0 where unknown.
    temporary: Column,
    sizes: HistogramColumns,
    /// In microseconds.
    ages: HistogramColumns,
    lifetimes: HistogramColumns,
}

/// A histogram for each callsite: the number of its buckets, and all buckets concatenated. A bucket is 0 for the value 0, else
/// 1 + log2 of its smallest value.
#[derive(Debug, Default, Serialize)]
struct HistogramColumns {
    count: Column,
    bucket: Vec<u32>,
    blocks: Vec<Number>,
}

impl HistogramColumns {
    fn push(&mut self, histogram: &Histogram) {
        let mut count = 0.0;
        for (smallest, blocks) in histogram.iter() {
            self.bucket.push(u64::BITS - smallest.leading_zeros());
            self.blocks.push(Number(blocks.to_f64()));
            count += 1.0;
        }
        self.count.push(count);
    }
}

impl CallsiteColumns {
    pub(super) fn new(
        target: &TargetProfile,
        names: &mut Names<'_>,
        stacks: &mut Stacks,
        gaps: &mut Vec<Vec<String>>,
    ) -> Self {
        let mut columns = Self { count: target.callsites.len(), ..Self::default() };
        if target.callsites.iter().any(|callsite| callsite.older.is_some()) {
            (columns.older_bytes, columns.older_count) = (Some(Column::default()), Some(Column::default()));
        }
        for callsite in &target.callsites {
            columns.node.push(f64::from(stacks.node(&callsite.stack, names)));
            columns.gap.push(float(gap(callsite, gaps) as u64));
            columns.heap.push(float(callsite.heap.min(target.heaps.len()) as u64));
            let thread = callsite.thread.filter(|&thread| thread < target.threads.len());
            columns.thread.push(thread.map_or(0.0, |thread| float(thread as u64 + 1)));
            columns.amounts(callsite);
            columns.details(callsite);
        }
        columns
    }

    fn amounts(&mut self, callsite: &CallsiteProfile) {
        let totals = &callsite.totals;
        self.opening_bytes.push(totals.opening_bytes.to_f64());
        self.opening_count.push(totals.opening_count.to_f64());
        self.alloc_bytes.push(totals.alloc_bytes.to_f64());
        self.alloc_count.push(totals.alloc_count.to_f64());
        self.live_bytes.push(totals.live_bytes().to_f64());
        self.live_count.push(totals.live_count().to_f64());
        let older = callsite.older.unwrap_or_else(|| totals.live());
        if let (Some(bytes), Some(count)) = (&mut self.older_bytes, &mut self.older_count) {
            bytes.push(older.bytes.to_f64());
            count.push(older.count.to_f64());
        }
        self.peak_bytes.push(totals.peak_bytes.to_f64());
        self.at_peak_bytes.push(totals.at_peak.bytes.to_f64());
        self.alloc_samples.push(float(totals.alloc_samples));
        self.live_samples.push(float(totals.live_samples));
    }

    fn details(&mut self, callsite: &CallsiteProfile) {
        let details = &callsite.details;
        let millis = |nanos: Option<u64>| nanos.map_or(-1.0, |nanos| (float(nanos) / 1e6).round());
        self.oldest.push(millis(details.ages.oldest_ns));
        self.median.push(millis(details.ages.median_ns()));
        self.temporary.push(details.temporary_count.map_or(0.0, |count| float(count) + 1.0));
        self.sizes.push(&details.sizes);
        self.ages.push(&details.ages.histogram);
        self.lifetimes.push(&details.lifetimes);
    }
}

/// Index of the labels before a callsite's stack; there are few distinct ones.
fn gap(callsite: &CallsiteProfile, gaps: &mut Vec<Vec<String>>) -> usize {
    let labels: Vec<String> = frames::gap_frames(callsite).collect();
    gaps.iter().position(|known| *known == labels).unwrap_or_else(|| {
        gaps.push(labels);
        gaps.len() - 1
    })
}

#[derive(Debug, Default, Serialize)]
struct HeldColumns {
    live_bytes: Column,
    live_count: Column,
    alloc_bytes: Column,
    alloc_count: Column,
}

impl HeldColumns {
    fn push(&mut self, held: &HeapUsage) {
        self.live_bytes.push(held.live_bytes);
        self.live_count.push(held.live_count);
        self.alloc_bytes.push(held.alloc_bytes);
        self.alloc_count.push(held.alloc_count);
    }
}

/// The history of a target's heap: its totals over time, and changes of its callsites. Times are in milliseconds since the
/// recording started.
#[derive(Debug, Default, Serialize)]
pub(super) struct HistoryFields {
    curve: CurveFields,
    instants: InstantFields,
    changes: ChangeFields,
}

#[derive(Debug, Default, Serialize)]
struct CurveFields {
    time: Column,
    #[serde(flatten)]
    held: HeldColumns,
}

#[derive(Debug, Default, Serialize)]
struct InstantFields {
    time: Column,
    /// 0 for a periodic point, -1 for a mark, else the number of the window that ended.
    occasion: Column,
}

/// Changes by callsite, then by time.
#[derive(Debug, Default, Serialize)]
struct ChangeFields {
    /// Number of changes for each callsite.
    count: Column,
    instant: Column,
    #[serde(flatten)]
    held: HeldColumns,
}

impl HistoryFields {
    pub(super) fn new(profile: &Profile, target: &TargetProfile) -> Self {
        let mut fields = Self::default();
        let mut moments: Vec<&CurvePoint> = target.history.curve.iter().collect();
        moments.sort_by_key(|moment| moment.time);
        for moment in moments {
            fields.curve.time.push(millis(profile, moment.time));
            fields.curve.held.push(&moment.held);
        }
        for instant in &target.history.instants {
            fields.instants.time.push(millis(profile, instant.time));
            fields.instants.occasion.push(match instant.trigger {
                None => 0.0,
                Some(SampleTrigger::Mark) => -1.0,
                Some(SampleTrigger::Dump(number)) => f64::from(number),
            });
        }
        for callsite in &target.callsites {
            let mut count = 0.0;
            for change in &callsite.history {
                if target.history.instants.get(change.instant as usize).is_some() {
                    count += 1.0;
                    fields.changes.instant.push(f64::from(change.instant));
                    fields.changes.held.push(&change.held);
                }
            }
            fields.changes.count.push(count);
        }
        fields
    }
}
