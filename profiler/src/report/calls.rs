//! Calls that happened: runs of frames that share an address, because all but the last were inlined into the next.

use crate::model::{FrameId, Profile};

/// The calls of a stack, leaf first. Of each the last frame is the function that the others were inlined into; only of a stack that
/// ends in an inlined frame it is not.
pub(super) fn calls<'a>(profile: &'a Profile, stack: &'a [FrameId]) -> impl DoubleEndedIterator<Item = &'a [FrameId]> {
    let inlined = |id: &FrameId| profile.frames.get(id.0 as usize).is_some_and(|frame| frame.inlined);
    stack.split_inclusive(move |id| !inlined(id))
}
