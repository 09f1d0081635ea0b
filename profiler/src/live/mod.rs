//! The running recording, for views that show it: `top`, `--serve`, `--push`.

mod feed;
mod namer;

pub(crate) use crate::symbolize::sandbox::crashes as symbolizer_crashes;
pub(crate) use feed::{Feed, Unavailable};
