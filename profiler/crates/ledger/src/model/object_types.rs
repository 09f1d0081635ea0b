//! Objects of a runtime's heap by type.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use heapbpf_base::language::Language;
use heapbpf_base::units::MonotonicNanos;
use serde::{Deserialize, Serialize};

/// Objects that were allocated in a runtime's own heap at one time, by type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectTypes {
    pub language: Language,
    pub time: MonotonicNanos,
    /// Time of the count that growths refer to; `None` in a first count.
    pub since: Option<MonotonicNanos>,
    /// By bytes, the largest first.
    pub types: Vec<ObjectType>,
    /// Types that are not in `types`, because there are [so many](Self::TYPES_MAX).
    pub more_types: u64,
    /// All blocks of the heap, of which types describe a part.
    pub blocks: HeapBlocks,
    /// Blocks that are neither objects nor tables of known objects.
    pub other: HeapBlocks,
    /// Blocks that were not read, because they were swapped out, or changed each time that they were read.
    pub unread: HeapBlocks,
    /// Bytes that the heap has from the system, with those of its free blocks.
    pub reserved_bytes: u64,
    /// The part of the heap that was read: one of so many blocks. Above 1, numbers of types, `other` and `unread` are estimates.
    pub one_of: u64,
}

/// Blocks of a heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct HeapBlocks {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Objects of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema))]
pub struct ObjectType {
    /// Name of the type, with that of its module if it has one: `app.Session`.
    pub name: Arc<str>,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of the objects, and of tables that each of them owns, such as the keys of a dictionary.
    pub bytes: u64,
    /// Bytes of tables that are too large for the runtime's heap, and are in that of the C library.
    pub large_bytes: u64,
    /// Change of the number of objects since the first count.
    pub grown_objects: i64,
    /// Change of all bytes since the first count.
    pub grown_bytes: i64,
}

impl ObjectType {
    /// With those of large tables.
    pub fn all_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.large_bytes)
    }
}

impl ObjectTypes {
    /// Types that a profile has of each runtime: the largest, and as many of those that grew most.
    pub const TYPES_MAX: usize = 256;
    /// Number of types that grew, of the ones that a profile has.
    const GROWN_MAX: usize = 64;

    /// Whether types have all blocks that were allocated, each in its own type.
    pub fn is_exact(&self) -> bool {
        self.one_of == 1 && self.unread == HeapBlocks::default()
    }

    /// Bytes of all objects and their tables.
    pub fn typed_bytes(&self) -> u64 {
        self.types.iter().map(ObjectType::all_bytes).fold(0, u64::saturating_add)
    }

    /// Sorts types, and makes one of those that have the same name.
    pub fn sort(&mut self) {
        let mut by_name: BTreeMap<Arc<str>, ObjectType> = BTreeMap::new();
        for one in std::mem::take(&mut self.types) {
            match by_name.get_mut(&one.name) {
                Some(known) => {
                    known.objects = known.objects.saturating_add(one.objects);
                    known.bytes = known.bytes.saturating_add(one.bytes);
                    known.large_bytes = known.large_bytes.saturating_add(one.large_bytes);
                    known.grown_objects = known.grown_objects.saturating_add(one.grown_objects);
                    known.grown_bytes = known.grown_bytes.saturating_add(one.grown_bytes);
                }
                None => {
                    by_name.insert(Arc::clone(&one.name), one);
                }
            }
        }
        self.types = by_name.into_values().collect();
        self.types.sort_by_key(|one| Reverse(one.all_bytes()));
    }

    /// Computes growths since an earlier count of the same runtime. Types that had objects then and have none now shrank.
    pub fn compare(&mut self, first: &Self) {
        let change = |now: u64, then: u64| now.cast_signed().saturating_sub(then.cast_signed());
        let mut before: BTreeMap<&Arc<str>, &ObjectType> = first.types.iter().map(|one| (&one.name, one)).collect();
        for one in &mut self.types {
            let then = before.remove(&one.name);
            one.grown_objects = change(one.objects, then.map_or(0, |then| then.objects));
            one.grown_bytes = change(one.all_bytes(), then.map_or(0, ObjectType::all_bytes));
        }
        self.types.extend(before.into_values().map(|then| ObjectType {
            objects: 0,
            bytes: 0,
            large_bytes: 0,
            grown_objects: change(0, then.objects),
            grown_bytes: change(0, then.all_bytes()),
            ..then.clone()
        }));
        self.since = Some(first.time);
    }

    /// Keeps the largest types and those that grew most.
    pub fn limit(&mut self) {
        if self.types.len() <= Self::TYPES_MAX {
            return;
        }
        let mut by_growth: Vec<&ObjectType> = self.types.iter().filter(|one| one.grown_bytes > 0).collect();
        by_growth.sort_by_key(|one| Reverse(one.grown_bytes));
        let mut kept: BTreeSet<Arc<str>> =
            by_growth.into_iter().take(Self::GROWN_MAX).map(|one| Arc::clone(&one.name)).collect();
        for one in &self.types {
            if kept.len() < Self::TYPES_MAX {
                kept.insert(Arc::clone(&one.name));
            }
        }
        let all = self.types.len();
        self.types.retain(|one| kept.contains(&one.name));
        self.more_types = self.more_types.saturating_add((all - self.types.len()) as u64);
    }

    /// Limits what is taken from a file.
    pub(super) fn bound(&mut self) {
        self.types.truncate(Self::TYPES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, objects: u64, bytes: u64) -> ObjectType {
        ObjectType { name: name.into(), objects, bytes, large_bytes: 0, grown_objects: 0, grown_bytes: 0 }
    }

    fn counted(seconds: u64, types: Vec<ObjectType>) -> ObjectTypes {
        let none = HeapBlocks::default();
        let mut counted = ObjectTypes {
            language: Language::Python,
            time: MonotonicNanos(seconds * 1_000_000_000),
            since: None,
            types,
            more_types: 0,
            blocks: none,
            other: none,
            unread: none,
            reserved_bytes: 0,
            one_of: 1,
        };
        counted.sort();
        counted
    }

    fn rows(counted: &ObjectTypes) -> Vec<(&str, u64, i64, i64)> {
        counted.types.iter().map(|it| (&*it.name, it.objects, it.grown_objects, it.grown_bytes)).collect()
    }

    #[test]
    fn types_with_one_name_are_one_row() {
        let all = counted(1, vec![one("a.Row", 1, 10), one("dict", 2, 100), one("a.Row", 3, 200)]);
        assert_eq!(rows(&all), [("a.Row", 4, 0, 0), ("dict", 2, 0, 0)]);
    }

    #[test]
    fn growth_is_relative_to_the_first_count() {
        let first = counted(1, vec![one("dict", 5, 500), one("gone", 7, 70)]);
        let mut last = counted(9, vec![one("dict", 4, 450), one("new", 2, 20)]);
        last.compare(&first);
        assert_eq!(rows(&last), [("dict", 4, -1, -50), ("new", 2, 2, 20), ("gone", 0, -7, -70)]);
        assert_eq!(last.since, Some(first.time));
    }

    #[test]
    fn the_largest_and_those_that_grew_most_are_kept() {
        let all = (0..1000).map(|number| one(&format!("type{number:04}"), 1, 10_000 - number));
        let first = counted(1, all.clone().collect());
        let mut last = counted(2, all.chain([one("leak", 3, 1)]).collect());
        last.compare(&first);
        last.limit();
        assert_eq!(last.types.len(), ObjectTypes::TYPES_MAX);
        assert_eq!((last.more_types, rows(&last).last()), (1001 - 256, Some(&("leak", 3, 3, 1))));
        assert!(rows(&last)[..255].is_sorted());
    }
}
