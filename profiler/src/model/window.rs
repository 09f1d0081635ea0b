//! A part of a recording.

/// A part of a recording. Allocated and freed are of this part; inherited is what was live at its start, live what is live
/// at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its number, from 1; `None` for the state at the peak.
    pub number: Option<u32>,
    /// Why it ends.
    pub reason: WindowReason,
    /// Its start, in nanoseconds since the Unix epoch: the end of the window before, or the mark.
    pub start_unix_ns: u64,
    /// It starts at a mark.
    pub since_mark: bool,
    /// Its end, in nanoseconds since the Unix epoch.
    pub end_unix_ns: u64,
    /// Periodic dumps that were left out in it, because an earlier one was still being written.
    pub merged_count: u32,
}

/// Why a window ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowReason {
    /// Its time was over.
    Time,
    /// Live bytes had grown so much.
    Growth,
    /// So much was allocated.
    Alloc,
    /// A signal asked for it.
    Signal,
    /// The recording ended.
    End,
    /// Not a window: every target as it was when its live bytes were highest.
    Peak,
}

impl WindowReason {
    /// All reasons.
    pub const ALL: [Self; 6] = [Self::Time, Self::Growth, Self::Alloc, Self::Signal, Self::End, Self::Peak];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Growth => "growth",
            Self::Alloc => "alloc",
            Self::Signal => "signal",
            Self::End => "end",
            Self::Peak => "peak",
        }
    }
}
