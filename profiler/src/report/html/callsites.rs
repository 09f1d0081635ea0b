//! Callsites in columns: where they are, what they did, what is known of their blocks.

use serde::Serialize;

use super::column::{Column, float};
use super::names::Names;
use super::stacks::Stacks;
use crate::ledger::histogram::Histogram;
use crate::model::{CallsiteProfile, TargetProfile};
use crate::report::frames;

/// A list of a target's callsites. Every column has one number for each, or none at all where all are 0.
#[derive(Debug, Default, Serialize)]
pub(super) struct CallsiteColumns {
    count: usize,
    /// Nodes of the tree of stacks.
    node: Column,
    /// Lists of words that stand between the process and the stack.
    gap: Column,
    /// Places in the target's heaps; beyond them where the heap is not known.
    heap: Column,
    /// 1 more than the places in the target's threads.
    thread: Column,
    opening_bytes: Column,
    opening_count: Column,
    alloc_bytes: Column,
    alloc_count: Column,
    live_bytes: Column,
    live_count: Column,
    /// What of it is old enough, where only that is to be shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    older_bytes: Option<Column>,
    #[serde(skip_serializing_if = "Option::is_none")]
    older_count: Option<Column>,
    peak_bytes: Column,
    at_peak_bytes: Column,
    /// Samples that allocated and live amounts are estimated from.
    alloc_samples: Column,
    live_samples: Column,
    /// Milliseconds; -1 where nothing is live.
    oldest: Column,
    median: Column,
    /// 1 more than there were; 0 where that is not known.
    temporary: Column,
    sizes: HistogramColumns,
    /// By microseconds.
    ages: HistogramColumns,
    lifetimes: HistogramColumns,
}

/// A histogram for each callsite: how many buckets it has, then all buckets one after the other. A bucket is 0 for the value
/// 0, else 1 more than the logarithm of its smallest value to the base of 2.
#[derive(Debug, Default, Serialize)]
struct HistogramColumns {
    count: Column,
    bucket: Vec<u32>,
    blocks: Vec<super::column::Number>,
}

impl HistogramColumns {
    fn push(&mut self, histogram: &Histogram) {
        let mut count = 0.0;
        for (smallest, blocks) in histogram.iter() {
            self.bucket.push(u64::BITS - smallest.leading_zeros());
            self.blocks.push(super::column::Number(blocks.to_f64()));
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

/// Which of the lists of words stands before a callsite's stack; there are few.
fn gap(callsite: &CallsiteProfile, gaps: &mut Vec<Vec<String>>) -> usize {
    let words: Vec<String> = frames::gap_frames(callsite).collect();
    gaps.iter().position(|known| *known == words).unwrap_or_else(|| {
        gaps.push(words);
        gaps.len() - 1
    })
}
