//! OpenTelemetry's profiles signal, as sent to a collector.

use std::io;

use super::profile::Profile;
use super::{Presentation, Report, ReportError};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Otlp;

impl Report for Otlp {
    fn write(&self, _: &Profile, _: &Presentation, _: &mut dyn io::Write) -> Result<(), ReportError> {
        Err(std::io::Error::other("otlp is not written yet").into())
    }
}
