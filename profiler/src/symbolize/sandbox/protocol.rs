//! What the agent and the symbolizer process send each other, and what the agent believes of it.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::linux::confinement::Confinement;

/// Maximum number of addresses in a request, so that answers arrive while a module is being read.
pub(super) const ADDRESSES_MAX: usize = 512;
/// Maximum number of functions that are reported for one address; compilers inline far fewer.
pub(super) const FRAMES_MAX: usize = 257;
/// Longest name or path, in bytes: the longest name (see `demangle`) with its `…`, which exceeds every path.
pub(super) const STRING_BYTES_MAX: usize = (1 << 14) + 3;
/// Bytes of strings after which an answer ends, and covers the first addresses alone.
pub(super) const STRINGS_BYTES: usize = 4 << 20;
/// Largest request, in bytes.
pub(super) const REQUEST_BYTES_MAX: usize = 1 << 16;
/// Largest reply, in bytes: the strings, and once more those of one address, with indices.
pub(super) const REPLY_BYTES_MAX: usize = 32 << 20;

/// What a file is to the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::symbolize) enum Role {
    /// The module itself.
    Own,
    /// Its debug file, which has its build id.
    DebugFile,
    /// The debug file that it names.
    Linked {
        /// CRC-32 that the file must have.
        checksum: u32,
    },
    /// A file that others of these refer to by build id (dwz(1)).
    Shared {
        /// Its build id, in hexadecimal.
        build_id: String,
    },
}

/// What to read of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::symbolize) enum Depth {
    /// Debug information, and symbol tables for what it does not have.
    DebugInformation,
    /// Symbol tables alone.
    SymbolTables,
}

/// A request to the symbolizer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Turns to another module, whose files are the descriptors that come with the request.
    Open { roles: Vec<Role>, depth: Depth },
    /// Names these link addresses, in ascending order.
    Name { addresses: Vec<u64> },
}

/// An answer of the symbolizer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    /// The first message, before any request.
    Ready(Confinement),
    /// To `Open`. Files that the symbolizer may not open are not used; their places in the request.
    Opened { refused: Vec<usize> },
    /// To `Name`.
    Names(Names),
}

/// What about a file is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::symbolize) enum Defect {
    /// Reading it failed in a way that well-formed files do not.
    Malformed,
    /// Its compressed sections are larger than the limit, or than they state.
    Compressed,
    /// The checksum differs.
    Checksum,
}

/// Names of the first addresses of a request, or of all.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::symbolize) struct Names {
    /// All strings, each once.
    pub(in crate::symbolize) strings: Vec<String>,
    /// By address, the functions active there, the innermost first; none where nothing is known.
    pub(in crate::symbolize) answers: Vec<Vec<NamedFrame>>,
    /// What was found to be wrong meanwhile.
    pub(in crate::symbolize) defects: Vec<Defect>,
}

/// One function, with indices into the strings.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(in crate::symbolize) struct NamedFrame {
    pub(in crate::symbolize) function: u32,
    pub(in crate::symbolize) file: Option<u32>,
    pub(in crate::symbolize) line: Option<u32>,
    pub(in crate::symbolize) inlined: bool,
}

impl Names {
    /// Whether this can be an answer about `asked` addresses. A symbolizer that a file has taken over may send anything.
    pub(super) fn is_valid(&self, asked: usize) -> bool {
        let known = |index: u32| (index as usize) < self.strings.len();
        (1..=asked).contains(&self.answers.len())
            && self.defects.len() <= ADDRESSES_MAX
            && self.strings.iter().all(|text| text.len() <= STRING_BYTES_MAX)
            && self.answers.iter().all(|frames| frames.len() <= FRAMES_MAX)
            && self.answers.iter().flatten().all(|frame| known(frame.function) && frame.file.is_none_or(known))
    }
}

/// Encodes a message.
pub(super) fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Only a map of unknown length cannot be encoded.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// Decodes a message that must be nothing else.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(answers: Vec<Vec<NamedFrame>>) -> Names {
        Names { strings: vec!["main".to_owned()], answers, defects: Vec::new() }
    }

    #[test]
    fn answers_that_cannot_be_are_not_believed() {
        let frame = NamedFrame { function: 0, file: Some(0), line: None, inlined: false };
        assert!(names(vec![vec![frame], vec![]]).is_valid(2));
        assert!(!names(vec![vec![frame]]).is_valid(0));
        assert!(!names(vec![]).is_valid(2));
        assert!(!names(vec![vec![NamedFrame { function: 1, ..frame }]]).is_valid(1));
        assert!(!names(vec![vec![NamedFrame { file: Some(1), ..frame }]]).is_valid(1));
        assert!(!names(vec![vec![frame; FRAMES_MAX + 1]]).is_valid(1));
        let long = Names { strings: vec!["a".repeat(STRING_BYTES_MAX + 1)], ..names(vec![vec![frame]]) };
        assert!(!long.is_valid(1));
    }

    #[test]
    fn messages_are_decoded_whole_or_not_at_all() {
        let bytes = encode(&Request::Name { addresses: vec![1, u64::MAX] });
        assert!(matches!(decode(&bytes), Some(Request::Name { addresses }) if addresses == [1, u64::MAX]));
        assert!(decode::<Request>(&bytes[..bytes.len() - 1]).is_none());
        assert!(decode::<Request>(&[&bytes[..], b"x"].concat()).is_none());
        // A length that nothing stands behind reserves no memory.
        assert!(decode::<Reply>(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_none());
    }
}
