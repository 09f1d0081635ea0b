//! The kernel side's cache of unwind rules by address. A search for a rule takes a search of the process's mappings, one of a
//! module's rows, and a lookup of the rule: together most of the cost of a frame. Stacks share most of their frames, so the same
//! few thousand addresses are looked up again and again.
//!
//! Programs on all CPUs share the cache without locks, so an entry of two words may combine the halves of two writes. The first
//! word is therefore combined with the second, and both must match (R. Hyatt and T. Mann, "A lock-less transposition table
//! implementation for parallel search", 2002).

use crate::limits::RULE_CACHE_SLOTS;
use crate::unwind::Rule;

/// An address of a process, for one state of its mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheKey(u64);

/// An entry of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct CachedRule {
    pub check: u64,
    pub rule: u64,
}

const _: () = assert!(size_of::<CachedRule>() == 16);

/// The golden ratio's bits, as in Knuth's multiplicative hashing (TAOCP 3, 6.4).
const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

impl CacheKey {
    /// `serial` is that of the process's mappings ([`ProcessMappings`](crate::unwind::ProcessMappings)): changed mappings have
    /// another one, so the cache need not be cleared. Never 0.
    #[inline(always)]
    pub const fn new(serial: u32, address: u64) -> Self {
        Self(address ^ (serial as u64).wrapping_mul(RATIO))
    }

    /// Index of the only slot that the key may be in.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the shift leaves the bits of a slot")]
    pub const fn slot(self) -> u32 {
        (self.0.wrapping_mul(RATIO) >> (u64::BITS - RULE_CACHE_SLOTS.ilog2())) as u32
    }

    #[inline(always)]
    pub const fn entry(self, rule: Rule) -> CachedRule {
        let word = rule.to_word();
        CachedRule { check: self.0 ^ mixed(word), rule: word }
    }

    /// The entry's rule, if the entry is this key's.
    #[inline(always)]
    pub const fn rule(self, entry: CachedRule) -> Option<Rule> {
        if entry.check ^ mixed(entry.rule) == self.0 { Some(Rule::from_word(entry.rule)) } else { None }
    }
}

/// Distributes the bits of a rule, so that halves of different entries do not match.
#[inline(always)]
const fn mixed(rule: u64) -> u64 {
    let product = (rule ^ RATIO).wrapping_mul(RATIO);
    product ^ product >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::{CallerBp, Cfa};
    use proptest::prelude::*;

    fn rule(offset: i32, bp: CallerBp) -> Rule {
        Rule::new(Cfa::Sp { offset }, bp).expect("the stack shrinks")
    }

    proptest! {
        #[test]
        fn entries_are_found_by_their_key_alone(
            serial in 1u32..,
            address: u64,
            other_serial in 1u32..,
            other_address: u64,
            offset in 8i32..,
            bp_offset: i16,
        ) {
            let rule = rule(offset, CallerBp::AtCfa(bp_offset));
            let (key, other) = (CacheKey::new(serial, address), CacheKey::new(other_serial, other_address));
            prop_assert!(key.slot() < RULE_CACHE_SLOTS);
            prop_assert_eq!(key.rule(key.entry(rule)), Some(rule));
            prop_assert_eq!(other.rule(key.entry(rule)), (key == other).then_some(rule));
        }

        #[test]
        fn halves_of_two_entries_do_not_match(serial in 1u32.., address: u64, offsets in [8i32..1 << 20, 8i32..1 << 20]) {
            prop_assume!(offsets[0] != offsets[1]);
            let [one, other] = offsets.map(|offset| CacheKey::new(serial, address).entry(rule(offset, CallerBp::Same)));
            let torn = CachedRule { check: one.check, rule: other.rule };
            prop_assert_eq!(CacheKey::new(serial, address).rule(torn), None);
        }
    }

    #[test]
    fn an_empty_slot_matches_no_address() {
        let serials = [1, 2, u32::MAX];
        let addresses = [0, 0x1000, 0x7f00_0000_0000, 0x7fff_ffff_ffff];
        for (serial, address) in serials.into_iter().flat_map(|serial| addresses.map(|address| (serial, address))) {
            assert_eq!(CacheKey::new(serial, address).rule(CachedRule::default()), None, "{serial} {address:#x}");
        }
    }

    #[test]
    fn return_addresses_spread_over_the_slots() {
        let mut counts = vec![0u32; RULE_CACHE_SLOTS as usize];
        for i in 0..u64::from(RULE_CACHE_SLOTS) {
            counts[CacheKey::new(7, 0x7f12_3456_0010 + i * 37).slot() as usize] += 1;
        }
        // A random distribution of one per slot has about 8 somewhere.
        let most = counts.iter().max().copied().unwrap_or(0);
        assert!(most <= 12, "{most} addresses in one slot");
    }
}
