//! Ranks callsites by how surely what they hold grows without end: see docs/leak-candidates.md.

use serde::{Deserialize, Serialize};

use crate::ledger::Ledger;
use crate::ledger::timeline::{Noted, Timeline};
use crate::ledger::totals::Amounts;
use crate::units::MonotonicNanos;

/// Instants below which nothing is said of growth.
pub(crate) const POINTS_MIN: usize = 8;

/// Callsites that are kept, those first that are worst. Reports name fewer, of those that nothing suppresses.
pub(crate) const GROWING_MAX: usize = 10_000;

/// Standard deviations to both sides that hold 95 % of a normal distribution.
const Z_95: f64 = 1.96;

/// Of what a steady leak has added since the recording began half is older than half of it, of one that grows faster and faster
/// a quarter. Below that, what is held grows because more blocks are made in a second that do not live long.
const STAYS_SHARE: f64 = 0.25;

/// A callsite that grows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Its index in the books.
    pub callsite: u32,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// How far off that may be (95 %).
    pub margin: f64,
    /// Of its live bytes, those that are older than half of the recording: a share from 0 to 1.
    pub old_share: f64,
    /// Of the blocks that it made, or had, in the first half, those that are live: a share from 0 to 1; `None` when there
    /// were none.
    pub survival: Option<f64>,
    /// What it is ranked by: bytes a second that it grows for certain, less where what it holds is young.
    pub score: f64,
}

/// What can be said of a target's growth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growths {
    /// Nanoseconds that were looked at.
    pub span_ns: u64,
    /// The recording was too short to say anything.
    pub too_short: bool,
    /// Callsites that grow, at most [`GROWING_MAX`], those with the highest score first.
    pub growing: Vec<Growth>,
    /// How many grow.
    pub count: usize,
}

impl Growths {
    /// Of a target whose books are open, at `now`. Where there is a list of what is old enough to be shown, by the callsites'
    /// indices, those that have nothing in it are left out. Takes a pass over its live blocks, and none where it was too short.
    pub fn of(timeline: &Timeline, ledger: &Ledger, now: MonotonicNanos, older: Option<&[Amounts]>) -> Self {
        // Instants evenly apart: dumps may come close together, and would weigh more than what lies between.
        let is_even: Vec<bool> = timeline.instants().iter().map(|it| it.occasion.is_none() && it.time < now).collect();
        let even = timeline.instants().iter().zip(&is_even).filter(|(_, is_even)| **is_even);
        let mut times: Vec<MonotonicNanos> = even.map(|(instant, _)| instant.time).collect();
        times.push(now);
        let span_ns = now.0 - times[0].0;
        if times.len() < POINTS_MIN {
            return Self { span_ns, too_short: true, growing: Vec::new(), count: 0 };
        }
        let half = half_of(&times);
        let older_blocks = ledger.allocated_before([times[half]]);
        let mut growing = Vec::new();
        for (index, totals) in ledger.callsite_totals().enumerate() {
            let is_young = older.is_some_and(|older| older.get(index).is_none_or(|old| *old == Amounts::default()));
            if totals.live_samples == 0 || is_young {
                continue;
            }
            let even = timeline.series(index).zip(&is_even).filter(|(_, is_even)| **is_even);
            let mut noted: Vec<Noted> = even.map(|(noted, _)| noted).collect();
            noted.push(Noted::of(totals));
            let [old] = older_blocks[index];
            let opening = totals.opening_count.to_f64();
            let callsite = u32::try_from(index).unwrap_or(u32::MAX);
            growing.extend(judge(callsite, &times, &noted, half, old, opening));
        }
        growing.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.callsite.cmp(&b.callsite)));
        let count = growing.len();
        growing.truncate(GROWING_MAX);
        Self { span_ns, too_short: false, growing, count }
    }
}

/// The instant that is nearest to the middle.
fn half_of(times: &[MonotonicNanos]) -> usize {
    let middle = times[0].0.midpoint(times[times.len() - 1].0);
    (0..times.len()).min_by_key(|&index| times[index].0.abs_diff(middle)).unwrap_or(0)
}

/// What a callsite's past says; `None` when it does not grow, as far as can be told. `old` is what is live at the last instant
/// and was made before the one at `half`; `opening` are blocks that were there at the first.
fn judge(
    callsite: u32,
    times: &[MonotonicNanos],
    noted: &[Noted],
    half: usize,
    old: Amounts,
    opening: f64,
) -> Option<Growth> {
    let (first, middle, last) = (noted[0], noted[half], noted[noted.len() - 1]);
    let points: Vec<(f64, f64)> =
        times.iter().zip(noted).map(|(time, noted)| (seconds(time.0 - times[0].0), noted.held.live_bytes)).collect();
    // Blocks that are live at both instants are in both estimates alike: only the others make the difference uncertain.
    let stayed = old.variance.bytes.to_f64();
    let fresh = (f64::from(last.live_variance) - stayed).max(0.0);
    let late_variance = fresh + (f64::from(middle.live_variance) - stayed).max(0.0);
    let whole_variance = f64::from(last.live_variance) + f64::from(first.live_variance);
    let whole = slope(&points, whole_variance);
    let late = slope(&points[half..], late_variance);
    let Slope { per_second, margin } = if late.at_least() < whole.at_least() { late } else { whole };
    let old_share = share(old.bytes.to_f64(), last.held.live_bytes);
    // What has come since the first instant and was there already at half time: blocks that stay.
    let grown = |bytes: f64| (bytes - first.held.live_bytes).max(0.0);
    let stays = share(grown(old.bytes.to_f64()), grown(last.held.live_bytes));
    let score = (per_second - margin) * (stays / STAYS_SHARE).min(1.0);
    let born = opening + middle.held.alloc_count;
    let survival = (born > 0.0).then(|| share(old.count.to_f64(), born));
    (score > 0.0).then_some(Growth { callsite, bytes_per_second: per_second, margin, old_share, survival, score })
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds below 2^53")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// How fast something grows.
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

/// A line by least squares. Its margin has two causes: what the program holds goes up and down, which shows in how far points
/// are off the line; and what is seen of that is an estimate, whose difference between the ends has the variance `sampling`.
///
/// Neighbouring points are off to the same side, so that n of them say no more than n·(1 − ρ)/(1 + ρ) that do not know of each
/// other, ρ being the correlation of neighbours (Bartlett, 1946).
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
