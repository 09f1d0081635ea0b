//! Windows of some targets for servers that store profiles by labels, one series per set of labels.

use super::presentation::View;
use crate::model::{Profile, TargetProfile};

/// Some of the targets of a profile, which is a window.
pub(crate) struct Series<'a> {
    pub(crate) profile: &'a Profile,
    pub(crate) targets: &'a [&'a TargetProfile],
}

/// Quantities of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeriesValues {
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
