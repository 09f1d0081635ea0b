//! Offsets in CPython's structures, on 64-bit systems, by version: those of a release's headers are fixed
//! (`Include/internal/pycore_runtime.h`, `pycore_frame.h`, `cpython/pystate.h`, `cpython/code.h`).

use heapbpf_base::address::TargetAddr;
use profiler_common::interpreter::{COUNTS_BYTES, FrameChain, Interpreter, LineTable};
use thiserror::Error;

use super::super::version::{Version, Versions};

/// Why frames of an interpreter are not unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Unsupported {
    #[error("CPython {0} is not supported ({VERSIONS} are)")]
    Version(Version),
    #[error("the version of CPython is unknown")]
    NoVersion,
    #[error("free-threaded CPython is not supported")]
    FreeThreaded,
    #[error("cannot locate the C library's thread-local storage: `pthread_self` is missing or has unexpected code")]
    NoControlBlock,
    #[error("its memory cannot be read")]
    Unreadable,
    #[error("its own description of its offsets (`_Py_DebugOffsets`) is malformed")]
    Malformed,
}

impl Version {
    /// Of `PY_VERSION_HEX`.
    pub(super) fn of_hex(hex: u32) -> Self {
        let [_, _, minor, major] = hex.to_le_bytes();
        Self { major, minor }
    }

    /// Of the name of a program or library: `python3.9`, `libpython3.10.so.1.0`.
    pub(super) fn of_path(path: &str) -> Option<Self> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let rest = name.strip_prefix("libpython").or_else(|| name.strip_prefix("python"))?;
        let (major, rest) = rest.split_once('.')?;
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        Some(Self { major: major.parse().ok()?, minor: rest[..digits].parse().ok()? })
    }

    /// Whether `_PyRuntime` begins with `_Py_DebugOffsets`.
    pub(super) fn publishes_offsets(self) -> bool {
        self >= Self { major: 3, minor: 13 }
    }

    /// The interpreter whose `_PyRuntime` is at this address. `published` is what it begins with.
    pub(super) fn interpreter(
        self,
        runtime: TargetAddr,
        published: &[u8; DEBUG_OFFSETS_BYTES],
    ) -> Result<Interpreter, Unsupported> {
        let known = VERSIONS.get(self).ok_or(Unsupported::Version(self))?;
        let mut interpreter = Interpreter {
            holder: known.holder.map_or(0, |offset| runtime.0.wrapping_add(offset)),
            key: runtime.0.wrapping_add(known.key),
            ..known.offsets
        };
        if let Some(positions) = known.published {
            read_published(&mut interpreter, &positions, published)?;
        }
        Ok(interpreter)
    }
}

/// What is known of a version.
struct Known {
    /// In `_PyRuntime`: `gilstate.tstate_current`, until 3.11.
    holder: Option<u64>,
    /// In `_PyRuntime`: `autoTSSkey._key`.
    key: u64,
    offsets: Interpreter,
    published: Option<Positions>,
}

/// Frames are objects, and each has a call of the loop.
const OBJECTS: Interpreter = Interpreter {
    state_frame: 24,
    state_thread: 176,
    indirect_frame: 0,
    frame_bytes: 112,
    frame_previous: 24,
    frame_code: 32,
    frame_instruction: 104,
    frame_owner: 0,
    code_first: 104,
    code_bytecode: 0,
    code_line: 40,
    text_ascii: 48,
    text_wide: 72,
    chain: FrameChain::One as u8,
    entry_owner: 0,
    code_words: 3,
    code_name: 1,
    flags: COUNTS_BYTES,
    line_table: LineTable::Deltas as u8,
    ..ZERO
};

/// Frames are in a stack of their own, from 3.11 on.
const FRAMES: Interpreter = Interpreter {
    state_frame: 56,
    state_thread: 152,
    indirect_frame: 8 + 1,
    frame_bytes: 72,
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_owner: 68,
    code_first: 112,
    code_bytecode: 184,
    code_line: 72,
    text_ascii: 48,
    text_wide: 72,
    chain: FrameChain::Entry as u8,
    entry_owner: 0,
    code_words: 4,
    code_name: 2,
    flags: 0,
    line_table: LineTable::Locations as u8,
    ..ZERO
};

const ZERO: Interpreter = {
    const RANGE: profiler_common::interpreter::AddressRange =
        profiler_common::interpreter::AddressRange { start: 0, bytes: 0 };
    Interpreter {
        loops: [RANGE; 2],
        holder: 0,
        key: 0,
        control_block: 0,
        state_frame: 0,
        state_thread: 0,
        indirect_frame: 0,
        frame_bytes: 0,
        frame_previous: 0,
        frame_code: 0,
        frame_instruction: 0,
        frame_owner: 0,
        code_first: 0,
        code_bytecode: 0,
        code_line: 0,
        text_ascii: 0,
        text_wide: 0,
        chain: 0,
        entry_owner: 0,
        code_words: 0,
        code_name: 0,
        flags: 0,
        line_table: 0,
    }
};

/// Frames without code are between those of two calls of the loop.
const SHIMS: Interpreter = Interpreter {
    state_thread: 136,
    indirect_frame: 1,
    frame_previous: 8,
    frame_code: 0,
    frame_owner: 70,
    code_bytecode: 192,
    code_line: 68,
    text_ascii: 40,
    text_wide: 56,
    chain: FrameChain::Shim as u8,
    // `FRAME_OWNED_BY_CSTACK`; in 3.14 `FRAME_OWNED_BY_INTERPRETER`.
    entry_owner: 3,
    ..FRAMES
};

const VERSIONS: Versions<Known> = Versions::new(
    3,
    &[
        (8, Known { holder: Some(1368), key: 1396, offsets: OBJECTS, published: None }),
        (9, Known { holder: Some(568), key: 588, offsets: OBJECTS, published: None }),
        (
            10,
            Known {
                holder: Some(568),
                key: 588,
                offsets: Interpreter {
                    frame_bytes: 104,
                    frame_instruction: 96,
                    flags: 0,
                    line_table: LineTable::Ranges as u8,
                    ..OBJECTS
                },
                published: None,
            },
        ),
        (11, Known { holder: Some(576), key: 596, offsets: FRAMES, published: None }),
        (12, Known { holder: None, key: 1548, offsets: SHIMS, published: None }),
        (13, Known { holder: None, key: 2164, offsets: SHIMS, published: Some(POSITIONS_3_13) }),
        (14, Known { holder: None, key: 2340, offsets: SHIMS, published: Some(POSITIONS_3_14) }),
    ],
);

/// Bytes of `_Py_DebugOffsets` that are read.
pub(super) const DEBUG_OFFSETS_BYTES: usize = 760;

/// Where `_Py_DebugOffsets` has which offset, in bytes. It begins with a mark, the version and whether the build is free-threaded.
#[derive(Clone, Copy)]
struct Positions {
    current_frame: usize,
    thread_id: usize,
    previous: usize,
    executable: usize,
    instruction: usize,
    locals: usize,
    owner: usize,
    /// Followed by those of name, qualified name and line table.
    filename: usize,
    line_table: usize,
    first_line: usize,
    bytecode: usize,
    ascii_size: usize,
}

const MARK: &[u8; 8] = b"xdebugpy";
const FREE_THREADED: usize = 16;

const POSITIONS_3_13: Positions = Positions {
    current_frame: 184,
    thread_id: 192,
    previous: 232,
    executable: 240,
    instruction: 248,
    locals: 256,
    owner: 264,
    filename: 280,
    line_table: 304,
    first_line: 312,
    bytecode: 344,
    ascii_size: 560,
};

const POSITIONS_3_14: Positions = Positions {
    current_frame: 208,
    thread_id: 216,
    previous: 256,
    executable: 264,
    instruction: 272,
    locals: 280,
    owner: 288,
    filename: 320,
    line_table: 344,
    first_line: 352,
    bytecode: 384,
    ascii_size: 640,
};

/// Difference in size between `PyCompactUnicodeObject` and `PyASCIIObject`.
const WIDE_BYTES: u16 = 16;

fn read_published(
    interpreter: &mut Interpreter,
    positions: &Positions,
    published: &[u8; DEBUG_OFFSETS_BYTES],
) -> Result<(), Unsupported> {
    let word = |at: usize| published.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let offset = |at: usize| word(at).and_then(|word| u16::try_from(word).ok()).ok_or(Unsupported::Malformed);
    if !published.starts_with(MARK) {
        return Err(Unsupported::Malformed);
    }
    if word(FREE_THREADED) != Some(0) {
        return Err(Unsupported::FreeThreaded);
    }
    interpreter.state_frame = offset(positions.current_frame)?;
    interpreter.indirect_frame = 0;
    interpreter.state_thread = offset(positions.thread_id)?;
    interpreter.frame_previous = offset(positions.previous)?;
    interpreter.frame_code = offset(positions.executable)?;
    interpreter.frame_instruction = offset(positions.instruction)?;
    interpreter.frame_bytes = offset(positions.locals)?;
    interpreter.frame_owner = offset(positions.owner)?;
    interpreter.code_first = offset(positions.filename)?;
    interpreter.code_line = offset(positions.first_line)?;
    interpreter.code_bytecode = offset(positions.bytecode)?;
    interpreter.text_ascii = offset(positions.ascii_size)?;
    interpreter.text_wide = interpreter.text_ascii.checked_add(WIDE_BYTES).ok_or(Unsupported::Malformed)?;
    // The kernel side reads file, name, qualified name and line table at once.
    let is_adjacent = offset(positions.line_table)? == interpreter.code_first.wrapping_add(3 * 8);
    if is_adjacent { Ok(()) } else { Err(Unsupported::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: [u8; DEBUG_OFFSETS_BYTES] = [0; DEBUG_OFFSETS_BYTES];

    fn version(minor: u8) -> Version {
        Version { major: 3, minor }
    }

    #[test]
    fn versions_are_read_from_numbers_and_names() {
        assert_eq!(Version::of_hex(0x030b_02f0), version(11));
        for (path, expected) in [
            ("/usr/bin/python3.9", Some(version(9))),
            ("/opt/lib/libpython3.10.so.1.0", Some(version(10))),
            ("/usr/bin/python3", None),
            ("/usr/bin/python", None),
            ("/usr/bin/perl5.36", None),
            ("/usr/bin/python3.", None),
        ] {
            assert_eq!(Version::of_path(path), expected, "{path}");
        }
        assert_eq!(version(14).to_string(), "3.14");
    }

    #[test]
    fn other_versions_are_refused() {
        for other in [version(7), version(15), Version { major: 2, minor: 9 }] {
            let refused = other.interpreter(TargetAddr(0x1000), &NONE);
            assert_eq!(refused, Err(Unsupported::Version(other)), "{other}");
        }
        let message = Unsupported::Version(version(7)).to_string();
        assert_eq!(message, "CPython 3.7 is not supported (3.8 to 3.14 are)");
    }

    #[test]
    fn a_frame_contains_what_is_read_of_it() {
        for (minor, known) in VERSIONS.minors() {
            let Interpreter { frame_bytes, frame_previous, frame_code, frame_instruction, frame_owner, .. } =
                known.offsets;
            assert_eq!(frame_bytes % 8, 0);
            for offset in [frame_previous, frame_code, frame_instruction, frame_owner & !7] {
                assert!(offset + 8 <= frame_bytes, "3.{minor}: {offset}");
            }
        }
    }

    /// As 3.13 publishes them.
    fn published() -> [u8; DEBUG_OFFSETS_BYTES] {
        let mut bytes = NONE;
        bytes[..8].copy_from_slice(MARK);
        let at = [
            (184, 72),
            (192, 152),
            (232, 8),
            (240, 0),
            (248, 56),
            (256, 72),
            (264, 70),
            (280, 112),
            (304, 136),
            (312, 68),
            (344, 200),
            (560, 40),
        ];
        for (position, value) in at {
            bytes[position..position + 8].copy_from_slice(&u64::to_le_bytes(value));
        }
        bytes
    }

    #[test]
    fn published_offsets_are_used() {
        let interpreter = version(13).interpreter(TargetAddr(0x1000), &published()).expect("it is known");
        let expected = Interpreter {
            key: 0x1000 + 2164,
            state_frame: 72,
            state_thread: 152,
            indirect_frame: 0,
            code_bytecode: 200,
            ..SHIMS
        };
        assert_eq!(interpreter, expected);
        let mut other = published();
        other[184] = 80;
        let interpreter = version(13).interpreter(TargetAddr(0x1000), &other).expect("it is known");
        assert_eq!(interpreter.state_frame, 80);
    }

    #[test]
    fn malformed_and_free_threaded_ones_are_refused() {
        let refused = |at: usize, value: u8| {
            let mut bytes = published();
            bytes[at] = value;
            version(13).interpreter(TargetAddr(0x1000), &bytes)
        };
        assert_eq!(refused(0, b'y'), Err(Unsupported::Malformed));
        assert_eq!(refused(FREE_THREADED, 1), Err(Unsupported::FreeThreaded));
        assert_eq!(refused(304, 144), Err(Unsupported::Malformed), "the line table is elsewhere");
        assert_eq!(refused(186, 1), Err(Unsupported::Malformed), "beyond 64 KiB");
    }

    proptest! {
        #[test]
        fn any_published_offsets_give_an_interpreter_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 752)) {
            let mut published = NONE;
            published[..8].copy_from_slice(MARK);
            published[8..].copy_from_slice(&bytes);
            let _ = version(14).interpreter(TargetAddr(0), &published);
        }
    }
}
