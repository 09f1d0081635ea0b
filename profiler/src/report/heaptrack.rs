//! The format of heaptrack: event by event, so of a recording only.

use std::io;

use super::profile::Profile;
use super::{Presentation, Report, ReportError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Heaptrack;

impl Report for Heaptrack {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(ReportError::NeedsRecording(super::Format::Heaptrack))
    }
}
