//! Selection of formats and views.

use std::error::Error;
use std::io;
use std::path::Path;

use crate::{Format, View};

#[test]
fn the_extension_selects_the_format() {
    for (path, expected) in [
        ("heap.svg", Format::Flamegraph),
        ("out/a.b.folded", Format::Folded),
        ("HEAP.JSON", Format::Json),
        ("/tmp/x.json/heap.svg", Format::Flamegraph),
        ("heap.pb.gz", Format::Pprof),
        ("heap.DHAT.json", Format::Dhat),
        ("dhat.json", Format::Json),
        ("my.heap.heap", Format::Gperftools),
        ("heap.csv", Format::Csv),
        ("heap.functions.csv", Format::CsvFunctions),
    ] {
        assert_eq!(Format::of_path(Path::new(path)), Ok(expected), "{path}");
    }
}

#[test]
fn unknown_extensions_are_reported_with_the_known_ones() {
    let supported = "`.svg` (flame graph), `.html` (interactive report), `.folded` (folded stacks), `.json` (JSON), `.pb.gz` (pprof), \
                     `.speedscope.json` (speedscope), `.fxprofile.json` (Firefox Profiler), `.perfetto-trace` (Perfetto trace), \
                     `.memory-infra.json` (Chrome memory-infra), `.dhat.json` (DHAT), `.massif.out` (massif), `.heaptrack.zst` (heaptrack), \
                     `.heap` (gperftools heap profile), `.csv` (table of callsites), `.functions.csv` (table of functions), `.otlp` (OpenTelemetry profile), `.parquet` (Parquet table of callsites)";
    for (path, expected) in [
        ("heap.png", format!("`heap.png`: unknown format `.png`; use one of {supported}, or `--format`")),
        (
            "out.d/heap",
            format!(
                "`out.d/heap` has no extension to select a format by; use one of {supported}, as in `-o heap.svg`, or `--format`"
            ),
        ),
    ] {
        let error = Format::of_path(Path::new(path)).expect_err("there is no such format");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn the_default_view_is_live_bytes() {
    assert_eq!(View::default().to_string(), "live-bytes");
}

/// A pipe whose reader went away.
struct Closed;

impl io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn write_errors_reach_the_caller() {
    for format in super::formats() {
        for profile in [crate::testing::exact(), crate::testing::empty()] {
            let written = format.write(&profile, &View::LiveBytes.into(), &mut Closed);
            if format == Format::Folded && profile.targets[0].callsites.is_empty() {
                assert!(written.is_ok(), "there was nothing to write");
                continue;
            }
            let error = written.expect_err("nothing can be written");
            let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
            assert_eq!(cause, Some(io::ErrorKind::BrokenPipe), "{format:?}");
        }
    }
}
