//! Buckets of a heap profile (`bucket`, `memRecord` and `memRecordCycle` in Go's `runtime/mprof.go`, 1.18 to 1.27).
//!
//! A bucket is six words (`next`, `allnext`, the kind, the hash, the size of its blocks, the depth of its stack), then its stack, then the
//! numbers: those of the published profile, and of three cycles of garbage collection that are to be added to it. The newest numbers are the
//! sum of all four. `mbuckets` points to the newest bucket, and `allnext` to the one before.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::error::GoHeapError;
use super::memory::Memory;

const HEADER_WORDS: usize = 6;
/// `maxProfStackDepth` of Go 1.24; before, 32.
const DEPTH_MAX: u64 = 1024;
/// Real programs have some thousand.
const BUCKETS_MAX: usize = 1 << 17;
/// Of all stacks together: 16 MiB, 16 frames in each of the most buckets.
const STACK_WORDS_MAX: usize = 1 << 21;
/// `memProfile` of `bucketType`.
const KIND: u64 = 1;
/// The published numbers, and three cycles.
const CYCLES: usize = 4;
/// Records that are this close are read together, and so much at once.
const GAP_BYTES: u64 = 4096;
const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// The runtime changes the numbers while they are read. These are believed when two readings agree.
const READINGS_MAX: usize = 4;
const MINORS: std::ops::RangeInclusive<u32> = 18..=27;
/// Since then, a cycle has no sums of bytes.
const MINOR_WITHOUT_BYTES: u32 = 27;

/// What depends on the version of Go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    version: Arc<str>,
    /// Whether a cycle has, behind the numbers of allocated and freed blocks, their sums of bytes.
    has_bytes: bool,
}

impl Layout {
    /// The layout of a version such as `go1.22.3`; `None` of unknown ones.
    pub(super) fn of(version: &str) -> Option<Self> {
        let digits: String = version.strip_prefix("go1.")?.chars().take_while(char::is_ascii_digit).collect();
        let minor = digits.parse().ok().filter(|minor| MINORS.contains(minor))?;
        Some(Self { version: version.into(), has_bytes: minor < MINOR_WITHOUT_BYTES })
    }

    fn cycle_words(&self) -> usize {
        if self.has_bytes { 4 } else { 2 }
    }

    fn record_bytes(&self) -> usize {
        CYCLES * self.cycle_words() * 8
    }

    /// The newest numbers of a record; `None` if it is not one of blocks of this size.
    fn counts(&self, record: &[u8], size: u64) -> Option<Counts> {
        let words: Vec<u64> = record.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut counts = Counts::default();
        for cycle in words.chunks_exact(self.cycle_words()).take(CYCLES) {
            let [allocs, frees] = [cycle[0], cycle[1]];
            if self.has_bytes && [allocs, frees].map(|count| count.wrapping_mul(size)) != [cycle[2], cycle[3]] {
                return None;
            }
            counts.allocs = counts.allocs.checked_add(allocs)?;
            counts.frees = counts.frees.checked_add(frees)?;
        }
        Some(counts)
    }
}

/// Sampled blocks of a bucket since the start of the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    allocs: u64,
    frees: u64,
}

/// What has happened to the sampled blocks of a bucket since the last reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Number of the bucket.
    pub(crate) bucket: usize,
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
}

#[derive(Debug)]
struct Bucket {
    /// Address of its numbers.
    record: u64,
    size_bytes: u64,
    stack: Box<[u64]>,
    /// As of the last reading.
    counts: Counts,
}

/// The buckets of a process that are known.
#[derive(Debug)]
pub(super) struct Buckets {
    layout: Layout,
    known: Vec<Bucket>,
    /// Address of the newest known one.
    newest: u64,
    /// Numbers of all, by the address of their record.
    order: Vec<usize>,
    /// Length of all stacks.
    stack_words: usize,
    /// Whether the numbers of any have been as they must be.
    is_verified: bool,
}

impl Buckets {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, known: Vec::new(), newest: 0, order: Vec::new(), stack_words: 0, is_verified: false }
    }

    pub(super) fn stack(&self, bucket: usize) -> &[u64] {
        &self.known[bucket].stack
    }

    pub(super) fn size_bytes(&self, bucket: usize) -> u64 {
        self.known[bucket].size_bytes
    }

    /// Reads all buckets, of which `head` is the newest. Numbers that change while they are read are left for the next time.
    pub(super) fn read(&mut self, memory: &impl Memory, head: u64) -> Result<Vec<Change>, GoHeapError> {
        self.find_new(memory, head)?;
        let mut changes = Vec::new();
        let mut has_read = false;
        for window in self.windows() {
            for (bucket, counts) in self.read_window(memory, &window)? {
                has_read = true;
                let known = &mut self.known[bucket].counts;
                // Numbers that were added and not cleared yet when they were read last are less now.
                let change = Change {
                    bucket,
                    allocs: counts.allocs.saturating_sub(known.allocs),
                    frees: counts.frees.saturating_sub(known.frees),
                };
                known.allocs += change.allocs;
                known.frees += change.frees;
                if change.allocs > 0 || change.frees > 0 {
                    changes.push(change);
                }
            }
        }
        self.is_verified |= has_read;
        if !self.is_verified && !self.known.is_empty() {
            return Err(self.not_a_profile());
        }
        Ok(changes)
    }

    fn not_a_profile(&self) -> GoHeapError {
        GoHeapError::Structure(self.layout.version.to_string())
    }

    /// Adds the buckets that are newer than the known ones.
    fn find_new(&mut self, memory: &impl Memory, head: u64) -> Result<(), GoHeapError> {
        let mut found = Vec::new();
        let mut seen = FxHashSet::default();
        let mut at = head;
        while at != 0 && at != self.newest {
            if self.known.len() + found.len() >= BUCKETS_MAX || !seen.insert(at) {
                return Err(self.not_a_profile());
            }
            let (bucket, before) = self.bucket(memory, at)?;
            self.stack_words += bucket.stack.len();
            if self.stack_words > STACK_WORDS_MAX {
                return Err(self.not_a_profile());
            }
            found.push(bucket);
            at = before;
        }
        if at != self.newest {
            // The list has lost the known ones, which the runtime never does.
            return Err(self.not_a_profile());
        }
        if !found.is_empty() {
            self.newest = head;
            self.known.extend(found.into_iter().rev());
            self.order = (0..self.known.len()).collect();
            self.order.sort_unstable_by_key(|&bucket| self.known[bucket].record);
        }
        Ok(())
    }

    /// Reads the constant part of a bucket. Returns it with the address of the one before.
    fn bucket(&self, memory: &impl Memory, address: u64) -> Result<(Bucket, u64), GoHeapError> {
        /// Of a stack that is read with the header.
        const WORDS: usize = HEADER_WORDS + 32;
        let mut bytes = [0; WORDS * 8];
        let read = memory.read(address, &mut bytes)?;
        let words: Vec<u64> = bytes[..read].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let &[_, before, kind, hash, size_bytes, depth, ref stack @ ..] = words.as_slice() else {
            return Err(self.not_a_profile());
        };
        if kind != KIND || depth > DEPTH_MAX {
            return Err(self.not_a_profile());
        }
        let depth = usize::try_from(depth).unwrap_or(usize::MAX);
        let stack: Box<[u64]> = match stack.get(..depth) {
            Some(stack) => stack.into(),
            None => {
                let mut bytes = vec![0; depth * 8];
                if memory.read(address.wrapping_add(HEADER_WORDS as u64 * 8), &mut bytes)? < bytes.len() {
                    return Err(self.not_a_profile());
                }
                bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
            }
        };
        if hash != hash_of(&stack, size_bytes) {
            return Err(self.not_a_profile());
        }
        let record = address.wrapping_add(((HEADER_WORDS + depth) * 8) as u64);
        Ok((Bucket { record, size_bytes, stack, counts: Counts::default() }, before))
    }

    /// Ranges of `order` whose records are read together.
    fn windows(&self) -> Vec<std::ops::Range<usize>> {
        let mut windows: Vec<std::ops::Range<usize>> = Vec::new();
        let record = |at: usize| self.known[self.order[at]].record;
        for at in 0..self.order.len() {
            let fits = |window: &&mut std::ops::Range<usize>| {
                record(at) - record(window.end - 1) <= GAP_BYTES && record(at) - record(window.start) < WINDOW_BYTES_MAX
            };
            match windows.last_mut().filter(fits) {
                Some(window) => window.end = at + 1,
                None => windows.push(at..at + 1),
            }
        }
        windows
    }

    /// The numbers of the buckets of a window on which two readings agree.
    fn read_window(
        &self,
        memory: &impl Memory,
        window: &std::ops::Range<usize>,
    ) -> Result<Vec<(usize, Counts)>, GoHeapError> {
        let buckets = &self.order[window.clone()];
        let start = self.known[buckets[0]].record;
        let record_bytes = self.layout.record_bytes();
        let span = self.known[buckets[buckets.len() - 1]].record - start;
        let mut bytes = vec![0; usize::try_from(span).unwrap_or(usize::MAX) + record_bytes];
        let mut settled: Vec<Option<Counts>> = vec![None; buckets.len()];
        let mut last: Vec<Option<Counts>> = settled.clone();
        for _ in 0..READINGS_MAX {
            if memory.read(start, &mut bytes)? < bytes.len() {
                return Err(self.not_a_profile());
            }
            for (place, &bucket) in
                buckets.iter().enumerate().filter(|(place, _)| settled[*place].is_none()).collect::<Vec<_>>()
            {
                let Bucket { record, size_bytes, .. } = self.known[bucket];
                let at = usize::try_from(record - start).unwrap_or(usize::MAX);
                let counts = self.layout.counts(&bytes[at..at + record_bytes], size_bytes);
                if counts.is_some() && counts == last[place] {
                    settled[place] = counts;
                }
                last[place] = counts;
            }
            if settled.iter().all(Option::is_some) {
                break;
            }
        }
        Ok(buckets.iter().zip(settled).filter_map(|(&bucket, counts)| Some((bucket, counts?))).collect())
    }
}

/// The hash of a bucket (`stkbucket`).
fn hash_of(stack: &[u64], size_bytes: u64) -> u64 {
    let add = |hash: u64, value: u64| {
        let hash = hash.wrapping_add(value);
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    };
    let hash = stack.iter().chain([&size_bytes]).fold(0, |hash, &value| add(hash, value));
    let hash = hash.wrapping_add(hash << 3);
    hash ^ hash >> 11
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use proptest::prelude::*;

    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;
    const END: usize = 1 << 14;

    /// Memory from an address on, which may change between two readings.
    struct Made {
        bytes: RefCell<Vec<u8>>,
        /// Changes of bytes before each of the next readings.
        changes: RefCell<Vec<(u64, u64)>>,
    }

    impl Memory for Made {
        fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<usize> {
            if let Some((at, word)) = self.changes.borrow_mut().pop() {
                self.write(at, &[word]);
            }
            let bytes = self.bytes.borrow();
            let at = address.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
            let rest = at.and_then(|at| bytes.get(at..)).ok_or(io::ErrorKind::InvalidInput)?;
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }
    }

    impl Made {
        fn new() -> Self {
            Self { bytes: RefCell::new(vec![0; END]), changes: RefCell::default() }
        }

        fn write(&self, address: u64, words: &[u64]) {
            let at = usize::try_from(address - BASE).expect("small");
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        }

        /// Writes a bucket whose numbers are those of four cycles. Returns the address of the numbers.
        fn bucket(
            &self,
            at: u64,
            before: u64,
            stack: &[u64],
            size: u64,
            cycles: [(u64, u64); 4],
            has_bytes: bool,
        ) -> u64 {
            let header = [0, before, KIND, hash_of(stack, size), size, stack.len() as u64];
            let numbers = cycles.iter().flat_map(|&(allocs, frees)| {
                let bytes = [allocs * size, frees * size];
                [allocs, frees].into_iter().chain(if has_bytes { bytes.to_vec() } else { Vec::new() })
            });
            let numbers: Vec<u64> = numbers.collect();
            self.write(at, &[&header, stack, &numbers].concat());
            at + ((HEADER_WORDS + stack.len()) * 8) as u64
        }
    }

    fn buckets(version: &str) -> Buckets {
        Buckets::new(Layout::of(version).expect("a known version"))
    }

    fn change(bucket: usize, allocs: u64, frees: u64) -> Change {
        Change { bucket, allocs, frees }
    }

    #[test]
    fn versions_that_are_not_known_have_no_layout() {
        let has_bytes = |version: &str| Layout::of(version).map(|layout| layout.has_bytes);
        assert_eq!(
            ["go1.18", "go1.26.6", "go1.27.3", "go1.27rc1"].map(has_bytes),
            [Some(true), Some(true), Some(false), Some(false)]
        );
        assert_eq!(["go1.17.1", "go1.28", "go2.0", "devel go1.28-abc", "go1.", ""].map(has_bytes), [None; 6]);
    }

    /// The hash that `go1.24.4` had stored for this stack and size.
    #[test]
    fn the_hash_is_that_of_the_runtime() {
        // h = 1; h += h << 10; h ^= h >> 6, twice, then the size, as `stkbucket` does it, by hand.
        let by_hand = |values: &[u64]| {
            let mut hash = 0_u64;
            for value in values {
                hash = hash.wrapping_add(*value);
                hash = hash.wrapping_add(hash.wrapping_shl(10));
                hash ^= hash.wrapping_shr(6);
            }
            hash = hash.wrapping_add(hash.wrapping_shl(3));
            hash ^ hash.wrapping_shr(11)
        };
        assert_eq!(hash_of(&[0x48_1234, 0x47_0001], 1024), by_hand(&[0x48_1234, 0x47_0001, 1024]));
    }

    #[test]
    fn numbers_are_the_sums_of_all_cycles_and_only_changes_are_reported() {
        for version in ["go1.22.1", "go1.27.0"] {
            let memory = Made::new();
            let has_bytes = version != "go1.27.0";
            let cycles = [(10, 4), (1, 0), (2, 1), (0, 0)];
            let first = BASE + 64;
            memory.bucket(first, 0, &[1, 2, 3], 48, cycles, has_bytes);
            let mut buckets = buckets(version);
            assert_eq!(buckets.read(&memory, first), Ok(vec![change(0, 13, 5)]));
            assert_eq!(buckets.read(&memory, first), Ok(vec![]));
            // A bucket with a deep stack, and a cycle that is published.
            let deep: Vec<u64> = (1..100).collect();
            let second = BASE + 4096;
            memory.bucket(first, 0, &[1, 2, 3], 48, [(13, 6), (0, 0), (3, 0), (0, 0)], has_bytes);
            memory.bucket(second, first, &deep, 16, [(0, 0), (0, 0), (7, 0), (0, 0)], has_bytes);
            assert_eq!(buckets.read(&memory, second), Ok(vec![change(0, 3, 1), change(1, 7, 0)]));
            assert_eq!((buckets.stack(1), buckets.size_bytes(1)), (&*deep, 16));
        }
    }

    #[test]
    fn numbers_that_change_while_they_are_read_are_believed_when_two_readings_agree() {
        let memory = Made::new();
        let first = BASE + 64;
        let record = memory.bucket(first, 0, &[1], 8, [(10, 0), (4, 0), (0, 0), (0, 0)], false);
        let mut buckets = buckets("go1.27.0");
        // Before the second reading of the numbers, a cycle is published; before the third, it is cleared.
        *memory.changes.borrow_mut() = vec![(record + 16, 0), (record, 14), (record, 10), (record, 10)];
        assert_eq!(buckets.read(&memory, first), Ok(vec![change(0, 14, 0)]));
    }

    /// The runtime may be preempted between the two.
    #[test]
    fn blocks_that_were_counted_twice_are_not_counted_again() {
        let memory = Made::new();
        let first = BASE + 64;
        memory.bucket(first, 0, &[1], 8, [(14, 0), (4, 0), (0, 0), (0, 0)], false);
        let mut buckets = buckets("go1.27.0");
        assert_eq!(buckets.read(&memory, first), Ok(vec![change(0, 18, 0)]));
        memory.bucket(first, 0, &[1], 8, [(14, 0), (2, 0), (0, 0), (0, 0)], false);
        assert_eq!(buckets.read(&memory, first), Ok(vec![]));
        memory.bucket(first, 0, &[1], 8, [(14, 0), (5, 0), (0, 0), (0, 0)], false);
        assert_eq!(buckets.read(&memory, first), Ok(vec![change(0, 1, 0)]));
    }

    #[test]
    fn what_is_no_bucket_is_refused() {
        let first = BASE + 64;
        let refused = |change: &dyn Fn(&Made)| {
            let memory = Made::new();
            memory.bucket(first, 0, &[1, 2, 3], 48, [(1, 0); 4], true);
            change(&memory);
            buckets("go1.22.1").read(&memory, first)
        };
        let structure = Err(GoHeapError::Structure("go1.22.1".to_owned()));
        assert!(refused(&|_| {}).is_ok());
        for (word, value) in [(1, first), (2, 2), (3, 1), (4, 49), (5, 2), (5, DEPTH_MAX + 1), (6, 7), (11, 49)] {
            assert_eq!(refused(&|memory| memory.write(first + word * 8, &[value])), structure, "{word}");
        }
        let memory = Made::new();
        let end = BASE + END as u64 - 40;
        assert_eq!(buckets("go1.22.1").read(&memory, end), structure, "it ends in the header");
        assert!(matches!(buckets("go1.22.1").read(&memory, 8), Err(GoHeapError::Memory(_))));
    }

    #[test]
    fn stacks_take_a_bounded_amount_of_memory() {
        let memory = Made::new();
        let first = BASE + 64;
        memory.bucket(first, 0, &[1; 10], 8, [(1, 0); 4], false);
        let mut buckets = buckets("go1.27.0");
        buckets.stack_words = STACK_WORDS_MAX - 9;
        assert_eq!(buckets.read(&memory, first), Err(GoHeapError::Structure("go1.27.0".to_owned())));
    }

    proptest! {
        #[test]
        fn any_memory_is_read_within_bounds(words in prop::collection::vec(prop_oneof![any::<u64>(), 0_u64..4, Just(BASE + 64)], 40)) {
            let memory = Made::new();
            memory.write(BASE + 64, &words);
            let _ = buckets("go1.24.0").read(&memory, BASE + 64);
        }
    }
}
