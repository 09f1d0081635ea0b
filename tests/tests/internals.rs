//! Integration tests that also use the library, for what the binary does not output.

mod dumps;
mod shapes;
mod top;
mod walked;
