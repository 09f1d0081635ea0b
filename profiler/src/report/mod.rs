//! Reports: one file per format, each made from a [`Profile`](profile::Profile) alone.

pub mod profile;
