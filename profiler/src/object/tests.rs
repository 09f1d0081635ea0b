//! What tests of other folders share too.

pub(crate) mod fixture;
