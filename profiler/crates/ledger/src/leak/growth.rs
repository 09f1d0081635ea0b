//! Ranks callsites by the certainty that their live bytes grow without bound: see docs/leak-candidates.md.

use heapbpf_base::units::{Amounts, MonotonicNanos};

use crate::Ledger;
use crate::confidence::Z_95;
use crate::model::{LeakCandidate, Leaks};
use crate::timeline::{Sample, Timeline};

pub(crate) const POINTS_MIN: usize = 8;

/// Maximum number of candidates. Reports show fewer, after suppressions.
pub(crate) const CANDIDATES_MAX: usize = 10_000;

/// Minimum share of old blocks in the growth. Half of the blocks that a steady leak has added since the recording began are older
/// than half of the recording, a quarter if the leak accelerates. A smaller share means that short-lived blocks are allocated at
/// a rising rate.
const STAYS_SHARE: f64 = 0.25;

impl Leaks {
    /// Finds growing callsites. `older` lists the amounts old enough to be shown by callsite: callsites without any are left out.
    /// Takes a pass over the live blocks, unless the recording was too short.
    pub fn of(timeline: &Timeline, ledger: &Ledger, now: MonotonicNanos, older: Option<&[Amounts]>) -> Self {
        // Only evenly spaced points are used: dumps may be close together, and would outweigh the rest.
        let is_even: Vec<bool> = timeline.points().iter().map(|it| it.trigger.is_none() && it.time < now).collect();
        let even = timeline.points().iter().zip(&is_even).filter(|(_, is_even)| **is_even);
        let mut times: Vec<MonotonicNanos> = even.map(|(instant, _)| instant.time).collect();
        times.push(now);
        let span_ns = now.0 - times[0].0;
        if times.len() < POINTS_MIN {
            return Self { span_ns, too_short: true, ..Self::default() };
        }
        let half = half_of(&times);
        let older_blocks = ledger.allocated_before([times[half]]);
        let mut candidates = Vec::new();
        for (index, totals) in ledger.callsite_totals().enumerate() {
            let is_young = older.is_some_and(|older| older.get(index).is_none_or(|old| *old == Amounts::default()));
            if totals.live_samples == 0 || is_young || ledger.is_inventory(index) {
                continue;
            }
            let even = timeline.series(index).zip(&is_even).filter(|(_, is_even)| **is_even);
            let mut samples: Vec<Sample> = even.map(|(sample, _)| sample).collect();
            samples.push(Sample::of(totals));
            let [old] = older_blocks[index];
            let opening = totals.opening_count.to_f64();
            candidates.extend(judge(index, &times, &samples, half, old, opening));
        }
        candidates.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.callsite.cmp(&b.callsite)));
        let count = candidates.len();
        candidates.truncate(CANDIDATES_MAX);
        Self { span_ns, candidates, count, ..Self::default() }
    }
}

fn half_of(times: &[MonotonicNanos]) -> usize {
    let middle = times[0].0.midpoint(times[times.len() - 1].0);
    (0..times.len()).min_by_key(|&index| times[index].0.abs_diff(middle)).unwrap_or(0)
}

/// Judges a callsite; `None` if it does not grow with certainty. `old`: live amounts allocated before the point at `half`;
/// `opening`: number of blocks at the first point.
fn judge(
    callsite: usize,
    times: &[MonotonicNanos],
    samples: &[Sample],
    half: usize,
    old: Amounts,
    opening: f64,
) -> Option<LeakCandidate> {
    let (first, middle, last) = (samples[0], samples[half], samples[samples.len() - 1]);
    let points: Vec<(f64, f64)> = times
        .iter()
        .zip(samples)
        .map(|(time, sample)| (seconds(time.0 - times[0].0), sample.held.live_bytes))
        .collect();
    // Blocks live at both points are in both estimates: only the others make the difference uncertain.
    let stayed = old.variance.bytes.to_f64();
    let fresh = (f64::from(last.live_variance) - stayed).max(0.0);
    let late_variance = fresh + (f64::from(middle.live_variance) - stayed).max(0.0);
    let whole_variance = f64::from(last.live_variance) + f64::from(first.live_variance);
    let whole = slope(&points, whole_variance);
    let late = slope(&points[half..], late_variance);
    let Slope { per_second, margin } = if late.at_least() < whole.at_least() { late } else { whole };
    let old_share = share(old.bytes.to_f64(), last.held.live_bytes);
    // The share is that of the growth since the first point that was allocated before half time.
    let grown = |bytes: f64| (bytes - first.held.live_bytes).max(0.0);
    let stays = share(grown(old.bytes.to_f64()), grown(last.held.live_bytes));
    let score = (per_second - margin) * (stays / STAYS_SHARE).min(1.0);
    let born = opening + middle.held.alloc_count;
    let survival = (born > 0.0).then(|| share(old.count.to_f64(), born));
    (score > 0.0).then_some(LeakCandidate {
        callsite,
        bytes_per_second: per_second,
        margin,
        old_share,
        survival,
        score,
    })
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[derive(Clone, Copy, Debug)]
struct Slope {
    per_second: f64,
    margin: f64,
}

impl Slope {
    fn at_least(self) -> f64 {
        self.per_second - self.margin
    }
}

/// Fits a line by least squares. Its margin has two causes: fluctuations, which show as distances of points from the
/// line; and sampling errors, which give the difference between the ends the variance `sampling`. Neighboring residuals
/// correlate: n points count as n·(1 − ρ)/(1 + ρ), with ρ the correlation of neighbors (Bartlett, 1946).
#[expect(clippy::cast_precision_loss, reason = "64 points")]
fn slope(points: &[(f64, f64)], sampling: f64) -> Slope {
    let count = points.len() as f64;
    let span = points[points.len() - 1].0 - points[0].0;
    if points.len() < 3 || span <= 0.0 {
        return Slope { per_second: 0.0, margin: f64::INFINITY };
    }
    let mean_time = points.iter().map(|(time, _)| time).sum::<f64>() / count;
    let mean = points.iter().map(|(_, bytes)| bytes).sum::<f64>() / count;
    let spread: f64 = points.iter().map(|(time, _)| (time - mean_time).powi(2)).sum();
    let per_second = points.iter().map(|(time, bytes)| (time - mean_time) * (bytes - mean)).sum::<f64>() / spread;
    let off: Vec<f64> = points.iter().map(|(time, bytes)| bytes - mean - per_second * (time - mean_time)).collect();
    let squares: f64 = off.iter().map(|off| off * off).sum();
    let neighbours: f64 = off.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let correlation = if squares > 0.0 { (neighbours / squares).clamp(0.0, 0.9) } else { 0.0 };
    let inflation = (1.0 + correlation) / (1.0 - correlation);
    let fit = squares / (count - 2.0) / spread * inflation;
    Slope { per_second, margin: Z_95 * (fit + sampling / (span * span)).sqrt() }
}

#[cfg(test)]
mod tests;
