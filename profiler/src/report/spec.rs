//! What a file format declares about itself. [`Format`](super::format::Format) lists all formats.

use std::io;

use super::presentation::Presentation;
use crate::model::Profile;

/// Properties of a file format.
pub(super) struct FormatSpec {
    /// Name on the command line.
    pub(super) name: &'static str,
    /// End of the file names that select the format, without the leading dot.
    pub(super) extension: &'static str,
    /// Name in messages.
    pub(super) description: &'static str,
    /// A terminal can show the output.
    pub(super) is_text: bool,
    /// `None` if the format consists of single events, which a recording has and a profile has not.
    pub(super) write: Option<Write>,
}

/// Writes a whole profile. Formats that show one quantity show the one of the presentation's view.
type Write = fn(&Profile, &Presentation, &mut dyn io::Write) -> io::Result<()>;
