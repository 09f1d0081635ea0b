//! Batch operations on maps: one system call per element would take seconds for large tables.

#![expect(unsafe_code, reason = "aya 0.14 has no batch operations")]

use std::any::Any;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{io, slice};

use aya::Pod;
use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_map_type};
use memmap2::{MmapOptions, MmapRaw};

use crate::bpf::{attributes, command, number, owned};

/// Maximum number of elements per system call: bounds the key buffer, and the time of one call.
pub const BATCH: usize = 65_536;

/// Creates an array map of one word of 4 bytes, which is 0.
pub(crate) fn create_word() -> io::Result<OwnedFd> {
    let mut attr = attributes();
    // SAFETY: a structure of integers.
    let create = unsafe { &mut attr.__bindgen_anon_1 };
    (create.map_type, create.key_size) = (bpf_map_type::BPF_MAP_TYPE_ARRAY as u32, 4);
    (create.value_size, create.max_entries) = (4, 1);
    // SAFETY: `attr` contains no pointers, and the command returns a new descriptor.
    unsafe { command(bpf_cmd::BPF_MAP_CREATE, &mut attr).and_then(|result| owned(result)) }
}

/// Writes the word of a map that [`create_word`] created.
pub(crate) fn write_word(map: impl AsFd, word: u32) -> io::Result<()> {
    let index = 0_u32;
    let mut attr = attributes();
    attr.__bindgen_anon_2.map_fd = number(&map);
    attr.__bindgen_anon_2.key = (&raw const index) as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = (&raw const word) as u64;
    // SAFETY: `index` and `word` outlive the call and have the sizes of the map.
    unsafe { command(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
}

struct Incomplete {
    done: usize,
    error: io::Error,
}

/// Runs a command on elements of a map; empty `values` stand for no values.
fn batch<K: Pod, V: Pod>(what: bpf_cmd, map: &impl AsFd, keys: &[K], values: &[V]) -> Result<(), Incomplete> {
    let unusable = |errno| Incomplete { done: 0, error: io::Error::from_raw_os_error(errno) };
    if !values.is_empty() && values.len() != keys.len() {
        return Err(unusable(libc::EINVAL));
    }
    let count = u32::try_from(keys.len()).map_err(|_| unusable(libc::E2BIG))?;
    let values = if values.is_empty() { std::ptr::null() } else { values.as_ptr() };
    let mut attr = batch_attributes(map, keys.as_ptr(), values, count);
    // SAFETY: `keys`, and `values` if any, have `count` elements and outlive the call; the callers guarantee the map's
    // sizes. The kernel reads them and writes `count` back. `Pod` guarantees that they have no padding to leak.
    let result = unsafe { command(what, &mut attr) };
    // SAFETY: an integer.
    let done = unsafe { attr.batch.count };
    // A kernel that refuses the command itself leaves the count at its maximum.
    result.map(drop).map_err(|error| Incomplete { done: if done < count { done as usize } else { 0 }, error })
}

/// Arguments of the batch commands (Linux 5.6).
fn batch_attributes<K, V>(map: &impl AsFd, keys: *const K, values: *const V, count: u32) -> bpf_attr {
    let mut attr = attributes();
    attr.batch.keys = keys as u64;
    attr.batch.values = values as u64;
    attr.batch.count = count;
    attr.batch.map_fd = number(&map);
    attr
}

/// A value of an array map whose type only its maker knows. Equal ones have the same type and content.
pub trait ArrayValue: Any + Debug + Send + Sync {
    fn write(&self, map: BorrowedFd<'_>, index: u32) -> io::Result<()>;

    fn equals(&self, other: &dyn ArrayValue) -> bool;

    fn hash(&self, state: &mut dyn Hasher);
}

impl<V: Pod + Debug + Eq + Hash + Send + Sync> ArrayValue for V {
    fn write(&self, map: BorrowedFd<'_>, index: u32) -> io::Result<()> {
        write_array(map, index, slice::from_ref(self))
    }

    fn equals(&self, other: &dyn ArrayValue) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref() == Some(self)
    }

    fn hash(&self, mut state: &mut dyn Hasher) {
        Hash::hash(self, &mut state);
    }
}

/// Writes elements of an array map, from index `first` on. Errors: `E2BIG` when an index is beyond the map, `ENOTSUPP` (524)
/// before Linux 5.6.
pub fn write_array<V: Pod>(map: impl AsFd, first: u32, values: &[V]) -> io::Result<()> {
    let mut next = first;
    for chunk in values.chunks(BATCH) {
        let count = u32::try_from(chunk.len()).map_err(io::Error::other)?;
        let end = next.checked_add(count).ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
        let keys: Vec<u32> = (next..end).collect();
        batch(bpf_cmd::BPF_MAP_UPDATE_BATCH, &map, &keys, chunk).map_err(|incomplete| incomplete.error)?;
        next = end;
    }
    Ok(())
}

/// Reads an element of an array map. `V` must have the size of its values.
pub fn read_array<V: Pod>(map: impl AsFd, index: u32) -> io::Result<V> {
    let mut value = std::mem::MaybeUninit::<V>::uninit();
    let mut attr = attributes();
    attr.__bindgen_anon_2.map_fd = number(&map);
    attr.__bindgen_anon_2.key = (&raw const index) as u64;
    attr.__bindgen_anon_2.__bindgen_anon_1.value = value.as_mut_ptr() as u64;
    // SAFETY: `index` and `value` outlive the call, and the caller guarantees the map's sizes.
    unsafe { command(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attr)? };
    // SAFETY: the kernel has written it, and `Pod` guarantees that any bytes are a value.
    Ok(unsafe { value.assume_init() })
}

/// Replaces existing elements of a hash map. Returns how many fit: the first so many. Errors: `ENOTSUPP` (524) before Linux 5.6.
pub fn write_hash<K: Pod, V: Pod>(map: impl AsFd, keys: &[K], values: &[V]) -> io::Result<usize> {
    if keys.len() != values.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut written = 0;
    for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
        match batch(bpf_cmd::BPF_MAP_UPDATE_BATCH, &map, keys, values) {
            Ok(()) => written += keys.len(),
            Err(Incomplete { done, error }) => {
                let full = matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM));
                return if full { Ok(written + done) } else { Err(error) };
            }
        }
    }
    Ok(written)
}

/// Removes elements of a hash map. Passes the keys that existed to `removed`, in parts. Errors: `ENOTSUPP` (524) before Linux
/// 5.6; some may be removed.
pub fn remove_hash<K: Pod>(map: impl AsFd, keys: &[K], mut removed: impl FnMut(&[K])) -> io::Result<()> {
    for mut chunk in keys.chunks(BATCH) {
        while !chunk.is_empty() {
            match batch::<K, u8>(bpf_cmd::BPF_MAP_DELETE_BATCH, &map, chunk, &[]) {
                Ok(()) => {
                    removed(chunk);
                    break;
                }
                // The kernel stops at the first missing element.
                Err(Incomplete { done, error }) if error.raw_os_error() == Some(libc::ENOENT) => {
                    removed(&chunk[..done]);
                    chunk = &chunk[done + 1..];
                }
                Err(Incomplete { error, .. }) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Number of elements that are read at a time: buckets are read as a whole, and few have more than a handful.
const READ_BATCH: usize = 8192;

/// Passes all elements of a hash map to `found`, in parts. Elements that are added or removed concurrently may be missing; all
/// others are passed exactly once. Errors: `ENOTSUPP` (524) before Linux 5.6.
pub fn read_hash<K: Pod, V: Pod>(map: impl AsFd, mut found: impl FnMut(&[K], &[V])) -> io::Result<()> {
    let (mut keys, mut values) = (Vec::<K>::with_capacity(READ_BATCH), Vec::<V>::with_capacity(READ_BATCH));
    // Where the kernel continues: a bucket number, in a buffer with room for a key, as its documentation requires.
    let mut cursor = [0u8; 64];
    let mut is_first = true;
    if size_of::<K>() > cursor.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    loop {
        let count = u32::try_from(keys.capacity().min(values.capacity())).map_err(io::Error::other)?;
        let mut attr = batch_attributes(&map, keys.as_mut_ptr(), values.as_mut_ptr(), count);
        attr.batch.in_batch = if is_first { 0 } else { cursor.as_ptr() as u64 };
        attr.batch.out_batch = cursor.as_mut_ptr() as u64;
        // SAFETY: `keys` and `values` have room for `count` elements, `cursor` for the kernel's position, and all
        // outlive the call; the callers guarantee the map's sizes. The kernel reads the cursor before it writes it.
        let result = unsafe { command(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attr) };
        let error = result.err().and_then(|error| error.raw_os_error());
        match error {
            // The last elements arrive with an error.
            None | Some(libc::ENOENT) => {}
            // The first non-empty bucket has more elements than fit, and nothing was read (kernel/bpf/hashtab.c,
            // `__htab_map_lookup_and_delete_batch`). Other such buckets are left to the next call, without an error.
            Some(libc::ENOSPC) => {
                keys.reserve(keys.capacity() * 2);
                values.reserve(values.capacity() * 2);
                continue;
            }
            Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
        // SAFETY: an integer.
        let length = unsafe { attr.batch.count }.min(count) as usize;
        // SAFETY: the kernel has written so many, and `Pod` guarantees that any bytes are an element.
        unsafe {
            keys.set_len(length);
            values.set_len(length);
        }
        found(&keys, &values);
        keys.clear();
        values.clear();
        if error == Some(libc::ENOENT) {
            return Ok(());
        }
        is_first = false;
    }
}

pub struct RingPositions(MmapRaw);

impl RingPositions {
    pub fn new(ring: impl AsFd) -> io::Result<Self> {
        // The second page is read-only.
        Ok(Self(MmapOptions::new().len(2 * rustix::param::page_size()).map_raw_read_only(ring.as_fd().as_raw_fd())?))
    }

    /// Number of bytes that were written, including headers, and not read.
    pub fn unread_bytes(&self) -> u64 {
        let read = self.read_bytes();
        self.written_bytes().saturating_sub(read)
    }

    /// Number of bytes that were read since the start.
    pub fn read_bytes(&self) -> u64 {
        self.position(0)
    }

    /// Number of bytes that were written since the start.
    pub fn written_bytes(&self) -> u64 {
        self.position(1)
    }

    fn position(&self, page: usize) -> u64 {
        assert!(page < 2, "only two pages are mapped");
        let offset = page * rustix::param::page_size();
        // SAFETY: the page is mapped and begins with a word that is written atomically (`struct bpf_ringbuf` in
        // kernel/bpf/ringbuf.c: the consumer's position, then the producers').
        let position = unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().byte_add(offset).cast::<u64>()) };
        position.load(Ordering::Acquire)
    }
}

fn shared(map: impl AsFd, offset: usize, length: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().offset(offset as u64).len(length).map_raw(map.as_fd().as_raw_fd())
}

/// Writes elements of an array map with `BPF_F_MMAPABLE` (Linux 5.5) through its memory. Concurrent readers may see a part.
/// Errors, with nothing written: `EINVAL` without the flag or beyond the map's last page, `ENOTSUPP` (524) where it is no array.
pub fn write_mapped<V: Pod>(map: impl AsFd, first: u32, values: &[V]) -> io::Result<()> {
    // The kernel rounds elements up to 8 bytes; values of another size would not be adjacent.
    const { assert!(size_of::<V>().is_multiple_of(8) && align_of::<V>() <= 8) };
    if values.is_empty() {
        return Ok(());
    }
    let too_far = || io::Error::from_raw_os_error(libc::EINVAL);
    let begin = (first as usize).checked_mul(size_of::<V>()).ok_or_else(too_far)?;
    let offset = begin - begin % rustix::param::page_size();
    let length = (begin - offset).checked_add(size_of_val(values)).ok_or_else(too_far)?;
    let mapped = shared(map, offset, length)?;
    // SAFETY: the mapping has `length` bytes, of which the last `size_of_val(values)` begin here; they are aligned to
    // 8, because the mapping begins at a page and elements are multiples of 8. The kernel side reads words of 8 bytes
    // and accepts any value. `Pod` guarantees that the values have no padding to leak.
    unsafe {
        let destination = mapped.as_mut_ptr().byte_add(begin - offset).cast::<V>();
        std::ptr::copy_nonoverlapping(values.as_ptr(), destination, values.len());
    }
    Ok(())
}

/// An array map of words in which the kernel side counts concurrently, with atomic instructions.
#[derive(Debug)]
pub struct SharedWords {
    mapped: MmapRaw,
    count: usize,
}

impl SharedWords {
    /// Maps the first `count` words of an array map with `BPF_F_MMAPABLE` (Linux 5.5). Errors are those of [`write_mapped`].
    pub fn new(map: impl AsFd, count: u32) -> io::Result<Self> {
        let count = count as usize;
        let length = count.checked_mul(size_of::<u64>()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(Self { mapped: shared(map, 0, length)?, count })
    }

    /// Sum of all words' upper bits, from `shift` on. May or may not include concurrent changes.
    pub fn sum_above(&self, shift: u32) -> u64 {
        // SAFETY: `count` words are mapped, as long as this lives, and other writers write atomically, as in `add`.
        let words = unsafe { std::slice::from_raw_parts(self.mapped.as_mut_ptr().cast::<AtomicU64>(), self.count) };
        words.iter().map(|word| word.load(Ordering::Relaxed) >> shift).fold(0, u64::wrapping_add)
    }

    /// Adds to a word, wrapping around. Ignores indexes beyond the last.
    pub fn add(&self, index: u32, change: i64) {
        let index = index as usize;
        if index < self.count {
            // SAFETY: within the mapping, which lives as long as this and is aligned to a page; all other writers write
            // atomically.
            let word = unsafe { AtomicU64::from_ptr(self.mapped.as_mut_ptr().cast::<u64>().add(index)) };
            word.fetch_add(change.cast_unsigned(), Ordering::SeqCst);
        }
    }

    /// Sets a word to 0 if it has this value. Ignores indexes beyond the last.
    pub fn clear(&self, index: u32, value: u64) {
        let index = index as usize;
        if index < self.count {
            // SAFETY: as in `add`; other writers store whole words.
            let word = unsafe { AtomicU64::from_ptr(self.mapped.as_mut_ptr().cast::<u64>().add(index)) };
            let _ = word.compare_exchange(value, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    const BPF_MAP_CREATE: libc::c_long = 0;
    const BPF_MAP_TYPE_HASH: u32 = 1;
    const BPF_F_NO_PREALLOC: u32 = 1;

    /// A hash map of `entries` pairs of 8 bytes each.
    fn hash(entries: u32) -> OwnedFd {
        let attr: [u32; 5] = [BPF_MAP_TYPE_HASH, 8, 8, entries, BPF_F_NO_PREALLOC];
        // SAFETY: type, key size, value size, entries and flags are the first fields of the command and all that it
        // needs.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
        let fd = i32::try_from(fd).expect("descriptors are small");
        assert!(fd >= 0, "no map: {}; run as root", io::Error::last_os_error());
        // SAFETY: a new descriptor without another owner.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn keys(range: std::ops::Range<u64>) -> Vec<u64> {
        range.collect()
    }

    /// Removes elements and returns how many existed.
    fn remove_all(map: &impl AsFd, keys: &[u64]) -> usize {
        let mut all = Vec::new();
        remove_hash(map, keys, |removed| all.extend_from_slice(removed)).expect("a hash map");
        assert!(all.iter().all(|key| keys.contains(key)));
        all.len()
    }

    #[test]
    fn written_elements_are_removed_once() {
        let map = hash(200_000);
        let all = keys(0..150_000);
        assert_eq!(write_hash(&map, &all, &all).expect("they fit"), 150_000);
        assert_eq!(write_hash(&map, &all, &all).expect("replaced"), 150_000);
        // Existing and missing keys alternate, with a missing one at both ends.
        let some = [200_000u64, 0, 1, 200_001, 200_002, 149_999, 200_003];
        let mut removed = Vec::new();
        remove_hash(&map, &some, |keys| removed.extend_from_slice(keys)).expect("a hash map");
        assert_eq!(removed, [0, 1, 149_999]);
        let mut count = 0;
        remove_hash(&map, &some, |keys| count += keys.len()).expect("a hash map");
        assert_eq!(count, 0);
        remove_hash(&map, &all, |keys| count += keys.len()).expect("a hash map");
        assert_eq!(count, 149_997);
    }

    #[test]
    fn a_full_map_takes_as_many_elements_as_fit() {
        let map = hash(1000);
        let all = keys(0..3000);
        let written = write_hash(&map, &all, &all).expect("a full map is no error");
        assert_eq!(written, 1000);
        assert_eq!(remove_all(&map, &all[..written]), written, "the reported ones");
        assert_eq!(remove_all(&map, &all), 0, "no others");
    }

    #[test]
    fn every_element_is_read_once() {
        for (entries, written) in [(1, 0), (1, 1), (10, 3), (200_000, 150_000), (30_000, 30_000)] {
            let map = hash(entries);
            let all = keys(0..written);
            let doubled: Vec<u64> = all.iter().map(|key| key * 2).collect();
            write_hash(&map, &all, &doubled).expect("they fit");
            let mut found = Vec::new();
            read_hash(&map, |keys: &[u64], values: &[u64]| {
                found.extend(keys.iter().copied().zip(values.iter().copied()))
            })
            .expect("a hash map");
            found.sort_unstable();
            assert_eq!(found, all.into_iter().zip(doubled).collect::<Vec<_>>(), "{written} of {entries}");
        }
    }

    #[test]
    fn a_refused_command_is_an_error() {
        let not_a_map = std::fs::File::open("/").expect("readable");
        assert!(write_hash(&not_a_map, &[1u64], &[1u64]).is_err());
        assert!(remove_hash(&not_a_map, &[1u64], |_| ()).is_err());
        assert!(read_hash(&not_a_map, |_: &[u64], _: &[u64]| ()).is_err());
        assert!(write_hash(hash(1), &[1u64], &[] as &[u64]).is_err());
    }
}

#[cfg(test)]
mod map_memory_tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    const BPF_MAP_CREATE: libc::c_long = 0;
    const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
    const BPF_MAP_TYPE_ARRAY: u32 = 2;
    const BPF_F_MMAPABLE: u32 = 1 << 10;

    /// An array of 1000 values of 8 bytes.
    fn array(flags: u32) -> OwnedFd {
        let attr: [u32; 5] = [BPF_MAP_TYPE_ARRAY, 4, 8, 1000, flags];
        // SAFETY: type, key size, value size, entries and flags are the first fields of the command and all that it
        // needs.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
        let fd = i32::try_from(fd).expect("descriptors are small");
        assert!(fd >= 0, "no map: {}; run as root", io::Error::last_os_error());
        // SAFETY: a new descriptor without another owner.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn value(map: &OwnedFd, key: u32) -> u64 {
        let value = 0_u64;
        let attr: [u64; 4] =
            [u64::from(map.as_raw_fd().unsigned_abs()), &raw const key as u64, &raw const value as u64, 0];
        // SAFETY: descriptor, key, value and flags; both outlive the call and have the map's sizes.
        let result = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_ELEM, attr.as_ptr(), size_of_val(&attr)) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        // SAFETY: a local variable.
        unsafe { std::ptr::read_volatile(&raw const value) }
    }

    #[test]
    fn only_the_given_elements_are_written() {
        let map = array(BPF_F_MMAPABLE);
        // Crosses a page, which holds 512 elements.
        let values: Vec<u64> = (1..=600).collect();
        write_mapped(&map, 200, &values).expect("the map allows it");
        let read = [0, 199, 200, 511, 512, 799, 800, 999].map(|key| value(&map, key));
        assert_eq!(read, [0, 0, 1, 312, 313, 600, 0, 0]);
        write_mapped::<u64>(&map, 5, &[]).expect("an empty write succeeds");
        write_array(&map, 999, &[7_u64]).expect("system calls still work");
        assert_eq!(value(&map, 999), 7);
    }

    #[test]
    fn counts_are_shared() {
        let map = array(BPF_F_MMAPABLE);
        let (counts, others) = (SharedWords::new(&map, 1000).expect("mappable"), SharedWords::new(&map, 1000));
        counts.add(999, 5);
        others.expect("mappable twice").add(999, -2);
        counts.add(1000, 1);
        counts.add(500, 7);
        counts.clear(500, 8);
        assert_eq!(value(&map, 500), 7);
        counts.clear(500, 7);
        counts.clear(1000, 1);
        assert_eq!(value(&map, 500), 0);
        assert_eq!([0, 998, 999].map(|key| value(&map, key)), [0, 0, 3]);
        assert!(SharedWords::new(array(0), 1000).is_err(), "no flag");
    }

    #[test]
    fn a_map_that_cannot_be_mapped_is_not_changed() {
        let plain = array(0);
        assert_eq!(write_mapped(&plain, 0, &[1_u64]).expect_err("no flag").raw_os_error(), Some(libc::EINVAL));
        assert_eq!(value(&plain, 0), 0);
        let map = array(BPF_F_MMAPABLE);
        let error = write_mapped(&map, 900, &[1_u64; 600]).expect_err("ends beyond the map's last page");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(value(&map, 900), 0);
        assert!(write_mapped(&map, u32::MAX, &[1_u64]).is_err());
    }
}
