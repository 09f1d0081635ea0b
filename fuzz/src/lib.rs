//! Shared by the fuzz targets: parsers of inputs, and all reports of a profile.

pub mod bytes;
pub mod elf;
pub mod image;
pub mod mutation;
pub mod recording;
pub mod reports;
