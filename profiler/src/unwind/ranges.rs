//! Hands out stretches of a map that is one flat array. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// Free stretches of an array, first fit.
#[derive(Clone, Debug)]
pub(crate) struct Ranges {
    #[cfg(test)]
    capacity: u32,
    /// Start and length; never adjacent, never empty.
    free: BTreeMap<u32, u32>,
}

impl Ranges {
    /// All of an array of `capacity` elements.
    pub(crate) fn new(capacity: u32) -> Self {
        let free = if capacity == 0 { BTreeMap::new() } else { BTreeMap::from([(0, capacity)]) };
        Self {
            #[cfg(test)]
            capacity,
            free,
        }
    }

    /// Takes `length` elements that lie together; `None` when there is no such stretch.
    pub(crate) fn take(&mut self, length: u32) -> Option<Range<u32>> {
        if length == 0 {
            return Some(0..0);
        }
        let (start, free) = self.free.iter().find(|(_, free)| **free >= length).map(|(start, free)| (*start, *free))?;
        self.free.remove(&start);
        if free > length {
            self.free.insert(start + length, free - length);
        }
        Some(start..start + length)
    }

    /// Gives back what [`take`](Self::take) gave.
    pub(crate) fn give_back(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }

    /// Elements that are taken.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u32 {
        self.capacity - self.free.values().sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_array_has_no_more() {
        let mut ranges = Ranges::new(10);
        assert_eq!(ranges.take(6), Some(0..6));
        assert_eq!(ranges.take(5), None);
        assert_eq!(ranges.take(4), Some(6..10));
        assert_eq!(ranges.take(1), None);
        ranges.give_back(0..6);
        assert_eq!(ranges.take(6), Some(0..6));
    }

    proptest! {
        /// What is taken never overlaps, and when all is given back the whole array can be had at once.
        #[test]
        fn taken_ranges_are_disjoint(operations in proptest::collection::vec((1u32..40, any::<bool>()), 1..200)) {
            let mut ranges = Ranges::new(256);
            let mut taken: Vec<Range<u32>> = Vec::new();
            for (length, give_back) in operations {
                if give_back && !taken.is_empty() {
                    let range = taken.swap_remove(length as usize % taken.len());
                    ranges.give_back(range);
                } else if let Some(range) = ranges.take(length) {
                    prop_assert!(range.end <= 256);
                    prop_assert!(taken.iter().all(|other| other.end <= range.start || range.end <= other.start));
                    taken.push(range);
                }
                prop_assert_eq!(ranges.used(), taken.iter().map(|range| range.end - range.start).sum::<u32>());
            }
            taken.into_iter().for_each(|range| ranges.give_back(range));
            prop_assert_eq!(ranges.take(256), Some(0..256));
        }
    }
}
