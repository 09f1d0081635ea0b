//! The flame graph of a leaking program in a browser, with the leak as its widest frame.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

use heapbpf_tests::heapbpf::{Heapbpf, text};
use heapbpf_tests::target::{Target, run};

/// Returns the share of each function in percent, from a flame graph's titles: `name (1,234 bytes, 56.7%)`.
fn widths(svg: &str) -> BTreeMap<String, f64> {
    let mut widths = BTreeMap::new();
    for title in svg.split("<title>").skip(1).filter_map(|rest| rest.split_once("</title>")).map(|(title, _)| title) {
        let Some((name, numbers)) = title.rsplit_once(" (") else { continue };
        let percent =
            numbers.split_once('%').and_then(|(before, _)| before.rsplit([' ', ',']).next()?.parse::<f64>().ok());
        let Some(percent) = percent else { continue };
        let width: &mut f64 = widths.entry(name.to_owned()).or_default();
        *width = width.max(percent);
    }
    widths
}

/// Returns the pixels of a PNG as red, green and blue.
fn pixels(path: &Path) -> Vec<[u8; 3]> {
    let file = File::open(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
    let mut decoder = png::Decoder::new(BufReader::new(file));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().expect("it is a PNG");
    let mut buffer = vec![0; reader.output_buffer_size().expect("it fits in memory")];
    let info = reader.next_frame(&mut buffer).expect("it is a whole PNG");
    let samples = info.color_type.samples();
    assert!(samples >= 3, "{:?} is no colour picture", info.color_type);
    buffer[..info.buffer_size()].chunks_exact(samples).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

/// Renders a page with headless Chromium.
fn screenshot(page: &Path, picture: &Path) {
    let profile = tempfile::tempdir().expect("there is a directory for temporary files");
    run(Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--window-size=1200,600", "--timeout=20000"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", page.display())));
}

#[test]
fn the_leak_is_the_widest_frame_in_a_browser() {
    let mut target = Target::start("leaky.c");
    let mut heapbpf = Heapbpf::of(target.pid(), "-o out.svg");
    let session = heapbpf.start();
    let ledger = target.work("2000");
    let _ = session.interrupt().expect_code(0);

    let svg = text(&heapbpf.file("out.svg"));
    let widths = widths(&svg);
    let site = |name: &str| ledger.site(name).counts.live_bytes;
    // Callers of these functions are as wide as all of them together.
    let own: BTreeMap<&str, f64> = widths
        .iter()
        .map(|(name, width)| (name.as_str(), *width))
        .filter(|(name, _)| ledger.sites.iter().any(|site| site.function == *name))
        .collect();
    let widest = own.iter().max_by(|one, other| one.1.total_cmp(other.1));
    let (name, percent) = widest.unwrap_or_else(|| panic!("no function of the program among {widths:?}"));
    assert_eq!(*name, "caches_response", "{own:?}");
    // Every live block exceeds the interval, so widths are exact except for rounding.
    #[expect(clippy::cast_precision_loss, reason = "some megabytes")]
    let expected = 100.0 * site("caches_response") as f64 / ledger.sum().live_bytes as f64;
    assert!((percent - expected).abs() < 0.1, "{percent} %, not {expected} %");
    assert!(expected > 80.0, "the leak is to stand out");
    assert_eq!(site("parses_request"), 0);
    assert!(!own.contains_key("parses_request"), "what was freed holds nothing: {own:?}");

    let picture = heapbpf.file("out.png");
    screenshot(&heapbpf.file("out.svg"), &picture);
    let pixels = pixels(&picture);
    let colours: BTreeSet<[u8; 3]> = pixels.iter().copied().collect();
    assert!(colours.len() >= 8, "a blank picture: {colours:?}");
    // An error page of Chromium has text too, but no coloured bars.
    let coloured = |pixel: &&[u8; 3]| {
        let (most, least) = (pixel.iter().max(), pixel.iter().min());
        most.zip(least).is_some_and(|(most, least)| most - least > 40)
    };
    let share = 100 * pixels.iter().filter(coloured).count() / pixels.len();
    assert!(share >= 2, "{share} % of the picture is coloured");
}

#[test]
fn widths_are_parsed_from_titles() {
    let svg = "<g><title>all (2,000 bytes, 100%)</title></g><title>f&lt;int&gt; (x) (1,500 bytes, 75.00%)</title>\
               <title>g (3 blocks, 0.15%; more)</title><title>Flame graph</title>";
    let expected = [("all", 100.0), ("f&lt;int&gt; (x)", 75.0), ("g", 0.15)];
    assert_eq!(widths(svg), expected.map(|(name, width)| (name.to_owned(), width)).into());
}
