//! Names, units and identities that all parts of heapbpf's agent share: process IDs, addresses, bytes and counts with their error,
//! the languages that have interpreters, and the printable form of names that a target chooses. No system calls.
//!
//! ```
//! use heapbpf_base::shown::Shown;
//! use heapbpf_base::units::parse_bytes;
//!
//! assert_eq!(parse_bytes("64KiB"), Some(65_536));
//! assert_eq!(Shown::of("a\u{1b}[2J").to_string(), "a\\u{1b}[2J");
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests choose their names, and print to nobody's terminal")
)]
#![expect(missing_docs, reason = "what names and types say is not repeated; only heapbpf uses this crate")]

pub mod address;
pub mod ids;
pub mod language;
pub mod memory;
pub mod shown;
#[cfg(feature = "testing")]
#[allow(clippy::disallowed_methods, reason = "tests choose their names, and print to nobody's terminal")]
pub mod testing;
pub mod units;
