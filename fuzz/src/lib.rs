//! What several fuzz targets need: inputs that are framed, and all reports of a profile. Contains no target.

pub mod bytes;
pub mod elf;
pub mod image;
pub mod mutation;
pub mod recording;
pub mod reports;
