//! Settings of `heapbpf top`.

use std::time::Duration;

use heapbpf_report::Presentation;
use regex::Regex;

use crate::top::script::Style;

/// Presentation of a recording while it is running.
#[derive(Clone, Debug)]
pub(super) struct TopSettings {
    pub(super) period: Duration,
    /// Style of the lines for scripts; `None` for the screen.
    pub(super) style: Option<Style>,
    pub(super) is_once: bool,
    pub(super) has_duration: bool,
    pub(super) callsites_max: usize,
    pub(super) focus: Option<Regex>,
    /// Whether a shell does job control.
    pub(super) is_stoppable: bool,
    pub(super) presentation: Presentation,
}

impl TopSettings {
    pub(super) fn is_for_scripts(&self) -> bool {
        self.style.is_some()
    }
}

/// The kind of terminal; `None` if it is not known.
pub(super) fn term() -> Option<String> {
    std::env::var("TERM").ok().filter(|term| !term.is_empty())
}
