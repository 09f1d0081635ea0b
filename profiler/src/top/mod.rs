//! Implementation of `heapbpf top`: the running recording on a screen, or as lines for scripts.
//!
//! A profile goes into the [`State`](state::State), keys change it, and [`draw`] shows it; none of these performs input or
//! output. The loop in `screen.rs` connects them with the feed and the terminal.

mod columns;
mod draw;
mod flame;
mod input;
mod model;
pub(crate) mod screen;
pub(crate) mod script;
mod state;
pub(crate) mod theme;

/// Phase of a recording as a view sees it, in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Recording,
    /// The feed has the last snapshot.
    Ended,
    /// The view is to end.
    Closing,
}
