//! The format of speedscope.

use std::io;

use super::profile::Profile;
use super::{Presentation, Report, ReportError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Speedscope;

impl Report for Speedscope {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(std::io::Error::other("speedscope is not written yet").into())
    }
}
