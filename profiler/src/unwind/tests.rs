//! Tables of synthetic modules, of all installed modules, and compared with other unwinders.

mod aarch64;
mod against_dwarf;
mod installed;
mod live;
mod module;
mod prologue;
mod synthetic;

/// A file with these bytes.
fn file(bytes: &[u8]) -> super::File {
    super::File::from_bytes(bytes).expect("memory")
}
