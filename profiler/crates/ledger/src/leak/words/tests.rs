//! Tests of words at holes, at ends, and across pieces.

#![expect(clippy::single_range_in_vec_init, reason = "memory of one piece")]

use heapbpf_base::memory::Copied;

use super::*;

fn piece(start: u64, bytes: impl Iterator<Item = u8>) -> (TargetAddr, Box<[u8]>) {
    (TargetAddr(start), bytes.collect())
}

/// Checks the addresses of the words that are found in a range of memory in which each byte is the last byte of its own address.
fn check(pieces: &[Range<u64>], range: Range<u64>, expected: &[u64]) {
    let bytes = |range: &Range<u64>| piece(range.start, range.clone().map(|address| address.to_le_bytes()[0]));
    let memory = Copied::new(pieces.iter().map(bytes));
    let words = Words::new(&memory);
    let (mut told, mut near) = (Vec::new(), 0);
    words.each(&range, &mut near, |bytes| {
        let (words, rest) = bytes.as_chunks::<8>();
        assert_eq!(rest, [0; 0]);
        for word in words {
            assert!(word.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{word:?}");
            told.push(u64::from(word[0]));
        }
    });
    assert_eq!(told, expected, "{range:?} of {pieces:?}");
}

#[test]
fn whole_words() {
    check(&[0..64], 0..24, &[0, 8, 16]);
    check(&[0..64], 1..23, &[8]);
    check(&[0..64], 56..100, &[56]);
    check(&[0..64], 57..100, &[]);
    check(&[0..64], 8..8, &[]);
    check(&[3..61], 0..64, &[8, 16, 24, 32, 40, 48]);
}

#[test]
fn holes_are_skipped() {
    check(&[0..20, 36..64], 0..64, &[0, 8, 40, 48, 56]);
    check(&[0..8, 16..24, 32..33], 0..64, &[0, 16]);
    check(&[], 0..64, &[]);
}

#[test]
fn words_that_lie_in_two_pieces() {
    check(&[0..12, 12..40], 0..40, &[0, 8, 16, 24, 32]);
    check(&[0..12, 12..13, 13..20, 20..40], 0..40, &[0, 8, 16, 24, 32]);
    check(&[0..12, 12..13, 14..20, 20..40], 0..40, &[0, 16, 24, 32]);
    check(&[0..8, 8..16, 16..24], 0..24, &[0, 8, 16]);
}

#[test]
fn the_end_of_the_address_space() {
    let memory = Copied::new([piece(u64::MAX - 23, [1; 23].into_iter())]);
    let words = Words::new(&memory);
    let (mut told, mut near) = (0, 0);
    words.each(&(u64::MAX - 100..u64::MAX), &mut near, |bytes| told += bytes.len());
    assert_eq!(told, 16);
    assert_eq!(words.slice(&(u64::MAX - 3..u64::MAX), &mut near), None);
}

#[test]
fn the_longest_slice() {
    let memory = Copied::new([piece(100, [1; 1000].into_iter()), piece(1100, [2; 7].into_iter())]);
    assert_eq!(longest_slice(&memory, 100, 1007).len(), 1000);
    assert_eq!(longest_slice(&memory, 1099, 8).len(), 1);
    assert_eq!(longest_slice(&memory, 1100, 7).len(), 7);
    assert_eq!(longest_slice(&memory, 1100, 3).len(), 3);
    assert_eq!(longest_slice(&memory, 99, 3).len(), 0);
}
