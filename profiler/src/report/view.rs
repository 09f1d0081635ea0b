//! What of a profile is shown: live or allocated, bytes or blocks.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::text;
use crate::ledger::totals::Totals;
use crate::model::{CallsiteProfile, Profile};
use crate::units::EstimatedVariance;

/// Which quantity a report shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// Bytes allocated and not freed.
    #[default]
    LiveBytes,
    /// Blocks allocated and not freed.
    LiveCount,
    /// Bytes allocated, freed or not.
    AllocBytes,
    /// Blocks allocated, freed or not.
    AllocCount,
}

impl View {
    /// Whether the profile shows of this quantity what blocks of some age hold, and nothing of younger ones.
    pub const fn shows_old_blocks_only(self, profile: &Profile) -> bool {
        matches!(self, Self::LiveBytes | Self::LiveCount) && profile.older_than_ns.is_some()
    }

    /// All views, in the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::LiveBytes, Self::LiveCount, Self::AllocBytes, Self::AllocCount];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LiveBytes => "live-bytes",
            Self::LiveCount => "live-count",
            Self::AllocBytes => "alloc-bytes",
            Self::AllocCount => "alloc-count",
        }
    }

    /// Its name in a sentence.
    pub const fn title(self) -> &'static str {
        match self {
            Self::LiveBytes => "live bytes",
            Self::LiveCount => "live blocks",
            Self::AllocBytes => "allocated bytes",
            Self::AllocCount => "allocated blocks",
        }
    }

    /// What it counts: `bytes` or `blocks`.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::LiveBytes | Self::AllocBytes => "bytes",
            Self::LiveCount | Self::AllocCount => "blocks",
        }
    }

    /// The quantity, rounded to a whole number.
    pub fn rounded(self, totals: &Totals) -> u64 {
        match self {
            Self::LiveBytes => totals.live_bytes().rounded(),
            Self::LiveCount => totals.live_count().rounded(),
            Self::AllocBytes => totals.alloc_bytes.rounded(),
            Self::AllocCount => totals.alloc_count.rounded(),
        }
    }

    /// The quantity of a callsite that is to be shown: of live blocks, those alone that are old enough.
    pub fn of_callsite(self, callsite: &CallsiteProfile) -> u64 {
        match (self, callsite.older) {
            (Self::LiveBytes, Some(older)) => older.bytes.rounded(),
            (Self::LiveCount, Some(older)) => older.count.rounded(),
            _ => self.rounded(&callsite.totals),
        }
    }

    /// The 95 % confidence interval of what the totals say of it.
    pub fn confidence(self, totals: &Totals) -> [f64; 2] {
        Totals::confidence(self.estimate(totals), self.variance(totals))
    }

    /// The quantity, in bytes or blocks.
    pub fn estimate(self, totals: &Totals) -> f64 {
        match self {
            Self::LiveBytes => totals.live_bytes().to_f64(),
            Self::LiveCount => totals.live_count().to_f64(),
            Self::AllocBytes => totals.alloc_bytes.to_f64(),
            Self::AllocCount => totals.alloc_count.to_f64(),
        }
    }

    /// The variance of that estimate.
    pub fn variance(self, totals: &Totals) -> EstimatedVariance {
        match self {
            Self::LiveBytes => totals.live_variance.bytes,
            Self::LiveCount => totals.live_variance.count,
            Self::AllocBytes => totals.alloc_variance.bytes,
            Self::AllocCount => totals.alloc_variance.count,
        }
    }

    /// Samples that it is estimated from.
    pub fn samples(self, totals: &Totals) -> u64 {
        match self {
            Self::LiveBytes | Self::LiveCount => totals.live_samples,
            Self::AllocBytes | Self::AllocCount => totals.alloc_samples,
        }
    }

    /// An amount of it, written for people.
    pub(super) fn amount(self, rounded: u64) -> String {
        match self {
            Self::LiveBytes | Self::AllocBytes => text::size(rounded),
            Self::LiveCount | Self::AllocCount => text::counted(rounded, "block"),
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for View {
    type Err = ViewError;

    fn from_str(name: &str) -> Result<Self, ViewError> {
        Self::ALL.into_iter().find(|view| view.name() == name).ok_or_else(|| ViewError { name: name.to_owned() })
    }
}

/// There is no such view.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{name}` is no view; use `live-bytes`, `live-count`, `alloc-bytes` or `alloc-count`")]
pub struct ViewError {
    name: String,
}
