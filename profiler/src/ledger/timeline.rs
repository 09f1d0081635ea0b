//! What the callsites of one target held in the course of a recording, at few instants and in little memory. Owns when
//! callsites are looked at; what is made of it is the reports' (`report/history.rs`) and the leak candidates' (`leak/growth.rs`).
//!
//! ```text
//!   periodic   0 s   1 s   2 s   3 s  …  at most 64; then every other one goes, and the next come half as often
//!   occasions           dump 1     mark  …  at most 64; then every other one goes, and of the next every other one stays
//!   callsite 0  ●     ●                  changed at 0 s and 1 s only: it holds the same ever since
//!   callsite 1        ●     ●     ●
//! ```
//!
//! Neither kind of instant displaces the other. The last occasion is always there. A callsite costs 40 bytes for each instant
//! at which it had changed, 5 KiB at most; one that rests costs nothing more.

use serde::{Deserialize, Serialize};

use super::Ledger;
use super::held::Held;
use super::totals::Totals;
use crate::units::MonotonicNanos;

/// Periodic instants that are kept at most, and occasions.
pub(crate) const POINTS_MAX: usize = 64;

/// Nanoseconds between the first instants.
const PERIOD_NS: u64 = 1_000_000_000;

/// An instant at which callsites were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instant {
    /// When.
    pub time: MonotonicNanos,
    /// What happened then, if it is not of the periodic ones.
    pub occasion: Option<Occasion>,
}

/// Why callsites were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Occasion {
    /// The window with this number ended.
    Dump(u32),
    /// A mark was set.
    Mark,
}

/// What a callsite holds, and how far off that may be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noted {
    /// What it holds.
    pub held: Held,
    /// The variance of its live bytes.
    pub live_variance: f32,
}

impl Noted {
    /// What these totals say of now.
    #[expect(clippy::cast_possible_truncation, reason = "seven digits of a variance are more than it is worth")]
    pub fn of(totals: &Totals) -> Self {
        Self { held: Held::of(totals), live_variance: totals.live_variance.bytes.to_f64() as f32 }
    }
}

/// A change: at which instant, and what is held since.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Change {
    held: Held,
    live_variance: f32,
    point: u8,
}

impl Change {
    fn new(point: u8, Noted { held, live_variance }: Noted) -> Self {
        Self { held, live_variance, point }
    }

    fn noted(&self) -> Noted {
        Noted { held: self.held, live_variance: self.live_variance }
    }
}

const _: () = assert!(size_of::<Change>() == 40 && 2 * POINTS_MAX <= u8::MAX as usize + 1);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timeline {
    instants: Vec<Instant>,
    period_ns: u64,
    /// Occasions there were, kept or not.
    occasions: u64,
    /// Of so many occasions one is kept; and the last.
    stride: u64,
    /// By the callsite's index in the books.
    callsites: Vec<Vec<Change>>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { instants: Vec::new(), period_ns: PERIOD_NS, occasions: 0, stride: 1, callsites: Vec::new() }
    }
}

impl Timeline {
    /// Notes what is held at this instant, which is now: on an occasion, or if it [is time](Self::is_due).
    pub fn note(&mut self, instant: Instant, ledger: &Ledger) {
        if instant.occasion.is_some() || self.is_due(instant.time) {
            self.enter(instant, ledger.callsite_totals().map(Noted::of));
        }
    }

    /// Whether it is time for a periodic instant.
    pub fn is_due(&self, now: MonotonicNanos) -> bool {
        let last = self.instants.iter().rev().find(|instant| instant.occasion.is_none());
        last.is_none_or(|last| now.0.saturating_sub(last.time.0) >= self.period_ns)
    }

    /// Whether it holds together: what was read from a file need not.
    pub fn is_sound(&self) -> bool {
        let points = self.instants.len();
        let is_known = |change: &Change| usize::from(change.point) < points && change.held.is_sound();
        let occasions = self.instants.iter().filter(|instant| instant.occasion.is_some()).count();
        occasions <= POINTS_MAX
            && points - occasions <= POINTS_MAX
            && self.instants.is_sorted_by_key(|instant| instant.time)
            && self.period_ns < u64::MAX / 4
            && self.occasions < u64::MAX / 4
            && (1..u64::MAX / 4).contains(&self.stride)
            && self.callsites.iter().all(|changes| changes.is_sorted_by_key(|change| change.point))
            && self.callsites.iter().flatten().all(is_known)
    }

    /// Enters what each callsite holds at an instant, in the order of their indices.
    fn enter(&mut self, mut instant: Instant, noted: impl Iterator<Item = Noted>) {
        match instant.occasion {
            Some(_) => self.make_room_for_occasion(),
            None => self.make_room(),
        }
        // A session's clock goes on; a file may say anything.
        instant.time = instant.time.max(self.instants.last().map_or(MonotonicNanos(0), |last| last.time));
        #[expect(clippy::cast_possible_truncation, reason = "below twice POINTS_MAX")]
        let point = self.instants.len() as u8;
        self.instants.push(instant);
        for (index, noted) in noted.enumerate() {
            if index == self.callsites.len() {
                self.callsites.push(Vec::new());
            }
            let changes = &mut self.callsites[index];
            match changes.last_mut() {
                Some(last) if last.noted() == noted => {}
                None if noted == Noted::default() => {}
                Some(last) if last.point == point => *last = Change::new(point, noted),
                _ => changes.push(Change::new(point, noted)),
            }
        }
    }

    /// Sees to it that a periodic instant fits.
    fn make_room(&mut self) {
        let periodic = self.instants.iter().filter(|instant| instant.occasion.is_none()).count();
        if periodic < POINTS_MAX {
            return;
        }
        self.period_ns = self.period_ns.saturating_mul(2);
        let mut at = 0..;
        self.retain(|instant| instant.occasion.is_some() || at.next().is_some_and(|at: usize| at.is_multiple_of(2)));
    }

    /// Sees to it that an occasion fits. What was the last one stays if it is its turn.
    fn make_room_for_occasion(&mut self) {
        let number = self.occasions;
        self.occasions += 1;
        let last = self.instants.iter().rposition(|instant| instant.occasion.is_some());
        if let Some(last) = last.filter(|_| !number.saturating_sub(1).is_multiple_of(self.stride)) {
            let mut at = 0..;
            self.retain(|_| at.next() != Some(last));
        }
        if self.instants.iter().filter(|instant| instant.occasion.is_some()).count() == POINTS_MAX {
            self.stride = self.stride.saturating_mul(2);
            let mut at = 0..;
            self.retain(|instant| {
                instant.occasion.is_none() || at.next().is_some_and(|at: usize| at.is_multiple_of(2))
            });
        }
    }

    /// Forgets some instants.
    fn retain(&mut self, mut stays: impl FnMut(&Instant) -> bool) {
        // What came at an instant that goes is there at the next that stays, which may be one that is yet to come.
        let mut points = Vec::with_capacity(self.instants.len());
        let mut kept = 0u8;
        self.instants.retain(|instant| {
            let stays = stays(instant);
            points.push(kept);
            kept += u8::from(stays);
            stays
        });
        points.push(kept);
        for changes in &mut self.callsites {
            let mut thinned: Vec<Change> = Vec::with_capacity(changes.len() / 2 + 1);
            for change in changes.iter() {
                let change = Change { point: points[usize::from(change.point)], ..*change };
                match thinned.last_mut() {
                    Some(last) if last.point == change.point => *last = change,
                    _ => thinned.push(change),
                }
            }
            *changes = thinned;
        }
    }

    /// The instants, in the order of time.
    pub fn instants(&self) -> &[Instant] {
        &self.instants
    }

    /// What a callsite held at each instant.
    pub fn series(&self, callsite: usize) -> impl Iterator<Item = Noted> {
        let mut changes = self.callsites.get(callsite).map_or(&[][..], Vec::as_slice).iter().peekable();
        let mut noted = Noted::default();
        (0..self.instants.len()).map(move |point| {
            while let Some(change) = changes.next_if(|change| usize::from(change.point) <= point) {
                noted = change.noted();
            }
            noted
        })
    }

    /// At which instants what a callsite held had changed, by their place, and what it held since; those first that were first.
    pub fn changes(&self, callsite: usize) -> impl Iterator<Item = (usize, Held)> {
        let changes = self.callsites.get(callsite).map_or(&[][..], Vec::as_slice);
        changes.iter().map(|change| (usize::from(change.point), change.held))
    }

    /// Bytes that it takes.
    pub fn memory_bytes(&self) -> usize {
        let changes: usize = self.callsites.iter().map(|changes| changes.capacity() * size_of::<Change>()).sum();
        let lists = self.callsites.capacity() * size_of::<Vec<Change>>();
        changes + lists + self.instants.capacity() * size_of::<Instant>()
    }
}

#[cfg(test)]
mod tests;
