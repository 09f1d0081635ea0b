//! What each format has of a profile beside live and allocated amounts by stack, and what is left out when it is written.
//! `docs/formats.md` has the same table.

use heapbpf_ledger::model::Profile;

use super::describe;
use super::format::Format;

/// Where a format has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Place {
    /// In its data.
    Data,
    /// In a text about the data.
    Text,
    #[strum(serialize = "–")]
    Nowhere,
}

#[cfg_attr(not(test), expect(dead_code, reason = "tests compare all of them"))]
pub(crate) struct Contents {
    /// Exited processes of which only totals are kept.
    pub(crate) sums: Place,
    /// Whether anything is missing; mostly what, and why.
    pub(crate) drops: Place,
    /// Whether blocks were inherited at a fork.
    pub(crate) inherited: Place,
    /// The heap of each stack, without `--by heap`.
    pub(crate) heaps: Place,
    /// Peaks of processes or stacks.
    pub(crate) peaks: Place,
    /// Which window of the recording it is, or its length.
    pub(crate) windows: Place,
}

impl Format {
    /// Tests compare each entry with what is written.
    pub(crate) const fn contents(self) -> Contents {
        use Place::{Data, Nowhere, Text};
        let [sums, drops, inherited, heaps, peaks, windows] = match self {
            Self::Flamegraph => [Text, Text, Data, Nowhere, Nowhere, Text],
            Self::Html => [Data, Data, Data, Data, Data, Data],
            Self::Folded => [Data, Nowhere, Data, Nowhere, Nowhere, Nowhere],
            Self::Json => [Data, Data, Data, Data, Data, Data],
            Self::Pprof => [Data, Text, Data, Data, Nowhere, Data],
            Self::Speedscope => [Text, Text, Data, Nowhere, Nowhere, Text],
            Self::Firefox => [Text, Text, Data, Nowhere, Nowhere, Data],
            Self::Perfetto => [Text, Text, Data, Data, Nowhere, Data],
            Self::MemoryInfra => [Text, Text, Data, Data, Nowhere, Text],
            Self::Dhat => [Text, Text, Data, Nowhere, Data, Data],
            Self::Massif => [Text, Text, Data, Nowhere, Data, Data],
            Self::Heaptrack => [Text, Text, Data, Nowhere, Nowhere, Nowhere],
            Self::Gperftools => [Data, Nowhere, Nowhere, Nowhere, Nowhere, Nowhere],
            Self::Csv => [Data, Nowhere, Data, Data, Nowhere, Nowhere],
            Self::CsvFunctions => [Data, Nowhere, Nowhere, Nowhere, Nowhere, Nowhere],
            Self::Otlp => [Text, Text, Data, Data, Nowhere, Data],
            Self::Parquet => [Text, Data, Data, Data, Nowhere, Data],
        };
        Contents { sums, drops, inherited, heaps, peaks, windows }
    }

    /// What a file of the format lacks of this profile, for the message that it was written: `, without 1.1 MiB live bytes of 3 processes
    /// that exited, without the verdict: 123 events dropped`; empty if nothing.
    pub fn lacks(self, profile: &Profile) -> String {
        let Contents { sums, drops, .. } = self.contents();
        let sums = describe::left_out(profile).filter(|_| sums != Place::Data);
        let drops = (drops == Place::Nowhere && profile.incomplete()).then(|| describe::verdict(profile));
        let sums = sums.map_or(String::new(), |left_out| format!(", {left_out}"));
        sums + &drops.map_or(String::new(), |verdict| format!(", without the verdict: {verdict}"))
    }
}
