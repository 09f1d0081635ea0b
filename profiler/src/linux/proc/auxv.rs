//! `/proc/PID/auxv`: the auxiliary vector of a 64-bit program. That of a 32-bit one has shorter words, which are not
//! supported.

use crate::ids::Pid;
use crate::linux::proc::process;

/// Read limit: the kernel writes about 50 words.
const BYTES_MAX: u64 = 4096;

/// An auxiliary vector without its terminator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auxv(Vec<[u64; 2]>);

impl Auxv {
    /// `None` when there is no such process, it cannot be read, or it has no vector (kernel threads, zombies).
    pub fn read(pid: Pid) -> Option<Self> {
        Self::parse(&process::read(pid, "auxv", BYTES_MAX).ok()?)
    }

    /// `None` without the terminating `AT_NULL`.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|&word| u64::from_ne_bytes(word)).collect();
        let entries = words.as_chunks().0;
        let end = entries.iter().position(|&[kind, _]| kind == libc::AT_NULL)?;
        Some(Self(entries[..end].to_vec()))
    }

    /// The value of an entry, `libc::AT_*`.
    pub fn get(&self, wanted: u64) -> Option<u64> {
        self.0.iter().find_map(|&[kind, value]| (kind == wanted).then_some(value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn entries_are_found_by_their_kind() {
        let auxv = Auxv::parse(&bytes(&[libc::AT_BASE, 0, libc::AT_ENTRY, 0x1000, 0, 0, libc::AT_PHDR, 1]));
        let auxv = auxv.expect("it has an end");
        for (kind, value) in [(libc::AT_BASE, Some(0)), (libc::AT_ENTRY, Some(0x1000)), (libc::AT_PHDR, None)] {
            assert_eq!(auxv.get(kind), value, "{kind}");
        }
        assert_eq!(auxv.get(libc::AT_NULL), None);
    }

    #[test]
    fn a_truncated_vector_is_rejected() {
        let whole = bytes(&[libc::AT_BASE, 5, 0, 0]);
        assert!(Auxv::parse(&whole).is_some());
        for length in 0..whole.len() {
            assert_eq!(Auxv::parse(&whole[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn this_process_has_a_vector_and_a_missing_one_does_not() {
        let auxv = Auxv::read(Pid(std::process::id())).expect("readable");
        assert_eq!(auxv.get(libc::AT_PAGESZ), Some(rustix::param::page_size() as u64));
        // A PID that no kernel gives out.
        assert_eq!(Auxv::read(Pid(1 << 22)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), wanted in 0u64..4) {
            let _ = Auxv::parse(&bytes).map(|auxv| auxv.get(wanted));
        }
    }
}
