//! A trace with Chrome's memory-infra heap dumps.

use std::io;

use super::profile::Profile;
use super::{Presentation, Report, ReportError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct MemoryInfra;

impl Report for MemoryInfra {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(std::io::Error::other("memory-infra is not written yet").into())
    }
}
