//! Desktop programs that read heapbpf's formats, on a screen without a monitor: `desktop.py` starts them and goes through their tabs.

use std::path::Path;

use heapbpf_tests::viewers;

use super::fixture::Fixture;

/// Opens a file, and expects that the program shows this many tabs, and ends when it is closed. Returns what it prints.
#[track_caller]
fn open(program: &str, path: &Path, tabs: u64) -> String {
    let [path, picture] = [path.to_owned(), path.with_extension("png")].map(|path| path.display().to_string());
    let more = (tabs - 1).to_string();
    let seen = viewers::python("desktop.py", &[program, path.as_str(), picture.as_str(), more.as_str()]);
    assert_eq!((seen["shown"].as_u64(), seen["ended"].as_i64()), (Some(tabs), Some(0)), "{path}: {seen:#}");
    seen["output"].as_str().expect("text").to_owned()
}

/// It crashed, unlike heaptrack_print, on ids of allocations that were not in the order in which blocks have them.
#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn heaptrack_gui_shows_all_its_tabs() {
    for fixture in [Fixture::exact(), Fixture::sampled()] {
        assert_eq!(open("heaptrack_gui", &fixture.converted("heaptrack.zst", ""), 9), "");
    }
    let fixture = Fixture::exact();
    let end_ns = fixture.window(1)["window"]["end_unix_ns"].as_u64().expect("windows end");
    let window = format!("--from {}ns", end_ns - fixture.report.started_unix_ns);
    assert_eq!(open("heaptrack_gui", &fixture.converted("heaptrack.zst", &window), 9), "", "blocks from before");
}

#[test]
#[ignore = "part of `cargo xtask nightly --suite page`"]
fn massif_visualizer_shows_the_chart() {
    let path = Fixture::exact().converted("massif.out", "");
    let output = open("massif-visualizer", &path, 1);
    assert!(output.contains("description: \"heapbpf; every allocation; complete\""), "{output}");
}
