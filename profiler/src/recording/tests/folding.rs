//! Tests of a file with a limit, and of what is left of its older part.

use super::*;
use crate::recording::entry::Names;
use crate::recording::names::RecordedNames;
use crate::recording::span::{ReplayedSpan, Span, SpanError};
use crate::recording::write::{SIZE_BYTES_MIN, WriteReason};
use crate::snapshot::Scope;

/// Returns entries of blocks that come and go, some of which stay.
fn traffic(count: u64) -> impl Iterator<Item = Entry> {
    // No address and no size follows from that of the entry before.
    let mix = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    (0..count).flat_map(move |i| {
        let address = mix(i + 1);
        let made = Event::Alloc(allocation(address, mix(i * 3) % 9000, 1000 + i * 1000));
        let gone = (i % 1000 != 0).then(|| free(address, 1500 + i * 1000));
        std::iter::once(made).chain(gone).map(Entry::Event)
    })
}

/// Writes a recording of such traffic, and returns the file's bytes.
fn written(path: &Path, size_bytes_max: Option<u64>, count: u64) -> Vec<u8> {
    let mut writer = Writer::create(path, size_bytes_max).expect("writable");
    for entry in beginning().into_iter().chain(traffic(count)) {
        writer.add(&entry).expect("there is room");
        writer.attend().expect("there is room");
    }
    let written = writer.finish(&Names::default(), MonotonicNanos(1000 + count * 1000)).expect("there is room");
    let bytes = std::fs::read(path).expect("readable");
    assert_eq!(bytes.len() as u64, written.size_bytes);
    assert_eq!(written.folds > 0, size_bytes_max.is_some());
    bytes
}

#[test]
fn folded_events_count_in_totals_and_windows_begin_later() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let whole = written(&folder.path().join("whole.heapbpf"), None, 200_000);
    let limited = written(&folder.path().join("limited.heapbpf"), Some(SIZE_BYTES_MIN), 200_000);
    assert!(
        whole.len() as u64 > 2 * SIZE_BYTES_MIN && limited.len() as u64 <= SIZE_BYTES_MIN,
        "{} {}",
        whole.len(),
        limited.len()
    );
    let (one, other) = (replayed(&whole), replayed(&limited));
    assert_eq!(format!("{:?}", one.targets), format!("{:?}", other.targets));
    assert_eq!(one.targets[0].ledger.totals.live_samples, 200);

    let read = |bytes: &[u8], from_ns: u64| {
        let span = Span { from_ns: Some(from_ns), to_ns: None };
        ReplayedSpan::read(Reading::new(bytes).expect("whole"), span, false, &mut RecordedNames::new(()))
    };
    let without_beginning = read(&limited, 0).expect("the sums are there").check_whole();
    assert!(matches!(without_beginning, Err(SpanError::Folded { .. })));
    assert_eq!(read(&whole, 0).expect("whole").check_whole(), Ok(()));
    let Err(SpanError::Folded { earliest_ns }) = read(&limited, 5_000) else { panic!("it was folded") };
    let [one, other] = [&whole, &limited].map(|bytes| {
        let spanned = read(bytes, earliest_ns).expect("known from here on");
        let snapshot = spanned.snapshot(Modules::default());
        let ledger = snapshot.targets[0].ledger_of(Scope::Window).expect("it runs");
        format!("{:?} {:?}", ledger.totals, ledger.callsites)
    });
    assert_eq!(one, other);
}

#[test]
fn exceeding_the_size_limit_fails_with_advice() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("full.heapbpf");
    let mut writer = Writer::create(&path, Some(SIZE_BYTES_MIN)).expect("writable");
    beginning().iter().for_each(|entry| writer.add(entry).expect("there is room"));
    let mut kept = traffic(100_000).filter(|entry| matches!(entry, Entry::Event(Event::Alloc(_))));
    let error = kept.find_map(|entry| writer.add(&entry).err()).expect("all of it stays");
    assert!(matches!(error, WriteReason::Large { .. }), "{error}");
    assert!(error.to_string().contains("raise it, or sample less with a larger `--interval`"), "{error}");
    let (entries, is_whole) = read(&std::fs::read(&path).expect("readable"));
    assert!(!is_whole && !entries.is_empty(), "what was written before stands");
    assert!(std::fs::metadata(&path).expect("there").len() <= SIZE_BYTES_MIN);
}

#[test]
fn an_existing_file_is_replaced() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("old.heapbpf");
    std::fs::File::create(&path).and_then(|mut file| file.write_all(&[7; 100])).expect("writable");
    let (entries, is_whole) = read(&written(&path, None, 1));
    assert!(is_whole);
    assert_eq!(entries.len(), 4 + 1 + 1 + 1);
}
