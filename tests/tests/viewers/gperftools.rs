//! gperftools' format in google-pprof, which symbolizes by itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heapbpf_tests::recipe::Recipe;
use heapbpf_tests::viewers;

use super::fixture::{Fixture, number};

/// Its views, with the JSON report's fields.
const QUANTITIES: [(&str, &str); 4] = [
    ("--inuse_objects", "live_count"),
    ("--inuse_space", "live_bytes"),
    ("--alloc_objects", "alloc_count"),
    ("--alloc_space", "alloc_bytes"),
];

/// Returns google-pprof's total, and each function's own amount.
#[track_caller]
fn google(option: &str, program: &Path, heap: &Path) -> (f64, BTreeMap<String, f64>) {
    let mut command = viewers::program("google-pprof");
    let text = viewers::text(command.args(["--text", "--show_bytes", "--functions", option]).args([program, heap]));
    let mut lines = text.lines();
    let total = lines.find_map(|line| line.strip_prefix("Total: ")).unwrap_or_else(|| panic!("no total in {text}"));
    let total = total.split(' ').next().and_then(|total| total.parse().ok()).expect("the total is a number");
    let mut functions = BTreeMap::new();
    for line in lines {
        let mut fields = line.split_ascii_whitespace();
        let own: f64 = fields.next().and_then(|own| own.parse().ok()).unwrap_or_else(|| panic!("no number: {line}"));
        let name = fields.skip(4).collect::<Vec<_>>().join(" ");
        *functions.entry(name).or_default() += own;
    }
    (total, functions)
}

fn orchard() -> PathBuf {
    Recipe::of("orchard.cpp").libraries("-ldl").build()
}

#[test]
fn unsampled_totals_equal_the_report() {
    for (fixture, is_exact) in [(Fixture::exact(), true), (Fixture::sampled(), false)] {
        let heap = fixture.converted("heap", "");
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        let rounding = if is_exact { 0.0 } else { fixture.callsites().count() as f64 / 2.0 };
        for (option, field) in QUANTITIES {
            let (total, _) = google(option, &orchard(), &heap);
            assert!(
                (total - fixture.total(field)).abs() <= rounding,
                "{option}: {total}, not {}",
                fixture.total(field)
            );
        }
    }
}

#[test]
fn its_symbols_equal_ours() {
    let fixture = Fixture::exact();
    let (_, functions) = google("--alloc_space", &orchard(), &fixture.converted("heap", ""));
    let mut expected = BTreeMap::<&str, f64>::new();
    for callsite in fixture.callsites() {
        let leaf = callsite["stack"][0]["function"].as_str().unwrap_or_default();
        *expected.entry(leaf).or_default() += number(callsite, "alloc_bytes");
    }
    // The reader recognizes libraries by their file name, unlike the plugin's.
    for name in ["picks", "presses", "stores"] {
        assert!(expected[name] > 10_000.0, "{name}");
        assert_eq!(functions.get(name), expected.get(name), "{name}");
    }
}
