//! Versions of PHP, and the layout of their functions (`zend_op_array` in `Zend/zend_compile.h`) on 64-bit systems.

use profiler_common::php::Php;
use thiserror::Error;

use super::super::version::{Version, Versions};

/// What the version follows, in a header of HTTP that all builds contain (`main/SAPI.h`).
const VERSION: &[u8] = b"X-Powered-By: PHP/";

/// Why frames of PHP are not unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Unsupported {
    #[error("PHP {0} is not supported ({VERSIONS} are)")]
    Version(Version),
    #[error("the version of PHP is unknown")]
    NoVersion,
    #[error("thread-safe builds of PHP (ZTS) are not supported")]
    ThreadSafe,
    #[error("cannot locate PHP's frames: `zend_is_executing` has unexpected code")]
    NoFrames,
}

impl Version {
    /// Of the first version that follows [`VERSION`].
    pub(super) fn in_text(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        // Most bytes are skipped fast, also in builds without optimization.
        while let Some(at) = rest.iter().position(|byte| *byte == VERSION[0]) {
            rest = &rest[at..];
            if let Some(version) = rest.strip_prefix(VERSION).and_then(Self::at_start) {
                return Some(version);
            }
            rest = &rest[1..];
        }
        None
    }

    fn at_start(bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| -> Option<(u8, usize)> {
            let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
            Some((str::from_utf8(&bytes[..digits]).ok()?.parse().ok()?, digits))
        };
        let (major, digits) = number(bytes)?;
        let rest = bytes[digits..].strip_prefix(b".")?;
        let (minor, digits) = number(rest)?;
        // Further digits may be behind the end of the text.
        (digits < rest.len()).then_some(Self { major, minor })
    }

    /// The offsets of this version.
    pub(super) fn php(self) -> Result<Php, Unsupported> {
        let [function_file, function_line] = *VERSIONS.get(self).ok_or(Unsupported::Version(self))?;
        Ok(Php { function_file, function_line, ..Php::default() })
    }
}

/// Offsets of `filename` and `line_start`, by minor version. 8.2 added a pointer and an integer before them, 8.3 ordered these without
/// padding, 8.4 added two pointers.
pub(super) const VERSIONS: Versions<[u16; 2]> = Versions::new(
    8,
    &[(0, [144, 152]), (1, [144, 152]), (2, [152, 160]), (3, [144, 152]), (4, [168, 176]), (5, [168, 176])],
);
