//! The part of a recording that a report is about.

use serde::Deserialize;

use crate::model::{Window, WindowReason};
use crate::report::text;

#[derive(Deserialize)]
pub(super) struct WindowFields {
    number: Option<u32>,
    reason: String,
    start_unix_ns: u64,
    since_mark: bool,
    end_unix_ns: u64,
    merged_count: u32,
}

impl WindowFields {
    pub(super) fn into_window(self) -> Result<Window, String> {
        let reason = WindowReason::ALL.into_iter().find(|reason| reason.name() == self.reason);
        Ok(Window {
            number: self.number,
            reason: reason.ok_or_else(|| format!("`{}` ends no window", text::printable(&self.reason)))?,
            start_unix_ns: self.start_unix_ns,
            since_mark: self.since_mark,
            end_unix_ns: self.end_unix_ns,
            merged_count: self.merged_count,
        })
    }
}
