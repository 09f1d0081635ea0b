//! The running recording, for views that show it meanwhile: `top`, `--serve`, `--push`.

mod feed;
mod namer;

pub(crate) use feed::{Feed, Unavailable};
