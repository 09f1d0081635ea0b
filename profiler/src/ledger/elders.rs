//! What was made before an instant and is live still: told when it is asked for, by one pass over all live blocks.

use super::Ledger;
use super::totals::Amounts;
use crate::units::{MonotonicNanos, Weight};

impl Ledger {
    /// For each of these instants what was made before it and is live, by the callsites' indices. Instants are right to half a
    /// tick of the ledger, 8.4 ms. Mapped memory is not in it, and nothing is once the books are closed.
    #[must_use]
    pub fn born_before<const N: usize>(&self, instants: [MonotonicNanos; N]) -> Vec<[Amounts; N]> {
        let mut elders = vec![[Amounts::default(); N]; self.callsites.len()];
        for (_, block) in self.live.iter() {
            let mut weight = None;
            for (amounts, instant) in elders[block.callsite as usize].iter_mut().zip(instants) {
                if block.time < instant {
                    amounts.take_in(*weight.get_or_insert_with(|| Weight::of(block.size_bytes, block.interval)));
                }
            }
        }
        elders
    }
}
