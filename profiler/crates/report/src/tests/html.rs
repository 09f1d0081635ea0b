//! The HTML page: its data against goldens, its size, its content security policy, and isolation of names.

use std::io::Read as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{
    Change, CurvePoint, FrameId, Health, HeapUsage, History, LeakCandidate, Leaks, Profile, SampleTrigger,
    TimelinePoint,
};
use profiler_common::stack::StackEnd;
use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{check_golden, properties, render};
use crate::testing::{self as profiles, Frames, callsite, taken};
use crate::{Format, Group, Presentation, View, html};

/// The embedded data of a page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"profile\">").expect("there is data");
    let (packed, _) = rest.split_once("</script>").expect("the data ends");
    assert!(packed.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)), "it is base64");
    let packed = STANDARD.decode(packed).expect("it is base64");
    let mut text = String::new();
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).expect("it is packed text");
    serde_json::from_str(&text).expect("it is JSON")
}

fn page(profile: &Profile) -> String {
    render(Format::Html, profile, View::LiveBytes)
}

/// The sum of a column over all callsites; empty columns are zeros.
fn sum(target: &Value, column: &str) -> f64 {
    let numbers = target["callsites"][column].as_array().expect("a column");
    numbers.iter().map(|number| number.as_f64().expect("a number")).sum()
}

#[test]
fn data_goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("mixed", profiles::mixed()),
        ("empty", profiles::empty()),
    ] {
        let text = serde_json::to_string_pretty(&data(&page(&profile))).expect("it is JSON");
        check_golden(&format!("html/{name}.json"), &(text + "\n"));
    }
}

#[test]
fn leak_reports_have_the_time_of_the_check() {
    let checked = |profile: &Profile| data(&page(profile))["header"]["checked"].clone();
    assert_eq!(checked(&Profile { unreachable: true, ..profiles::exact() }), "checked on 2026-11-21T10:00:30Z");
    assert_eq!(checked(&profiles::exact()), Value::Null);
}

#[test]
fn every_profile_has_a_page() {
    for profile in profiles::all().into_iter().chain([large(10, 5)]) {
        let page = page(&profile);
        assert!(page.starts_with("<!doctype html>"), "it begins as one");
        assert!(page.trim_end().ends_with("</html>"), "it is whole");
        assert_eq!(page, self::page(&profile), "it is the same each time");
        assert_eq!(data(&page)["targets"].as_array().map(Vec::len), Some(profile.targets.len()));
    }
}

#[test]
fn the_requested_view_is_shown_first() {
    let presentation =
        Presentation { view: View::AllocCount, by: vec![Group::Thread, Group::Heap], ..Presentation::default() };
    let mut bytes = Vec::new();
    Format::Html.write(&profiles::exact(), &presentation, &mut bytes).expect("a vector takes all bytes");
    let data = data(&String::from_utf8(bytes).expect("it is text"));
    assert_eq!(data["view"], "alloc-count");
    assert_eq!(data["by"], serde_json::json!(["thread", "heap"]));
}

/// With wrong hashes in the policy, the page would be empty.
#[test]
fn the_policy_allows_the_pages_scripts_and_style_only() {
    let page = page(&profiles::exact());
    check_policy(&page);
    assert!(!page.contains("connect-src") && !page.contains("data-live"), "a file loads nothing");
}

#[test]
fn a_live_page_has_no_data_and_loads_from_its_server_only() {
    let mut bytes = Vec::new();
    html::write_live(&mut bytes).expect("a vector takes all bytes");
    let page = String::from_utf8(bytes).expect("it is text");
    check_policy(&page);
    assert!(page.contains("id=\"profile\" data-live></script>"), "it has no data");
    let (_, sources) = page.split_once("connect-src ").expect("it may connect");
    assert_eq!(sources.split_once(';').map(|(sources, _)| sources), Some("'self'"));
}

#[test]
fn documents_of_live_pages_are_those_of_files() {
    let mut bytes = Vec::new();
    html::write_document(&profiles::sampled(), &Presentation::default(), &mut bytes).expect("a vector takes all bytes");
    let document: Value = serde_json::from_slice(&bytes).expect("it is JSON");
    assert_eq!(document, data(&page(&profiles::sampled())));
}

fn check_policy(page: &str) {
    let (_, policy) = page.split_once("Content-Security-Policy\" content=\"").expect("there is a policy");
    let (policy, _) = policy.split_once('"').expect("it ends");
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert!(!policy.contains("unsafe") && !policy.contains("http") && !policy.contains('*'), "{policy}");
    let parts = |open: &'static str, close: &'static str| {
        page.split(open).skip(1).filter_map(move |part| part.split_once(close)).map(|(part, _)| part)
    };
    let inline: Vec<&str> = parts("<script>", "</script>").chain(parts("<style>", "</style>")).collect();
    assert_eq!(inline.len(), 2, "the script, the style");
    for part in inline {
        let hash = format!("'sha256-{}'", STANDARD.encode(Sha256::digest(part.as_bytes())));
        assert!(policy.contains(&hash), "{hash} is not in {policy}");
    }
    assert_eq!(page.matches("<script").count(), 2, "and the data, which is no script");
}

/// Names occur in the compressed data only.
#[test]
fn hostile_names_are_not_in_the_markup() {
    let hostile = [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "{{script}}",
        "-->\u{2028}<!--",
        &"ä<>&\"'`\n".repeat(1500),
    ];
    let mut frames = Frames::default();
    let stack: Vec<FrameId> = hostile.iter().map(|name| frames.add(name, name)).collect();
    let callsites = vec![callsite(&stack, Some(StackEnd::Complete), 0, taken(1, 3, 100, 1))];
    let heaps = vec![profiles::heap(hostile[0], &[(hostile[1], Some(hostile[0]))])];
    let target = profiles::target(1, hostile[0], hostile[1], heaps, callsites);
    let mut profile = profiles::profile(1, vec![target], frames, Health::default());
    profile.targets[0].facts.cgroup = Some(hostile[0].into());
    let page = page(&profile);
    let clean = self::page(&profiles::exact());
    let around = |page: &str| {
        let (before, rest) = page.split_once("id=\"profile\">").expect("there is data");
        (before.to_owned(), rest.split_once("</script>").expect("it ends").1.to_owned())
    };
    assert_eq!(around(&page), around(&clean), "but for the data pages are the same");
    let strings = data(&page)["strings"].clone();
    for name in hostile {
        assert!(strings.as_array().is_some_and(|all| all.iter().any(|one| one == name)), "it is whole in the data");
    }
}

#[test]
fn invalid_indices_are_harmless() {
    let mut profile = profiles::exact();
    let target = &mut profile.targets[0];
    target.callsites[0].heap = 99;
    target.callsites[0].thread = Some(99);
    target.callsites[1].stack = vec![FrameId(99_999), target.callsites[0].stack[0]];
    target.callsites[1].history =
        vec![Change { instant: 99, held: HeapUsage { live_bytes: f64::NAN, ..HeapUsage::default() } }];
    let candidate = LeakCandidate {
        callsite: 99,
        bytes_per_second: f64::INFINITY,
        margin: 1.0,
        old_share: 0.5,
        survival: None,
        score: 1.0,
    };
    target.leaks = Some(Leaks { candidates: vec![candidate], count: 1, ..Leaks::default() });
    let data = data(&page(&profile));
    let target = &data["targets"][0];
    assert_eq!(target["leaks"]["candidates"], serde_json::json!([]));
    assert_eq!(target["callsites"]["heap"][0], 1, "beyond the only heap");
    assert_eq!(target["callsites"]["thread"][0], 0);
    assert_eq!(target["history"]["changes"]["count"][1], 0);
}

proptest! {
    #[test]
    fn callsites_add_up_to_the_totals(profile in properties::profile()) {
        let data = data(&page(&profile));
        for (target, json) in profile.targets.iter().zip(data["targets"].as_array().expect("targets are a list")) {
            let callsites = f64::from(u32::try_from(target.callsites.len()).expect("a handful"));
            let allowed = if profile.interval_bytes == 1 { 0.0 } else { 0.01 * (callsites + 1.0) };
            for (column, view) in [
                ("live_bytes", View::LiveBytes),
                ("live_count", View::LiveCount),
                ("alloc_bytes", View::AllocBytes),
                ("alloc_count", View::AllocCount),
            ] {
                let (actual, expected) = (sum(json, column), view.estimate(&target.totals));
                prop_assert!((actual - expected).abs() <= allowed, "{column}: {actual} is not {expected}");
                let reported = json["estimates"][column][0].as_f64().expect("a number");
                prop_assert!((reported - expected).abs() <= allowed, "{column}: {reported} is not {expected}");
            }
        }
    }
}

/// A profile with this many callsites and frames: few outer frames and many inner ones, as in programs; with a history.
fn large(callsites: u32, depth: u32) -> Profile {
    let mut random = 42_u64;
    let mut draw = |below: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((random >> 33) % u64::from(below)).expect("it is below")
    };
    let mut frames = Frames::default();
    for at in 0..20_000 {
        let module = format!("/usr/lib/x86_64-linux-gnu/libpart{}.so.1", at % 37);
        let id =
            frames.add(&format!("app::part{}::Widget<T{at}>::make_thing_{at}(int, char const*)", at % 97), &module);
        assert_eq!(id, FrameId(at));
    }
    let callsites = (0..callsites).map(|_| {
        let stack: Vec<FrameId> =
            (0..depth).rev().map(|at| FrameId(draw(1 + (3 * (at + 1).pow(2)).min(19_999)))).collect();
        let blocks = u64::from(1 + draw(20));
        let size = u64::from(8 + draw(5000));
        let mut made = callsite(&stack, Some(StackEnd::Complete), 0, taken(1, blocks, size, u64::from(draw(2))));
        made.details.sizes.add(size, made.totals.alloc_count);
        made.details.lifetimes.add(u64::from(draw(100_000)), made.totals.free_count);
        made.details.ages.histogram.add(u64::from(draw(30_000_000)), made.totals.live_count());
        made.details.ages.oldest_ns = Some(u64::from(draw(u32::MAX)));
        made
    });
    let callsites = callsites.collect();
    let target =
        profiles::target(1, "large", "/usr/bin/large", vec![profiles::heap("libc", &[("malloc", None)])], callsites);
    let mut profile = profiles::profile(1, vec![target], frames, Health::default());
    grow(&mut profile);
    profile
}

/// A history of twelve points in time, of which four are dumps and one is a mark.
fn grow(profile: &mut Profile) {
    let begun = profile.started_monotonic_ns;
    let time = |second: u64| MonotonicNanos(begun + second * 1_000_000_000);
    let target = &mut profile.targets[0];
    let whole = View::LiveBytes.estimate(&target.totals);
    target.history = History {
        curve: (0..=300_u32)
            .map(|tenth| {
                let wave = 0.1 * (f64::from(tenth) / 9.0).sin().abs();
                let share = (f64::from(tenth) / 300.0).powf(0.7) * 0.9 + wave * f64::from(tenth) / 300.0;
                let held = HeapUsage {
                    live_bytes: (whole * share).floor(),
                    live_count: f64::from(tenth),
                    ..HeapUsage::default()
                };
                CurvePoint { time: MonotonicNanos(begun + u64::from(tenth) * 100_000_000), held }
            })
            .collect(),
        instants: (1..=12)
            .map(|at: u32| TimelinePoint {
                time: time(u64::from(at) * 30 / 13),
                trigger: match at {
                    5 => Some(SampleTrigger::Mark),
                    _ if at.is_multiple_of(3) => Some(SampleTrigger::Dump(at / 3)),
                    _ => None,
                },
            })
            .collect(),
    };
    for (number, callsite) in target.callsites.iter_mut().enumerate() {
        let first = u32::try_from(number % 11).expect("it is small");
        let share = |at: u32, view: View| (view.estimate(&callsite.totals) * f64::from(at + 1) / 13.0).floor();
        let held = |at| HeapUsage {
            live_bytes: share(at, View::LiveBytes),
            live_count: share(at, View::LiveCount),
            alloc_bytes: share(at, View::AllocBytes),
            alloc_count: share(at, View::AllocCount),
        };
        callsite.history = [first, 11].map(|instant| Change { instant, held: held(instant) }).to_vec();
    }
}

/// 10,000 callsites of 40 frames, 350,000 nodes in all, in a page of moderate size.
#[test]
#[expect(clippy::print_stdout, reason = "prints a figure on request")]
fn a_large_page_is_small_enough() {
    const BYTES_MAX: usize = 2 << 20;
    let profile = large(10_000, 40);
    let begun = std::time::Instant::now();
    let page = page(&profile);
    println!("{} bytes, written in {:?}", page.len(), begun.elapsed());
    keep("large.html", &page);
    keep("exact.html", &self::page(&profiles::exact()));
    keep("sampled.html", &self::page(&profiles::sampled()));
    let callsites = &data(&page)["targets"][0]["callsites"];
    assert_eq!(callsites["count"], 10_000);
    assert!(page.len() <= BYTES_MAX, "{} bytes", page.len());
}

/// Saves a page in the folder `HEAPBPF_PAGES`, for manual inspection.
fn keep(name: &str, page: &str) {
    if let Some(folder) = std::env::var_os("HEAPBPF_PAGES") {
        std::fs::write(std::path::Path::new(&folder).join(name), page).expect("the folder can be written to");
    }
}

#[test]
fn strings_are_unique() {
    let mut profile = profiles::exact();
    let again: Arc<str> = "main".into();
    profile.frames.iter_mut().for_each(|frame| frame.file = Some(Arc::clone(&again)));
    let data = data(&page(&profile));
    let strings = data["strings"].as_array().expect("strings are a list");
    assert_eq!(strings.iter().filter(|one| *one == "main").count(), 1);
}
