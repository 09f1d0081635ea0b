//! Reads, writes and removes many elements of a map at once: a system call each would take seconds for large tables.

#![expect(unsafe_code, reason = "aya 0.14 has no batch operations")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use aya::Pod;

/// The part of `union bpf_attr` for batches
/// (<https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/bpf.h#L1566-L1587>).
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `BPF_MAP_LOOKUP_BATCH` (Linux 5.6).
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;

/// `BPF_MAP_UPDATE_BATCH` (Linux 5.6).
const BPF_MAP_UPDATE_BATCH: libc::c_long = 26;

/// `BPF_MAP_DELETE_BATCH` (Linux 5.6).
const BPF_MAP_DELETE_BATCH: libc::c_long = 27;

/// Elements per system call: bounds the key buffer, and how long the kernel is busy at a stretch.
pub(crate) const BATCH: usize = 65_536;

/// A batch that the kernel left off: how many elements it had done, and why it did no more.
struct LeftOff {
    done: usize,
    error: io::Error,
}

/// Runs a command on elements of a map; `values` of length 0 stand for none.
fn batch<K: Pod, V: Pod>(command: libc::c_long, map: &impl AsFd, keys: &[K], values: &[V]) -> Result<(), LeftOff> {
    let unusable = |errno| LeftOff { done: 0, error: io::Error::from_raw_os_error(errno) };
    if !values.is_empty() && values.len() != keys.len() {
        return Err(unusable(libc::EINVAL));
    }
    let count = u32::try_from(keys.len()).map_err(|_| unusable(libc::E2BIG))?;
    let mut attr = BatchAttr {
        in_batch: 0,
        out_batch: 0,
        keys: keys.as_ptr() as u64,
        values: if values.is_empty() { 0 } else { values.as_ptr() as u64 },
        count,
        map_fd: map.as_fd().as_raw_fd().unsigned_abs(),
        elem_flags: 0,
        flags: 0,
    };
    // SAFETY: `keys`, and `values` where there are any, hold `count` elements and outlive the call; the callers vouch that
    // these have the map's sizes. The kernel reads them and writes `count` back. `Pod` vouches that they have no padding to
    // leak.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<BatchAttr>() as libc::c_ulong) };
    if result == 0 {
        return Ok(());
    }
    // A kernel that refuses the command as such does not write the count: it is still that of all.
    let done = if attr.count < count { attr.count as usize } else { 0 };
    Err(LeftOff { done, error: io::Error::last_os_error() })
}

/// Writes `values` to an array map, from index `first` on.
///
/// # Errors
///
/// The kernel's: `E2BIG` when an index lies beyond the map, `ENOTSUPP` (524) before Linux 5.6.
pub(crate) fn write_array<V: Pod>(map: impl AsFd, first: u32, values: &[V]) -> io::Result<()> {
    let mut next = first;
    for chunk in values.chunks(BATCH) {
        let count = u32::try_from(chunk.len()).map_err(io::Error::other)?;
        let end = next.checked_add(count).ok_or_else(|| io::Error::from_raw_os_error(libc::E2BIG))?;
        let keys: Vec<u32> = (next..end).collect();
        batch(BPF_MAP_UPDATE_BATCH, &map, &keys, chunk).map_err(|left_off| left_off.error)?;
        next = end;
    }
    Ok(())
}

/// Enters elements into a hash map, over what is there, and returns how many found room: all, or the first so many.
///
/// # Errors
///
/// The kernel's, but for a full map: `ENOTSUPP` (524) before Linux 5.6. `EINVAL` when there are not as many values as keys.
pub(crate) fn write_hash<K: Pod, V: Pod>(map: impl AsFd, keys: &[K], values: &[V]) -> io::Result<usize> {
    if keys.len() != values.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut written = 0;
    for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
        match batch(BPF_MAP_UPDATE_BATCH, &map, keys, values) {
            Ok(()) => written += keys.len(),
            Err(LeftOff { done, error }) => {
                let full = matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM));
                return if full { Ok(written + done) } else { Err(error) };
            }
        }
    }
    Ok(written)
}

/// Removes elements from a hash map and hands those that were there to `removed`, stretch by stretch.
///
/// # Errors
///
/// The kernel's: `ENOTSUPP` (524) before Linux 5.6. Some may be removed then.
pub(crate) fn remove_hash<K: Pod>(map: impl AsFd, keys: &[K], mut removed: impl FnMut(&[K])) -> io::Result<()> {
    for mut chunk in keys.chunks(BATCH) {
        while !chunk.is_empty() {
            match batch::<K, u8>(BPF_MAP_DELETE_BATCH, &map, chunk, &[]) {
                Ok(()) => {
                    removed(chunk);
                    break;
                }
                // It stops at the first that is not there.
                Err(LeftOff { done, error }) if error.raw_os_error() == Some(libc::ENOENT) => {
                    removed(&chunk[..done]);
                    chunk = &chunk[done + 1..];
                }
                Err(LeftOff { error, .. }) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Elements that are read at a time: buckets are read whole, and few have more than a handful.
const READ_BATCH: usize = 8192;

/// Reads all elements of a hash map and hands them to `found`, keys and values in the same order, stretch by stretch. What
/// is entered or removed meanwhile may be among them or not; nothing else is left out, and nothing comes twice.
///
/// # Errors
///
/// The kernel's: `ENOTSUPP` (524) before Linux 5.6.
pub(crate) fn read_hash<K: Pod, V: Pod>(map: impl AsFd, mut found: impl FnMut(&[K], &[V])) -> io::Result<()> {
    let (mut keys, mut values) = (Vec::<K>::with_capacity(READ_BATCH), Vec::<V>::with_capacity(READ_BATCH));
    // Where the kernel goes on: a bucket's number, in a place that has room for a key, as its documentation asks.
    let mut place = [0u8; 64];
    let mut is_first = true;
    if size_of::<K>() > place.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    loop {
        let count = u32::try_from(keys.capacity().min(values.capacity())).map_err(io::Error::other)?;
        let mut attr = BatchAttr {
            in_batch: if is_first { 0 } else { place.as_ptr() as u64 },
            out_batch: place.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count,
            map_fd: map.as_fd().as_raw_fd().unsigned_abs(),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: `keys` and `values` have room for `count` elements, `place` for the kernel's mark, and all outlive the
        // call; the callers vouch that elements have the map's sizes. The kernel reads the mark before it writes it.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_BATCH, &raw mut attr, size_of::<BatchAttr>() as libc::c_ulong)
        };
        let error = if result == 0 { None } else { io::Error::last_os_error().raw_os_error() };
        match error {
            // The last elements come with an error.
            None | Some(libc::ENOENT) => {}
            // The first bucket that is not empty has more elements than there is room for, and nothing was read. Where
            // something was, the kernel leaves such a bucket to the next call and tells no error
            // (`__htab_map_lookup_and_delete_batch` in kernel/bpf/hashtab.c).
            Some(libc::ENOSPC) => {
                keys.reserve(keys.capacity() * 2);
                values.reserve(values.capacity() * 2);
                continue;
            }
            Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
        }
        let length = attr.count.min(count) as usize;
        // SAFETY: the kernel has written so many, and `Pod` vouches that any bytes are an element.
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
        // SAFETY: type, key size, value size, entries and flags are what the command begins with, and all that it needs.
        let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
        let fd = i32::try_from(fd).expect("descriptors are small");
        assert!(fd >= 0, "no map: {}; run as root", io::Error::last_os_error());
        // SAFETY: a new descriptor, which is nobody else's.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    fn keys(range: std::ops::Range<u64>) -> Vec<u64> {
        range.collect()
    }

    /// How many of these there were.
    fn remove_all(map: &impl AsFd, keys: &[u64]) -> usize {
        let mut all = Vec::new();
        remove_hash(map, keys, |removed| all.extend_from_slice(removed)).expect("a hash map");
        assert!(all.iter().all(|key| keys.contains(key)));
        all.len()
    }

    #[test]
    fn what_is_written_is_removed_once() {
        let map = hash(200_000);
        let all = keys(0..150_000);
        assert_eq!(write_hash(&map, &all, &all).expect("there is room"), 150_000);
        assert_eq!(write_hash(&map, &all, &all).expect("over what is there"), 150_000);
        // Found and missing in turns, with a missing one at both ends.
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
    fn a_full_map_takes_what_it_has_room_for() {
        let map = hash(1000);
        let all = keys(0..3000);
        let written = write_hash(&map, &all, &all).expect("a full map is no error");
        assert_eq!(written, 1000);
        assert_eq!(remove_all(&map, &all[..written]), written, "those that are told of");
        assert_eq!(remove_all(&map, &all), 0, "no others");
    }

    #[test]
    fn all_that_is_there_is_read_once() {
        for (entries, written) in [(1, 0), (1, 1), (10, 3), (200_000, 150_000), (30_000, 30_000)] {
            let map = hash(entries);
            let all = keys(0..written);
            let doubled: Vec<u64> = all.iter().map(|key| key * 2).collect();
            write_hash(&map, &all, &doubled).expect("there is room");
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
    fn a_command_that_is_refused_is_an_error() {
        let not_a_map = std::fs::File::open("/").expect("there is a root");
        assert!(write_hash(&not_a_map, &[1u64], &[1u64]).is_err());
        assert!(remove_hash(&not_a_map, &[1u64], |_| ()).is_err());
        assert!(read_hash(&not_a_map, |_: &[u64], _: &[u64]| ()).is_err());
        assert!(write_hash(hash(1), &[1u64], &[] as &[u64]).is_err());
    }
}
