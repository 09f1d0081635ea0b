//! Prints the file extension of each format that a report can be converted to, one per line. `cargo xtask bench formats`
//! measures these.

#![expect(clippy::print_stdout, reason = "another program reads the output")]

use heapbpf_report::Format;

fn main() {
    for format in Format::ALL.into_iter().filter(|format| !format.needs_recording()) {
        println!("{}", format.spec().extension);
    }
}
