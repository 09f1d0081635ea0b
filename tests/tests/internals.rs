//! Integration tests that also use the library, for what the binary does not output.

#![expect(clippy::disallowed_methods, reason = "tests, with paths and output of their own")]

mod dumps;
mod shapes;
mod top;
mod walked;
