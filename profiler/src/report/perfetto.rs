//! A Perfetto trace, as heapprofd writes it.

use std::io;

use super::profile::Profile;
use super::{Presentation, Report, ReportError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Perfetto;

impl Report for Perfetto {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(std::io::Error::other("perfetto is not written yet").into())
    }
}
