//! Tests of entries and blocks.

use heapbpf_ledger::live::Correction;
use heapbpf_ledger::timeline::{SampleTrigger, TimelinePoint};

use super::*;
use crate::recording::block::{HeaderError, VERSION_MINOR, check_header};
use crate::recording::entry::MappedRange;
use crate::recording::read::ReadError;

#[test]
fn unknown_versions_are_refused() {
    let mut header = file_header();
    header[8] = 9;
    assert_eq!(check_header(&header), Err(HeaderError::Foreign), "the checksum is of another version");
    let checksum = crc32fast::hash(&header[..12]);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(check_header(&header), Err(HeaderError::Version { major: 9, minor: VERSION_MINOR }));
    let text = HeaderError::Version { major: 9, minor: 0 }.to_string();
    assert!(text.contains("format 9.0") && text.contains("reads format 2"), "{text}");
    let error = Reading::new(&header[..5]).expect_err("too short");
    assert!(matches!(error, ReadError::Header(HeaderError::Foreign)), "{error}");
}

#[test]
fn additions_of_later_versions_are_skipped() {
    let mut blocks = BlockWriter::new().expect("there is memory");
    let mut bytes = recording(&[vec![free(1, 2)]]);
    let end = bytes.len() - blocks.block(Kind::END, false, &[99]).expect("small").len();
    let later = blocks.block(Kind(700), false, b"from the future").expect("small");
    bytes.splice(end..end, later);
    // A fact of an unknown kind, and a known fact with an additional field.
    let mut packer = Packer::default();
    packer.add(&fact(Fact::Session(SessionFacts::default())));
    let raw = packer.finish();
    let text = String::from_utf8_lossy(&raw).into_owned();
    assert!(text.contains(r#"{"Session":{"#), "facts are JSON: {text}");
    let renamed: Vec<u8> = String::from_utf8(raw).expect("small numbers").replace("Session", "Seance_").into_bytes();
    bytes.splice(end..end, blocks.block(Kind::ENTRIES, false, &renamed).expect("small"));

    let mut reading = Reading::new(&*bytes).expect("whole");
    assert_eq!((&mut reading).count(), 4 + 1 + 1, "the beginning, the event and the end");
    assert!(reading.damage().is_none());
    assert_eq!(reading.skipped(), 2);
}

#[test]
fn steps_survive_a_round_trip() {
    let range = MappedRange {
        start: TargetAddr(1),
        end: TargetAddr(2),
        offset: heapbpf_base::address::FileOffset(3),
        module: None,
    };
    let found = (&allocation(1, 2, 3)).into();
    let steps = [
        Step::Opened { ledger: LedgerId(1), pid: Pid(2) },
        Step::Forked { parent: LedgerId(1), ledger: LedgerId(2), child: Pid(3), is_empty: true },
        Step::Succeeded { before: LedgerId(1), ledger: LedgerId(3) },
        Step::Joined { pid: Pid(2), ledger: LedgerId(3) },
        Step::Left { pid: Pid(2) },
        Step::Ended { ledger: LedgerId(1), closed: Some(MonotonicNanos(5)) },
        Step::Sampled { ledger: LedgerId(1), point: TimelinePoint { time: MonotonicNanos(6), trigger: None } },
        Step::Sampled {
            ledger: LedgerId(1),
            point: TimelinePoint { time: MonotonicNanos(7), trigger: Some(SampleTrigger::Dump(8)) },
        },
        Step::Mapped { ledger: LedgerId(1), mappings: vec![range; 3] },
        Step::Corrected {
            ledger: LedgerId(1),
            corrections: vec![Correction::Removed(TargetAddr(1)), Correction::Inserted(found)],
        },
    ];
    let mut packer = Packer::default();
    steps.iter().for_each(|step| packer.add(&Entry::Step(step.clone())));
    let mut unpacker = Unpacker::new(packer.finish());
    for step in &steps {
        let entry = unpacker.take().expect("whole").expect("there");
        assert!(matches!(&entry, Entry::Step(read) if read == step), "{entry:?} for {step:?}");
    }
}

#[test]
fn blocks_above_the_size_limit_are_refused() {
    // 16 bytes that promise 4 GiB, with a checksum that is right.
    let mut header = [1u8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
    let checksum = crc32fast::hash(&header[..12]);
    header[12..].copy_from_slice(&checksum.to_le_bytes());
    let bytes = [&file_header()[..], &header].concat();
    let mut reading = Reading::new(&*bytes).expect("its first bytes are whole");
    assert!(reading.next().is_none());
    let damage = reading.damage().expect("noticed").to_string();
    assert_eq!(damage, "damaged at byte 16: a block exceeds the limit of 16 MiB");
}

#[test]
fn blocks_larger_than_their_header_says_are_refused() {
    let mut blocks = BlockWriter::new().expect("there is memory");
    let mut block = blocks.block(Kind::ENTRIES, false, &vec![0; 1 << 20]).expect("a block's worth");
    // The header has a length of a kilobyte.
    block[8..12].copy_from_slice(&1024u32.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&block[..12]);
    hasher.update(&block[16..]);
    let checksum = hasher.finalize();
    block[12..16].copy_from_slice(&checksum.to_le_bytes());
    let bytes = [&file_header()[..], &block].concat();
    let mut reading = Reading::new(&*bytes).expect("its first bytes are whole");
    assert!(reading.next().is_none());
    assert!(reading.damage().expect("noticed").to_string().contains("cannot be decompressed"));
}

proptest! {
    #[test]
    fn events_survive_a_round_trip(events in prop::collection::vec(any_event(), 0..60)) {
        let mut packer = Packer::default();
        events.iter().for_each(|event| packer.add(&Entry::Event(event.clone())));
        let mut unpacker = Unpacker::new(packer.finish());
        let mut read = Vec::new();
        while let Some(entry) = unpacker.take().expect("whole") {
            match entry {
                Entry::Event(event) => read.push(event),
                entry => prop_assert!(false, "{entry:?}"),
            }
        }
        prop_assert_eq!(read, events);
    }

    #[test]
    fn a_truncated_file_has_the_first_entries(
        pieces in prop::collection::vec(prop::collection::vec(any_event(), 1..10), 1..5),
        cut: prop::sample::Index,
    ) {
        let whole = recording(&pieces);
        let (all, is_whole) = read(&whole);
        prop_assert!(is_whole);
        let length = file_header().len() + cut.index(whole.len() - file_header().len());
        let (some, is_whole) = read(&whole[..length]);
        prop_assert!(!is_whole);
        prop_assert_eq!(&all[..some.len()], &some[..]);
    }

    #[test]
    fn no_changed_byte_goes_unnoticed(
        pieces in prop::collection::vec(prop::collection::vec(any_event(), 1..10), 1..5),
        at: prop::sample::Index,
        change in 1u8..,
    ) {
        let mut bytes = recording(&pieces);
        let (all, _) = read(&bytes);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        if at < file_header().len() {
            prop_assert!(Reading::new(&*bytes).is_err());
        } else {
            let (some, is_whole) = read(&bytes);
            prop_assert!(!is_whole);
            prop_assert_eq!(&all[..some.len()], &some[..]);
        }
    }

    /// Arbitrary contents with right checksums, as an attacker could write them, cause no panic.
    #[test]
    fn no_bytes_in_whole_blocks_panic(
        kind in 0u16..6,
        raw in prop::collection::vec(any::<u8>(), 0..300),
        event in any_event(),
    ) {
        let mut blocks = BlockWriter::new().expect("there is memory");
        let mut bytes = recording(&[vec![event]]);
        bytes.truncate(bytes.len() - 1);
        let block = blocks.block(Kind(kind), false, &raw).expect("it is small");
        let start = file_header().len();
        bytes.splice(start..start, block);
        let _ = replayed(&bytes);
    }

    /// Neither do changed entries and folds cause a panic, which random bytes hardly ever are.
    #[test]
    fn no_changed_entry_panics(
        events in prop::collection::vec(any_event(), 1..20),
        at: prop::sample::Index,
        change in 1u8..,
        is_fold: bool,
    ) {
        let mut blocks = BlockWriter::new().expect("there is memory");
        let mut packer = Packer::default();
        beginning().iter().for_each(|entry| packer.add(entry));
        events.iter().for_each(|event| packer.add(&Entry::Event(event.clone())));
        let mut raw = packer.finish();
        if is_fold {
            let mut replay = Replay::default();
            beginning().into_iter().for_each(|entry| replay.enter(entry));
            events.iter().for_each(|event| replay.enter(Entry::Event(of_seven(event.clone()))));
            raw = postcard::to_allocvec(&replay).expect("it goes to memory");
        }
        let at = at.index(raw.len());
        raw[at] ^= change;
        let kind = if is_fold { Kind::FOLD } else { Kind::ENTRIES };
        let mut bytes = file_header().to_vec();
        bytes.extend(blocks.block(kind, false, &raw).expect("it is small"));
        let after: Vec<Event> = events.into_iter().map(of_seven).collect();
        bytes.extend(&recording(&[after])[file_header().len()..]);
        let _ = replayed(&bytes);
    }
}

/// Returns the event with process 7 as its target.
fn of_seven(event: Event) -> Event {
    let pid = Pid(7);
    match event {
        Event::Alloc(allocation) => Event::Alloc(Allocation { pid, ..allocation }),
        Event::Restore(allocation) => Event::Restore(Allocation { pid, ..allocation }),
        Event::Free(free) => Event::Free(Free { pid, ..free }),
        Event::Remap(remap) => Event::Remap(Remap { pid, ..remap }),
        Event::Stack(_, id, stack) => Event::Stack(pid, id, stack),
    }
}
