//! Every format against its goldens, and invariants for any profile.
//!
//! `UPDATE_GOLDEN=1 cargo test -p heapbpf-report --lib` rewrites the goldens; read the difference before you commit it.

mod choice;
mod contents;
mod csv;
mod cuts;
mod dhat;
mod diff;
mod filter;
mod firefox;
mod flamegraph;
mod folded;
mod folding;
mod gperftools;
mod guardrails;
mod heaptrack;
mod hooks;
mod html;
mod json;
mod kinds;
mod massif;
mod memory_infra;
mod old_blocks;
mod otlp;
mod out_of_range;
mod parquet;
mod perfetto;
mod pprof;
mod properties;
mod read;
mod schema;
mod speedscope;
mod summary;
mod tail;
mod troubleshooting;
mod unreachable;
mod verdict;

use std::path::Path;

use heapbpf_ledger::model::Profile;

use super::{Format, View};

/// The profile as bytes of the format.
fn render(format: Format, profile: &Profile, view: View) -> String {
    String::from_utf8(written(format, profile, view)).expect("it is a format of text")
}

/// Like [`render`], for binary formats too.
fn written(format: Format, profile: &Profile, view: View) -> Vec<u8> {
    let mut bytes = Vec::new();
    format.write(profile, &view.into(), &mut bytes).expect("a vector takes all bytes");
    bytes
}

/// Formats that do not need a recording.
fn formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|format| !format.needs_recording())
}

/// Compares with `testdata/{path}`, byte for byte.
#[track_caller]
fn check_golden(path: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata").join(path);
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().expect("goldens are in folders")).expect("testdata can be written to");
        std::fs::write(&path, actual).expect("testdata can be written to");
        return;
    }
    let expected = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run with UPDATE_GOLDEN=1 to make it", path.display()));
    assert!(
        actual == expected,
        "{} differs; first at line {}\n expected: {:?}\n   actual: {:?}",
        path.display(),
        1 + actual.lines().zip(expected.lines()).take_while(|(a, b)| a == b).count(),
        first_difference(&expected, actual),
        first_difference(actual, &expected),
    );
}

/// The first line of `text` that differs in `other`, truncated.
fn first_difference<'a>(text: &'a str, other: &str) -> &'a str {
    let same = text.lines().zip(other.lines()).take_while(|(a, b)| a == b).count();
    let line = text.lines().nth(same).unwrap_or("(no more lines)");
    line.char_indices().nth(300).map_or(line, |(end, _)| &line[..end])
}
