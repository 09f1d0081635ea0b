//! Ends and ids of stacks.

use crate::counter::Counter;
use crate::limits::STACK_BUCKETS;

/// Why unwinding stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StackEnd {
    /// The thread's first frame was reached.
    Complete = 0,
    /// The stack has more than [`STACK_FRAMES_MAX`](crate::limits::STACK_FRAMES_MAX) frames.
    Truncated = 1,
    /// A frame's memory could not be read.
    Unreadable = 2,
    /// A frame pointer did not point outwards.
    BrokenChain = 3,
    /// No scratch area was free.
    NoScratch = 4,
    /// A return address is in no module that has a table.
    MissingModule = 5,
    /// A return address is in code without unwind information.
    NoRow = 6,
    /// The tables cannot express the rule of a frame.
    UnsupportedRule = 7,
    /// All functions of the interpreter are there, but native ones between them are missing: unwinding of native frames ended before.
    NativeMissing = 8,
    /// The outer frames of a virtual thread are in its continuation, which could not be read.
    Frozen = 9,
}

impl StackEnd {
    /// All ends, by wire value.
    pub const ALL: [Self; 10] = [
        Self::Complete,
        Self::Truncated,
        Self::Unreadable,
        Self::BrokenChain,
        Self::NoScratch,
        Self::MissingModule,
        Self::NoRow,
        Self::UnsupportedRule,
        Self::NativeMissing,
        Self::Frozen,
    ];

    /// The end for a wire value, or `None` if this version does not define it.
    pub fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }

    pub const fn counter(self) -> Counter {
        match self {
            Self::Complete => Counter::StackComplete,
            Self::Truncated => Counter::StackTruncated,
            Self::Unreadable => Counter::StackUnreadable,
            Self::BrokenChain => Counter::StackBrokenChain,
            Self::NoScratch => Counter::StackNoScratch,
            Self::MissingModule => Counter::StackMissingModule,
            Self::NoRow => Counter::StackNoRow,
            Self::UnsupportedRule => Counter::StackUnsupportedRule,
            Self::NativeMissing => Counter::StackNativeMissing,
            Self::Frozen => Counter::StackFrozen,
        }
    }
}

/// Computes the id of a stack within a session: a hash of the process and its frames.
///
/// With 64 bits, a million stacks collide with a probability below 3e-8. The seed is random per session, so a target cannot
/// provoke a collision.
#[derive(Clone, Copy, Debug)]
pub struct StackHasher(u64);

impl StackHasher {
    #[inline(always)]
    pub const fn new(seed: u64, tgid: u32) -> Self {
        Self(seed ^ tgid as u64)
    }

    /// The state, to be stored in a map.
    #[inline(always)]
    pub const fn state(self) -> u64 {
        self.0
    }

    /// Continues from a stored state.
    #[inline(always)]
    pub const fn resume(state: u64) -> Self {
        Self(state)
    }

    #[inline(always)]
    pub const fn add(&mut self, address: u64) {
        // The odd constant is 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4). The fold moves the high bits, which
        // the multiplication mixes best, to where the next address differs.
        let mixed = (self.0 ^ address).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    /// The stack's id. Never 0, which stands for "no stack".
    #[inline(always)]
    pub const fn finish(self) -> u64 {
        if self.0 == 0 { 1 } else { self.0 }
    }
}

/// Bucket of a stack in the kernel side's table of stacks whose frames have been sent.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the mask leaves the bits of a bucket")]
pub const fn seen_bucket(stack_id: u64) -> u32 {
    stack_id as u32 & (STACK_BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(seed: u64, tgid: u32, frames: &[u64]) -> u64 {
        let mut hasher = StackHasher::new(seed, tgid);
        frames.iter().for_each(|&frame| hasher.add(frame));
        hasher.finish()
    }

    #[test]
    fn ids_depend_on_seed_process_and_every_frame() {
        let base = id(7, 1, &[0x1000, 0x2000]);
        assert_eq!(base, id(7, 1, &[0x1000, 0x2000]));
        for other in [
            id(8, 1, &[0x1000, 0x2000]),
            id(7, 2, &[0x1000, 0x2000]),
            id(7, 1, &[0x2000, 0x1000]),
            id(7, 1, &[0x1000]),
            id(7, 1, &[0x1000, 0x2001]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn two_million_similar_stacks_do_not_collide() {
        // Neighbouring return addresses in the same two modules, as in real stacks.
        let mut ids: Vec<u64> = (0..2_000_000_u64)
            .map(|i| id(42, 100, &[0x7f00_0000_0000 + (i % 1000) * 5, 0x5555_5555_0000 + i / 1000]))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 2_000_000);
    }

    #[test]
    fn wire_values_round_trip() {
        for end in StackEnd::ALL {
            assert_eq!(StackEnd::from_wire(end as u8), Some(end));
        }
        assert_eq!(StackEnd::from_wire(10), None);
    }
}
