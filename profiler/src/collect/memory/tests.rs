//! Tests with memory of real processes, and with lines of `smaps`.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::collect::tests::fixture::Subject;

/// A program with more than four MiB, of which every hundredth page is unmapped and the next one protected, and with as much
/// memory of which every second page is unmapped.
const HOLES: &str = r#"
int main(void) {
    enum { PAGES = 1200 };
    char *memory = mmap(NULL, 2 * PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 2 * PAGES * 512; i++) ((uint64_t *)memory)[i] = i;
    for (int i = 99; i < PAGES; i += 100) munmap(memory + i * 4096, 4096);
    for (int i = 100; i < PAGES; i += 100) mprotect(memory + i * 4096, 4096, PROT_NONE);
    for (int i = PAGES; i < 2 * PAGES; i += 2) munmap(memory + i * 4096, 4096);
    say("%p", (void *)memory);
    wait_for_word();
}
"#;

fn spans(spans: &[Range<u64>]) -> Vec<Span> {
    spans.iter().map(|span| TargetAddr(span.start)..TargetAddr(span.end)).collect()
}

#[test]
fn unreadable_pages_are_skipped_and_counted() {
    let mut subject = Subject::start(HOLES);
    let start = subject.numbers()[0];
    let pid = subject.pid();
    let all = spans(&[start + 8..start + 2 * 1200 * 4096]);
    let copy = Copy::take(pid, &all, Reserved::of(pid, 0).expect("little"), None).expect("it runs");
    assert_eq!(copy.unread_bytes, (12 + 600) * 4096);
    assert_eq!(copy.word(TargetAddr(start)), None, "not requested");
    for page in 0..2 * 1200_u64 {
        let there = if page < 1200 { page % 100 != 99 } else { page % 2 == 1 };
        for index in [1, 511] {
            let index = page * 512 + index;
            assert_eq!(copy.word(TargetAddr(start + index * 8)), there.then_some(index), "word {index}");
        }
    }
    let mut buffer = [0; 100];
    assert_eq!(copy.read(TargetAddr(start + 99 * 4096 - 60), &mut buffer), 60);
    assert_eq!(copy.slice(TargetAddr(start + 99 * 4096 - 60), 61), None);
    let present = copy.present(TargetAddr(start)..TargetAddr(start + 100 * 4096));
    assert_eq!(present, spans(&[start + 8..start + 99 * 4096]));
}

#[test]
fn a_copy_above_the_limit_is_refused_with_both_sizes() {
    let error = Reserved::empty(Pid(7), 3 << 30, 2 << 30).expect_err("too large").to_string();
    assert!(error.contains("3.0 GiB") && error.contains("2.0 GiB") && error.contains("--snapshot fork"), "{error}");
    let room = Reserved::empty(Pid(7), 1 << 10, 1 << 20).expect("little");
    let larger = spans(&[0x1000..0x1000 + (2 << 30)]);
    assert!(
        matches!(Copy::take(Pid(7), &larger, room, None), Err(CollectError::TooLarge { needed_bytes, .. }) if needed_bytes == 2 << 30)
    );
}

#[test]
fn a_missing_process_is_an_error() {
    let unused = Pid(1 << 22);
    let room = Reserved::of(unused, 0).expect("little");
    assert!(matches!(Copy::take(unused, &spans(&[4096..8192]), room, None), Err(CollectError::Ended(_))));
}

proptest! {
    #[test]
    fn pieces_contain_the_requested_spans_without_holes(
        lengths in proptest::collection::vec((0_u64..4, 1_u64..5), 0..20),
        holes in proptest::collection::btree_set(0_u64..100, 0..30),
    ) {
        let mut end = 0;
        let mut asked = Vec::new();
        for (gap, length) in lengths {
            asked.push(end + gap..end + gap + length);
            end += gap + length;
        }
        let pieces = laid_out(&spans(&asked));
        let holes: Vec<Range<u64>> = holes.into_iter().map(|hole| hole..hole + 1).collect();
        let rest = without(joined(spans(&asked)), &joined(spans(&holes)));
        let mut offset = 0;
        for address in 0..end {
            let piece = pieces.iter().find(|piece| (piece.start..piece.end).contains(&address));
            let was_asked = asked.iter().any(|span| span.contains(&address));
            prop_assert_eq!(piece.is_some(), was_asked);
            let is_there = was_asked && !holes.contains(&(address..address + 1));
            prop_assert_eq!(around(&rest, TargetAddr(address)).is_some(), is_there);
            if let Some(piece) = piece {
                prop_assert_eq!(piece.offset as u64 + address - piece.start, offset);
            }
            offset += u64::from(was_asked);
        }
        prop_assert!(rest.is_sorted_by(|first, second| first.end < second.start));
    }
}

#[test]
fn mappings_are_distinguished_from_their_fields() {
    assert_eq!(mapping_start(b"7f00-8f00 rw-p 00000000 00:00 0 "), Some(0x7f00));
    assert_eq!(mapping_start(b"7ffd7f001000-7ffd7f005000 r-xp 00000000 00:00 0 [vdso]"), Some(0x7ffd_7f00_1000));
    assert_eq!(mapping_start(b"Rss:                   4 kB"), None);
    assert_eq!(mapping_start(b"VmFlags: rd wr mr mw me ac sd"), None);
}
