//! Offsets in CRuby's structures, on 64-bit systems, by version: `vm_core.h`, `iseq.h` and `ruby/internal/core/rstring.h`. They are the same
//! in all releases of a minor version.

use profiler_common::ruby::{LENGTH_IN_FLAGS, NAMES_OWNERS};
use thiserror::Error;

use super::super::version::{Version, Versions};

/// Why frames of a CRuby are not unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Unsupported {
    #[error("CRuby {0} is not supported ({VERSIONS} are)")]
    Version(Version),
    #[error("the version of CRuby is unknown")]
    NoVersion,
    #[error("the code of CRuby's interpreter (`vm_exec`) was not found")]
    NoLoop,
    #[error("the pointer to CRuby's execution context (`ruby_current_ec`) was not found")]
    NoContext,
    #[error("its memory cannot be read")]
    Unreadable,
}

impl Version {
    /// Of `ruby_version`: `3.1.2`, then a zero.
    pub(super) fn of_text(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text.split(|&byte| byte == 0).next()?).ok()?;
        let mut parts = text.split('.').map(|part| part.parse().ok());
        Some(Self { major: parts.next()??, minor: parts.next()?? })
    }

    pub(super) fn layout(self) -> Result<Layout, Unsupported> {
        VERSIONS.get(self).copied().ok_or(Unsupported::Version(self))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of a control frame.
    pub(super) frame_bytes: u32,
    /// In a body: the table of lines (`insns_info`), and the bytes of one of its entries.
    pub(super) lines: u32,
    pub(super) line_bytes: u32,
    /// [`NAMES_OWNERS`] and [`LENGTH_IN_FLAGS`].
    pub(super) flags: u32,
}

const FIRST: Layout = Layout { frame_bytes: 56, lines: 120, line_bytes: 8, flags: LENGTH_IN_FLAGS };
/// With `jit_return` in frames, and `node_id` in lines.
const SECOND: Layout = Layout { frame_bytes: 64, line_bytes: 12, ..FIRST };
const THIRD: Layout = Layout { lines: 112, flags: 0, ..SECOND };
/// Without `__bp__` in frames.
const FOURTH: Layout = Layout { frame_bytes: 56, ..THIRD };
const FIFTH: Layout = Layout { flags: NAMES_OWNERS, ..FOURTH };

const VERSIONS: Versions<Layout> = Versions::new(3, &[(0, FIRST), (1, SECOND), (2, THIRD), (3, FOURTH), (4, FIFTH)]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_their_layouts() {
        for (text, frame_bytes) in [("3.0.6", 56), ("3.1.2", 64), ("3.2.0", 64), ("3.3.8\0x", 56), ("3.4.11", 56)] {
            let version = Version::of_text(text.as_bytes()).expect("a version");
            assert_eq!(version.layout().map(|layout| layout.frame_bytes), Ok(frame_bytes), "{text}");
        }
        for text in ["2.7.8", "3.5.0", "4.0.0"] {
            let version = Version::of_text(text.as_bytes()).expect("a version");
            assert_eq!(version.layout(), Err(Unsupported::Version(version)), "{text}");
        }
        let message = Unsupported::Version(Version { major: 4, minor: 0 }).to_string();
        assert_eq!(message, "CRuby 4.0 is not supported (3.0 to 3.4 are)");
        for text in ["", "3", "3.", "3.x", "300.1"] {
            assert_eq!(Version::of_text(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Version { major: 2, minor: 7 }.to_string(), "2.7");
    }
}
