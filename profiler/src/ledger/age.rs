//! What was made before an instant and is live still: told when it is asked for, by one pass over all live blocks.

use profiler_common::interval::Interval;
use rustc_hash::FxHashMap;

use super::Ledger;
use super::totals::Amounts;
use crate::units::{MonotonicNanos, Weight};

impl Ledger {
    /// For each of these instants what was made before it and is live, by the callsites' indices. Instants are right to half a
    /// tick of the ledger, 8.4 ms. Nothing is in it once the books are closed.
    pub fn born_before<const N: usize>(&self, instants: [MonotonicNanos; N]) -> Vec<[Amounts; N]> {
        let mut older = vec![[Amounts::default(); N]; self.callsites.len()];
        let mut weights = Weights::default();
        for (_, block) in self.live.iter() {
            let mut weight = None;
            for (amounts, instant) in older[block.callsite as usize].iter_mut().zip(instants) {
                if block.time < instant {
                    amounts.take_in(*weight.get_or_insert_with(|| weights.of(block.size_bytes, block.interval)));
                }
            }
        }
        for piece in self.ranges.pieces() {
            // A mapping counts once, however many pieces are left of it.
            let weight = Weight::exact(piece.bytes, u64::from(piece.is_first));
            for (amounts, instant) in older[piece.callsite as usize].iter_mut().zip(instants) {
                if piece.time < instant {
                    amounts.take_in(weight);
                }
            }
        }
        older
    }
}

/// Weights by size and interval: sizes repeat, and working a weight out takes longer than all the rest of a pass.
#[derive(Default)]
struct Weights(FxHashMap<(u64, u32), Weight>);

impl Weights {
    const KNOWN_MAX: usize = 4096;

    fn of(&mut self, size_bytes: u64, interval: Interval) -> Weight {
        if self.0.len() >= Self::KNOWN_MAX {
            self.0.clear();
        }
        *self.0.entry((size_bytes, interval.code())).or_insert_with(|| Weight::of(size_bytes, interval))
    }
}
