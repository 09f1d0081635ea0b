//! Leaks that are alike as one entry, the largest first. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Leak, Sum};
use crate::model::TypeEvidence;

/// What alike leaks have in common.
#[derive(PartialEq, Eq, Hash)]
struct Likeness {
    callsite: usize,
    watched: bool,
    vtable: Option<Arc<str>>,
}

impl Likeness {
    /// `None` for a block of which nothing is known that another could have in common: its callsite is that of all blocks without a stack.
    fn of(leak: &Leak) -> Option<Self> {
        let known = leak.type_name.as_ref().filter(|known| known.evidence == TypeEvidence::Vtable);
        let vtable = known.map(|known| Arc::clone(&known.name));
        (leak.watched || vtable.is_some()).then_some(Self { callsite: leak.callsite, watched: leak.watched, vtable })
    }
}

/// The entries, as many as `limit`, and how many there are.
///
/// Leaks of one callsite are one entry, that of the first of them, which counts the others as similar, unless their virtual tables say that they
/// are of different types. Blocks without a stack are alike only where virtual tables say so. Entries are ordered by
/// [`total_bytes`](Leak::total_bytes), the largest first; equal ones by address.
pub(crate) fn merge(leaks: Vec<Leak>, limit: usize) -> (Vec<Leak>, u64) {
    let mut places: FxHashMap<Likeness, usize> = FxHashMap::default();
    let mut entries: Vec<Leak> = Vec::new();
    for leak in leaks {
        let place = Likeness::of(&leak).map(|likeness| *places.entry(likeness).or_insert(entries.len()));
        match place.and_then(|place| entries.get_mut(place)) {
            Some(first) => absorb(first, &leak),
            None => entries.push(leak),
        }
    }
    entries.sort_by_key(|leak| (Reverse(leak.total_bytes()), leak.address));
    let count = entries.len() as u64;
    entries.truncate(limit);
    (entries, count)
}

fn absorb(first: &mut Leak, other: &Leak) {
    add(&mut first.similar, Sum { count: 1, bytes: other.size_bytes });
    add(&mut first.similar, other.similar);
    add(&mut first.similar_referenced, other.referenced);
    add(&mut first.similar_referenced, other.similar_referenced);
}

fn add(sum: &mut Sum, other: Sum) {
    sum.count = sum.count.saturating_add(other.count);
    sum.bytes = sum.bytes.saturating_add(other.bytes);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::TypeName;

    fn typed(leak: Leak, name: &str, evidence: TypeEvidence) -> Leak {
        Leak { type_name: Some(TypeName { name: name.into(), evidence }), ..leak }
    }

    fn unwatched(leak: Leak) -> Leak {
        Leak { watched: false, ..leak }
    }

    /// Entries' addresses with how many are similar.
    fn check(leaks: Vec<Leak>, expected: &[(u64, u64)]) {
        let (entries, count) = merge(leaks, usize::MAX);
        let found: Vec<(u64, u64)> = entries.iter().map(|leak| (leak.address, leak.similar.count)).collect();
        assert_eq!(found, expected);
        assert_eq!(count, expected.len() as u64);
    }

    #[test]
    fn leaks_of_a_callsite_are_one_entry_of_the_first() {
        check(
            vec![Leak::made_up(16, 8, 0), Leak::made_up(32, 64, 1), Leak::made_up(48, 8, 0), Leak::made_up(64, 40, 0)],
            &[(32, 0), (16, 2)],
        );
        let holding = |leak: Leak| Leak { referenced: Sum { count: 2, bytes: 100 }, ..leak };
        let (entries, _) = merge(
            vec![holding(Leak::made_up(16, 8, 0)), holding(Leak::made_up(48, 24, 0)), Leak::made_up(64, 40, 0)],
            1,
        );
        let first = &entries[0];
        assert_eq!(first.referenced, Sum { count: 2, bytes: 100 });
        assert_eq!(first.similar, Sum { count: 2, bytes: 64 });
        assert_eq!(first.similar_referenced, Sum { count: 2, bytes: 100 });
        assert_eq!(first.total_bytes(), 8 + 100 + 64 + 100);
    }

    #[test]
    fn blocks_without_a_stack_are_alike_by_their_virtual_tables_alone() {
        let (by_vtable, by_stack) = (TypeEvidence::Vtable, TypeEvidence::Stack);
        check((1..4).map(|at| unwatched(Leak::made_up(16 * at, 8, 0))).collect(), &[(16, 0), (32, 0), (48, 0)]);
        let of = |at: u64, name: &str, evidence| typed(unwatched(Leak::made_up(at, 8, 0)), name, evidence);
        check(vec![of(16, "Foo", by_vtable), of(32, "Bar", by_vtable), of(48, "Foo", by_vtable)], &[(16, 1), (32, 0)]);
        check(vec![of(16, "Foo", by_stack), of(32, "Foo", by_stack)], &[(16, 0), (32, 0)]);
        // A watched block of the same type is not one of those without a stack.
        check(vec![of(16, "Foo", by_vtable), typed(Leak::made_up(32, 8, 0), "Foo", by_vtable)], &[(16, 0), (32, 0)]);
    }

    #[test]
    fn a_callsite_that_makes_several_types_has_an_entry_for_each() {
        let of = |at: u64, name: &str| typed(Leak::made_up(at, 8, 7), name, TypeEvidence::Vtable);
        check(vec![of(16, "Circle"), of(32, "Square"), of(48, "Circle")], &[(16, 1), (32, 0)]);
    }

    #[test]
    fn the_largest_stay_within_the_limit() {
        let leaks: Vec<Leak> = (0..1024_u32).map(|at| Leak::made_up(u64::from(at) * 64, 32, at as usize)).collect();
        let (entries, count) = merge(leaks, 100);
        assert_eq!((entries.len(), count), (100, 1024));
        assert!(entries.is_sorted_by_key(|leak| leak.address), "equal ones stand by address");
        assert_eq!(merge(vec![Leak::made_up(16, 1, 0)], 0), (Vec::new(), 1));
    }

    proptest! {
        /// Nothing gets lost, whatever is merged.
        #[test]
        fn sums_stay(sizes in proptest::collection::vec((1..1000_u64, 0..4_usize, any::<bool>()), 0..200)) {
            let leaks: Vec<Leak> = (1..).zip(&sizes).map(|(at, &(size_bytes, callsite, watched))| {
                let referenced = Sum { count: 1, bytes: size_bytes * 2 };
                Leak { watched, referenced, ..Leak::made_up(at * 4096, size_bytes, callsite) }
            }).collect();
            let (entries, _) = merge(leaks, usize::MAX);
            prop_assert!(entries.is_sorted_by_key(|leak| (Reverse(leak.total_bytes()), leak.address)));
            let whole: u64 = entries.iter().map(Leak::total_bytes).sum();
            prop_assert_eq!(whole, sizes.iter().map(|(size, ..)| size * 3).sum::<u64>());
            let count: u64 = entries.iter().map(|leak| 1 + leak.similar.count).sum();
            prop_assert_eq!(count, sizes.len() as u64);
        }
    }
}
