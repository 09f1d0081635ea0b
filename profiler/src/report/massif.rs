//! The format of valgrind's massif: a timeline, with the peak in detail.

use std::io;

use super::profile::Profile;
use super::{Presentation, Report, ReportError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Massif;

impl Report for Massif {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(std::io::Error::other("massif is not written yet").into())
    }
}
