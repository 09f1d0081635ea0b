//! The symbolizer: a confined process (see `linux::confinement`) that parses files which targets can forge; the agent
//! opens them. If it crashes or takes too long, it is killed and restarted: the module's names are then read from its
//! symbol table, and if that fails too, there are none. Here are its messages, and its limits of time and memory.

mod client;
mod dwarf;
mod partial_units;
mod remainder;
mod scopes;
mod sections;
mod source_map;
mod symbolizer;

use std::sync::Arc;
use std::time::Duration;

use heapbpf_linux::confinement::Confinement;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::generated::{Format, Place};
use super::names::ResolvedFrame;
use crate::object::script::Spot;

pub(super) use client::Sandbox;
pub(crate) use client::{Interrupt, confinement, crashes};
pub(crate) use source_map::exercise;
pub use symbolizer::serve;
pub(super) use symbolizer::{Engine, Files, ModuleFile};

/// The hidden command that runs the symbolizer.
pub const COMMAND: &str = "symbolizer";
const PROCESS_NAME: &str = "heapbpf-symbol";
const MODULE_TIME: Duration = Duration::from_secs(3);
/// Bytes of a module's files that extend its time limit by a second.
const TIME_PER_BYTES: u64 = 64 << 20;
/// Time limit for a module of any size. A target chooses the size of its files.
const MODULE_TIME_MAX: Duration = Duration::from_secs(10);
/// For all modules of a report.
const TOTAL_TIME_MAX: Duration = Duration::from_secs(30);
/// Memory limit of the symbolizer, files that it has mapped not counted, in bytes.
const MEMORY_BYTES_MAX: u64 = 2 << 30;
/// CPU time after which the kernel ends the symbolizer, should the agent not.
const CPU_TIME_MAX: Duration = Duration::from_secs(60);
/// Maximum number of addresses in a request, so that replies arrive while a module is being read.
const ADDRESSES_MAX: usize = 512;
/// Maximum number of functions per address; compilers inline far fewer.
const FRAMES_MAX: usize = 257;
/// Maximum length of a name or path, in bytes: that of `demangle` with its `…`, which exceeds every path.
const STRING_BYTES_MAX: usize = (1 << 14) + 3;
/// Maximum length of a path.
const PATH_BYTES_MAX: usize = 4096;
/// Maximum number of files with debug information of units, per module: a message carries few more descriptors.
pub(super) const MISSING_MAX: usize = 128;
/// Bytes of strings after which a reply ends; it then covers only the first addresses.
const STRINGS_BYTES: usize = 4 << 20;
const REQUEST_BYTES_MAX: usize = 1 << 16;
/// Strings of a reply plus those of one address, with indices.
const REPLY_BYTES_MAX: usize = 32 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    Own,
    /// By build id, of a distribution.
    DebugFile,
    /// By build id, of a directory that others may write, or of a server.
    UnverifiedDebugFile,
    /// With the checksum that its module states.
    Linked(u32),
    /// A file that others refer to by this build id, in hexadecimal (dwz(1)).
    Shared(String),
    /// Debug information of units that the module's own refers to: all in one file (`.dwp`).
    Package,
    /// As above, of one unit (`.dwo`).
    Split,
    /// Names of generated code.
    Generated(Format),
    /// The sources of a script.
    SourceMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Depth {
    /// Debug information, and symbol tables for the rest.
    DebugInformation,
    SymbolTables,
}

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Opens another module, whose files are the descriptors sent with the request.
    Open { roles: Vec<Role>, depth: Depth },
    /// Symbolizes these linked addresses, in ascending order.
    Name { addresses: Vec<u64> },
    /// Symbolizes generated code.
    NameGenerated { places: Vec<Place> },
    /// Finds the sources of these places in a script, in ascending order.
    Translate { spots: Vec<Spot> },
}

/// Addresses to symbolize, in ascending order.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question<'a> {
    /// Linked addresses of a file.
    Linked(&'a [u64]),
    /// Of generated code.
    Generated(&'a [Place]),
    /// Places in a script.
    Script(&'a [Spot]),
}

impl Question<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Linked(addresses) => addresses.len(),
            Self::Generated(places) => places.len(),
            Self::Script(spots) => spots.len(),
        }
    }

    /// All but the first ones.
    pub(super) fn after(self, count: usize) -> Self {
        match self {
            Self::Linked(addresses) => Self::Linked(&addresses[count..]),
            Self::Generated(places) => Self::Generated(&places[count..]),
            Self::Script(spots) => Self::Script(&spots[count..]),
        }
    }

    /// A request for the first addresses, and their number.
    fn request(self) -> (Request, usize) {
        let count = self.len().min(ADDRESSES_MAX);
        let request = match self {
            Self::Linked(addresses) => Request::Name { addresses: addresses[..count].to_vec() },
            Self::Generated(places) => Request::NameGenerated { places: places[..count].to_vec() },
            Self::Script(spots) => Request::Translate { spots: spots[..count].to_vec() },
        };
        (request, count)
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    /// The first message, before any request.
    Ready(Confinement),
    /// Reply to `Open`, with the indices of files that the symbolizer may not open and does not use.
    Opened(Vec<usize>),
    Names(Names),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Defect {
    /// Reading it failed in a way that well-formed files do not.
    Malformed,
    /// Its symbol tables end behind it, or it is too large to be mapped.
    Unreadable,
    /// Its compressed sections exceed the limit, or their claimed sizes.
    Compressed,
    /// Its debug information is compressed in an unknown format.
    UnknownCompression,
    /// Its debug information refers to a file that was not sent (dwz(1)).
    Shared,
    Checksum,
    /// Its `.gnu_debugdata` cannot be decompressed, or exceeds a limit.
    MiniDebugInfo,
    /// Number of its entries that are malformed.
    Entries(u64),
    /// It exceeds the limit: its rest is ignored.
    Size,
    /// It is no source map of version 3.
    NoSourceMap,
}

/// Names for all addresses of a request, or for the first ones.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Names {
    /// By address, innermost first; none if unknown.
    pub(super) answers: Vec<Vec<ResolvedFrame>>,
    /// By address, the linked address at which a function without a name starts, if known.
    pub(super) starts: Vec<Option<u64>>,
    pub(super) defects: Vec<Defect>,
    /// Paths of files with debug information of these addresses that were not sent.
    pub(super) missing: Vec<String>,
    /// Number of these files, of which only the first ones are listed.
    pub(super) missing_count: u64,
}

impl Names {
    /// A compromised symbolizer may send anything.
    fn is_valid(&self, asked: usize, question: Question<'_>) -> bool {
        // Sources of scripts have the name of what is at a place, if it has one.
        let may_lack_name = matches!(question, Question::Script(_));
        let is_short = |text: &Arc<str>| text.len() <= STRING_BYTES_MAX;
        (1..=asked).contains(&self.answers.len())
            && self.starts.len() == self.answers.len()
            && self.defects.len() <= ADDRESSES_MAX
            && self.missing.len() <= MISSING_MAX
            && self.missing.iter().all(|path| path.len() <= PATH_BYTES_MAX)
            && self.answers.iter().all(|frames| frames.len() <= FRAMES_MAX)
            && self.answers.iter().flatten().all(|frame| {
                frame.function.as_ref().map_or(may_lack_name, is_short) && frame.file.as_ref().is_none_or(is_short)
            })
    }
}

fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Only maps of unknown length cannot be encoded.
    postcard::to_stdvec(message).unwrap_or_default()
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(message, _)| message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKED: Question<'_> = Question::Linked(&[]);

    fn names(answers: Vec<Vec<ResolvedFrame>>) -> Names {
        Names { starts: vec![None; answers.len()], answers, ..Names::default() }
    }

    #[test]
    fn invalid_answers_are_refused() {
        let frame =
            || ResolvedFrame { function: Some("main".into()), file: Some("a.c".into()), ..ResolvedFrame::default() };
        assert!(names(vec![vec![frame()], vec![]]).is_valid(2, LINKED));
        assert!(!names(vec![vec![frame()]]).is_valid(0, LINKED));
        assert!(!names(vec![]).is_valid(2, LINKED));
        assert!(!Names { starts: Vec::new(), ..names(vec![vec![frame()]]) }.is_valid(1, LINKED));
        let nameless = names(vec![vec![ResolvedFrame { function: None, ..frame() }]]);
        assert!(!nameless.is_valid(1, LINKED) && nameless.is_valid(1, Question::Script(&[])));
        assert!(!names(vec![vec![frame(); FRAMES_MAX + 1]]).is_valid(1, LINKED));
        let long: Arc<str> = "a".repeat(STRING_BYTES_MAX + 1).into();
        assert!(!names(vec![vec![ResolvedFrame { function: Some(Arc::clone(&long)), ..frame() }]]).is_valid(1, LINKED));
        assert!(!names(vec![vec![ResolvedFrame { file: Some(long), ..frame() }]]).is_valid(1, LINKED));
    }

    #[test]
    fn messages_are_decoded_whole_or_not_at_all() {
        let bytes = encode(&Request::Name { addresses: vec![1, u64::MAX] });
        assert!(matches!(decode(&bytes), Some(Request::Name { addresses }) if addresses == [1, u64::MAX]));
        assert!(decode::<Request>(&bytes[..bytes.len() - 1]).is_none());
        assert!(decode::<Request>(&[&bytes[..], b"x"].concat()).is_none());
        // A forged length must not allocate memory.
        assert!(decode::<Reply>(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_none());
    }
}
