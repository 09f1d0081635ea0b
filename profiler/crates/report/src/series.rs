//! Windows of some targets for servers that store profiles by labels, one series per set of labels.

use heapbpf_ledger::model::{Profile, TargetProfile};

use super::presentation::View;

/// Some of the targets of a profile, which is a window.
pub struct Series<'a> {
    pub profile: &'a Profile,
    pub targets: &'a [&'a TargetProfile],
}

/// Quantities of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesValues {
    All,
    /// Allocated in the window, which has a duration.
    Allocated,
    /// Live at the end of the window: of a point in time, without a duration.
    LiveAtEnd,
}

impl SeriesValues {
    pub(super) fn has(self, view: View) -> bool {
        match self {
            Self::All => true,
            Self::Allocated => !view.is_live(),
            Self::LiveAtEnd => view.is_live(),
        }
    }
}
