//! Ends stacks as complete at the first function of greenlets (<https://greenlet.readthedocs.io>), on which gevent and eventlet are based.
//!
//! A greenlet begins within the stack of the function that starts it, and never returns there: it ends by switching to another one.
//! What is outside of its first function belongs to others, and is overwritten or copied elsewhere when they continue
//! (`UserGreenlet::g_initialstub` in `TUserGreenlet.cpp`).

use super::cfi::Functions;
use super::image::Image;
use super::table;

/// Ends stacks at the functions that [`Image`] has found.
pub(super) fn mark(image: &Image<'_>, spans: &mut Functions) {
    for &address in &image.greenlets {
        spans.replace(address, table::END);
    }
}
