//! What comes into books and goes out of them, change by change, for who tells it so. Kept only where it is asked for.

use super::Ledger;
use crate::units::Weight;

/// How one change moves what is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// A block, or a mapping, came.
    In(Weight),
    /// It went; of a mapping also a part, which counts as no block unless it is the last.
    Out(Weight),
    /// It went and is there again: it had not been freed.
    Back(Weight),
    /// A live block that was taken to weigh one thing weighs another; nothing, where it is not followed any more.
    Reweighed {
        /// What it weighed.
        from: Weight,
        /// What it weighs.
        to: Weight,
    },
}

/// One change of the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The callsite's number, as [`CallsiteSnapshot::index`](super::snapshot::CallsiteSnapshot::index) has it.
    pub callsite: u32,
    /// What happened.
    pub movement: Movement,
}

/// Changes that nobody has asked for yet; `None` where nobody will.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal(Option<Vec<Flow>>);

impl Journal {
    pub(super) fn note(&mut self, callsite: u32, movement: Movement) {
        if let Some(flows) = &mut self.0 {
            flows.push(Flow { callsite, movement });
        }
    }
}

impl Ledger {
    /// Keeps a journal from now on, which has to be asked for with [`take_flows`](Self::take_flows). It begins with what is
    /// live, block by block, in the order of callsites and sizes.
    pub fn keep_journal(&mut self) {
        self.journal = Journal(Some(self.opening()));
    }

    /// What has changed since this was last asked, in that order.
    pub fn take_flows(&mut self) -> Vec<Flow> {
        self.journal.0.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// All that is live, as if it came now. A mapping is as large as what is left of it.
    fn opening(&self) -> Vec<Flow> {
        let mut blocks: Vec<_> =
            self.live.iter().map(|(_, block)| (block.callsite, block.size_bytes, block.interval.code())).collect();
        blocks.sort_unstable();
        let weigh = |(callsite, size_bytes, interval)| {
            let weight = Weight::of(size_bytes, profiler_common::interval::Interval::from_code(interval));
            Flow { callsite, movement: Movement::In(weight) }
        };
        let blocks = blocks.into_iter().map(weigh);
        blocks
            .chain(
                self.ranges
                    .whole()
                    .map(|(callsite, bytes)| Flow { callsite, movement: Movement::In(Weight::exact(bytes, 1)) }),
            )
            .collect()
    }
}
