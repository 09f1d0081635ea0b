//! Synthetic files of just-in-time compilers.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn place(address: u64, at: u64) -> Place {
    Place { address, time_ns: at, map_bytes: at }
}

fn name<F: ReadAt>(index: &CodeIndex<F>, address: u64, at: u64) -> Option<String> {
    index.frames(place(address, at)).pop()?.function.map(|name| name.to_string())
}

fn map(text: &[u8]) -> CodeIndex<Vec<u8>> {
    CodeIndex::read(Format::PerfMap, text.to_vec())
}

#[test]
fn later_lines_replace_earlier_ones() {
    let text = "1000 100 first\n1080 100 second one\n2000 10 _ZN3app4leakEv\r\n1000 20 third\n";
    let index = map(text.as_bytes());
    let at_end = |address| name(&index, address, u64::MAX);
    assert_eq!(at_end(0xfff), None);
    assert_eq!(at_end(0x1000).as_deref(), Some("third"));
    assert_eq!(at_end(0x1020).as_deref(), Some("first"));
    assert_eq!(at_end(0x10ff).as_deref(), Some("second one"));
    assert_eq!(at_end(0x117f).as_deref(), Some("second one"));
    assert_eq!(at_end(0x1180), None);
    assert_eq!(at_end(0x2008).as_deref(), Some("app::leak()"));
    assert_eq!(index.malformed, 0);
    // Before the third line was written.
    let third = text.find("1000 20").expect("it is there") as u64;
    assert_eq!(name(&index, 0x1000, third).as_deref(), Some("first"));
    // Nothing was written yet: the first line applies.
    assert_eq!(name(&index, 0x1000, 0).as_deref(), Some("first"));
}

#[test]
fn malformed_lines_are_skipped_and_counted() {
    let long = [b"40 8 ".as_slice(), &[b'x'; 3 * NAME_BYTES_MAX], b"\n"].concat();
    let bad = [
        b"\n".as_slice(),
        b"zz 10 a\n",
        b"-10 10 a\n",
        b"10 10\n",
        b"10 10 \n",
        b"ffffffffffffffff 10 a\n",
        b"10 ffffffffffffffff a\n",
        b"\xff\xfe\x00 1 a\n",
    ];
    let text = [&bad.concat(), b"10 0 empty\n0x20 0x8 b\n\x80".as_slice(), b"\n30 8 \xff\n", &long, b"50 8 unfinished"];
    let index = map(&text.concat());
    assert_eq!(index.malformed, bad.len() as u64 + 1);
    assert_eq!(name(&index, 0x27, 0).as_deref(), Some("b"));
    assert_eq!(name(&index, 0x30, 0).as_deref(), Some(r"\xff"));
    assert!(name(&index, 0x40, 0).is_some_and(|name| name.len() <= NAME_BYTES_MAX));
    assert_eq!(name(&index, 0x50, 0), None, "the line is still being written");
    assert_eq!(map(&vec![b'a'; 1 << 20]).pieces, [], "a line without an end");
}

#[test]
fn javascript_has_files_and_lines() {
    let frames = map(b"10 8 JS:*leak /srv/app.js:2:14\n").frames(place(0x10, 0));
    let frame = frames.first().expect("it is named");
    assert_eq!(
        (frame.function.as_deref(), frame.file.as_deref(), frame.line),
        (Some("leak"), Some("/srv/app.js"), Some(2))
    );
}

/// A dump under construction.
struct Dump(Vec<u8>);

impl Dump {
    fn new(flags: u64) -> Self {
        let words = [0x4a69_5444_u32, 1, 40, 62, 0, 7].map(u32::to_ne_bytes).concat();
        Self([words, [99_u64, flags].map(u64::to_ne_bytes).concat()].concat())
    }

    fn record(mut self, kind: u32, time: u64, payload: &[u8]) -> Self {
        let size = u32::try_from(16 + payload.len()).expect("small");
        self.0.extend([kind, size].map(u32::to_ne_bytes).concat());
        self.0.extend(time.to_ne_bytes());
        self.0.extend(payload);
        self
    }

    fn load(self, time: u64, start: u64, size: u64, index: u64, name: &str) -> Self {
        let payload = [0_u64, start, start, size, index].map(u64::to_ne_bytes).concat();
        let code = vec![0xcc; usize::try_from(size).expect("small")];
        self.record(0, time, &[&payload, name.as_bytes(), b"\0", &code].concat())
    }

    fn relocate(self, time: u64, [old, new]: [u64; 2], size: u64, index: u64) -> Self {
        self.record(1, time, &[0_u64, new, old, new, size, index].map(u64::to_ne_bytes).concat())
    }

    fn lines(self, start: u64, lines: &[(u64, u32, &[u8])]) -> Self {
        let mut payload = [start, lines.len() as u64].map(u64::to_ne_bytes).concat();
        for (address, line, path) in lines {
            payload.extend(address.to_ne_bytes());
            payload.extend([*line, 0].map(u32::to_ne_bytes).concat());
            payload.extend([path, b"\0".as_slice()].concat());
        }
        self.record(2, 0, &payload)
    }

    fn index(self) -> CodeIndex<Vec<u8>> {
        CodeIndex::read(Format::JitDump, self.0)
    }
}

#[test]
fn moved_and_replaced_code_is_told_apart_by_time() {
    let dump = Dump::new(0)
        .load(100, 0x1000, 0x100, 1, "one")
        .relocate(200, [0x1000, 0x5000], 0x100, 1)
        .load(300, 0x1000, 0x80, 2, "two")
        .record(4, 310, b"unwinding");
    let index = dump.index();
    for (address, time, expected) in [
        (0x1010, 150, Some("one")),
        (0x1010, 250, Some("one")),
        (0x1010, 300, Some("two")),
        (0x1090, 400, Some("one")),
        (0x5010, 400, Some("one")),
        (0x5100, 400, None),
        // The compiler wrote the record after the code had run.
        (0x5010, 1, Some("one")),
    ] {
        assert_eq!(name(&index, address, time).as_deref(), expected, "{address:#x} at {time}");
    }
    assert_eq!(index.malformed, 0);
}

#[test]
fn times_of_another_clock_are_ignored() {
    let index = Dump::new(1).load(1 << 60, 0x10, 8, 1, "old").load(1 << 61, 0x10, 8, 2, "new").index();
    assert_eq!(name(&index, 0x10, 50).as_deref(), Some("new"));
}

#[test]
fn lines_follow_their_code() {
    let index = Dump::new(0)
        .lines(0x1000, &[(0x1000, 7, b"/a.lua"), (0x1010, 9, b"\xff"), (0x1020, 3, b"/b.lua")])
        .load(1, 0x1000, 0x100, 1, "f")
        .relocate(2, [0x1000, 0x3000], 0x100, 1)
        .index();
    let line = |address, time| {
        let frame = index.frames(place(address, time)).pop().expect("it is named");
        (frame.file.as_deref().map(str::to_owned), frame.line)
    };
    assert_eq!(line(0x1005, 1), (Some("/a.lua".to_owned()), Some(7)));
    assert_eq!(line(0x1018, 1), (Some("/a.lua".to_owned()), Some(9)));
    assert_eq!(line(0x30ff, 9), (Some("/b.lua".to_owned()), Some(3)));
}

#[test]
fn lines_of_v8_are_those_of_functions() {
    // V8 has the lines of inlined functions in the file of the outer one.
    let index =
        Dump::new(0).lines(0x1000, &[(0x1000, 1063, b"/a.js")]).load(1, 0x1000, 0x100, 1, "JS:*f /a.js:5:1").index();
    assert_eq!(index.frames(place(0x1000, 1))[0].line, Some(5));
}

#[test]
fn dumps_that_end_early_or_lie_are_read_up_to_there() {
    let whole = Dump::new(0).load(1, 0x1000, 0x100, 1, "one").load(2, 0x2000, 0x100, 2, "two");
    for length in 0..whole.0.len() {
        let index = CodeIndex::read(Format::JitDump, whole.0[..length].to_vec());
        assert!(index.pieces.len() <= 2, "{length}");
    }
    let lying = Dump::new(0).load(1, 0x1000, 0x100, 1, "one").record(0, 0, b"short").relocate(3, [1, 2], 3, 99).index();
    assert_eq!((lying.pieces.len(), lying.malformed), (1, 2), "{lying:?}");
    for garbage in [&b"ELF"[..], &[0; 4096]] {
        assert_eq!(CodeIndex::read(Format::JitDump, garbage.to_vec()).malformed, 1);
    }
}

proptest! {
    /// The index answers like a memory in which each line overwrites names.
    #[test]
    fn the_index_is_a_memory(lines in prop::collection::vec((0_u64..64, 0_u64..16), 0..40), at in 0_usize..42) {
        let mut text = String::new();
        let mut ends = Vec::new();
        for (number, (start, size)) in lines.iter().enumerate() {
            text += &format!("{start:x} {size:x} f{number}\n");
            ends.push(text.len() as u64);
        }
        let index = map(text.as_bytes());
        let now = ends.get(at).copied().unwrap_or(u64::MAX);
        let mut memory = BTreeMap::new();
        for (number, (start, size)) in lines.iter().enumerate() {
            for address in *start..start + size {
                let is_there = ends[number] <= now;
                let is_first = !memory.contains_key(&address);
                if is_there || is_first {
                    memory.insert(address, format!("f{number}"));
                }
            }
        }
        for address in 0..80 {
            prop_assert_eq!(name(&index, address, now), memory.get(&address).cloned());
        }
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..512), address: u64) {
        exercise(false, &bytes, address, address);
        let header = Dump::new(address & 1).0;
        exercise(true, &bytes, address, address);
        exercise(true, &[header, bytes].concat(), address, address);
    }
}
