//! Probes: hooks placed at addresses and attached.

mod arch {
    pub(super) mod flow;
    mod pointers;
    pub(crate) mod stub;
    mod stub_image;
    mod x86_64;

    pub(super) use pointers::{PointerPlace, pointers_read};
    pub use x86_64::Emulation;
    pub(super) use x86_64::*;
}
pub(crate) mod attach;
pub(crate) mod calls;
pub(crate) mod code;
pub(crate) mod cost;
pub(crate) mod foreign;
pub(crate) mod inlined;
pub(crate) mod jumps;
pub(crate) mod leftover;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) use arch::stub;
