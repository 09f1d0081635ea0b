//! Any bytes of a record give code or an error.

use std::mem::offset_of;

use heapbpf_base::ids::Pid;
use profiler_common::record::RecordKind;
use proptest::prelude::*;

use super::*;

const KINDS: [RecordKind; 4] = [RecordKind::Code, RecordKind::CodePlace, RecordKind::RubyCode, RecordKind::PhpCode];

fn record(kind: RecordKind, bytes: &[u8]) -> RawCode {
    RawCode { pid: Pid(1), kind, bytes: bytes.into() }
}

#[test]
fn implementations_have_records_of_their_own() {
    let kinds: Vec<RecordKind> = IMPLEMENTATIONS.iter().filter_map(|it| Some(it.record.as_ref()?.kind)).collect();
    assert_eq!(kinds.len(), 3);
    assert!(kinds.iter().enumerate().all(|(index, kind)| !kinds[..index].contains(kind)), "{kinds:?}");
    for (language, _) in Language::with_functions() {
        assert!(IMPLEMENTATIONS.iter().any(|it| it.language == language), "{language:?} has an implementation");
    }
}

#[test]
fn short_records_are_refused() {
    for kind in KINDS {
        assert_eq!(decode(&record(kind, &[0; 8])).err(), Some(DecodeError::Short), "{kind:?}");
    }
}

#[test]
fn places_have_a_language() {
    let mut bytes = [0; size_of::<CodePlaceRecord>()];
    let at = offset_of!(CodePlaceRecord, kind);
    let mut of = |kind: u32| {
        bytes[at..at + 4].copy_from_slice(&kind.to_ne_bytes());
        decode(&record(RecordKind::CodePlace, &bytes))
    };
    let Ok(Sent::Placed(placed)) = of(CodeKind::JavaStub as u32) else { panic!("not a place") };
    assert_eq!((placed.language, placed.kind), (Language::Java, CodeKind::JavaStub));
    for unknown in [7, 256] {
        assert_eq!(of(unknown).err(), Some(DecodeError::UnknownCode(unknown)));
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
        for kind in KINDS {
            let _ = decode(&record(kind, &bytes));
        }
    }
}
